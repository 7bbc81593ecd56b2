//! DAMON: the kernel samples which regions of memory are accessed, and can act on what it sees
//! (Documentation/admin-guide/mm/damon/usage.rst).
//!
//! ```text
//!  /sys/kernel/mm/damon/admin/kdamonds/
//!    nr_kdamonds                      kernel threads; writing it fails while one of them runs
//!    0/state                          on, off, commit, update_schemes_tried_regions …
//!    0/contexts/0/operations          vaddr: a process's addresses; paddr: physical ones
//!    0/contexts/0/schemes/0/…         what to do with regions of which size, heat and age
//! ```
//!
//! The directory belongs to the whole system. It is borrowed only if nobody has set it up: a [`Monitor`]
//! journals the loan ([`crate::settings::loan`]), so that what a killed borrower left running is stopped by the
//! next start. `DAMON_STAT`, which newer kernels run by default and which keeps everybody else out, is
//! switched off for the time of the loan and on again after it.
//!
//! Properties: no kernel thread of somebody else is stopped or reconfigured; after a monitor is dropped,
//! there are as many kernel threads as before, none.

use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::time::Duration;

use pagemill_model::Pid;

use crate::error::present;
use crate::settings::loan::{self, Files, Loan, Settings};
use crate::{Error, Kind, Linux, Result};

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const COUNT: &str = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
/// The switch of `DAMON_STAT`.
pub const DAMON_STAT: &str = "/sys/module/damon_stat/parameters/enabled";
/// Of the journals.
const NAME: &str = "damon";
const STAT_NAME: &str = "damon-stat";

/// Whether DAMON can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It can; `stat` says whether `DAMON_STAT` would be paused meanwhile.
    Free {
        /// `DAMON_STAT` runs.
        stat: bool,
    },
    /// Somebody else has set it up.
    Busy {
        /// Kernel threads that are set up.
        threads: u64,
        /// Those of them that run.
        running: u64,
    },
}

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The virtual memory of a process.
    Process(Pid),
    /// Physical memory, by its addresses.
    Physical(Range<u64>),
}

/// What to do with the regions that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but counting them.
    Stat,
    /// Move them to this node, the hottest first (kernel 6.11).
    MigrateHot(u32),
    /// Move them to this node, the coldest first (kernel 6.11).
    MigrateCold(u32),
}

/// An action, and for which regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// What to do.
    pub action: Action,
    /// Least and most sampling intervals of an aggregation in which a region was seen accessed.
    pub accesses: RangeInclusive<u64>,
    /// Least number of aggregations for which it has been like that.
    pub age: u64,
    /// Bytes that may be acted on a second.
    pub bytes_per_second: Option<u64>,
    /// Only memory charged to this cgroup, by its path below the mount.
    pub cgroup: Option<String>,
    /// What the kernel should tune the bytes a second for (kernel 6.16).
    pub goal: Option<Goal>,
}

/// How full a node should be, in 10,000ths of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Used memory.
    Used(u64),
    /// Free memory.
    Free(u64),
}

/// What a scheme tunes itself for, as those of the kernel's own tiering do (`samples/damon/mtier.c`): it acts once a
/// second, by accesses and age alike, on the pages of a region that have been accessed or on the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Of which node.
    pub node: u32,
    /// How full.
    pub fill: Fill,
    /// Whether it acts on pages that have been accessed.
    pub accessed: bool,
}

impl Scheme {
    /// The scheme that only counts.
    pub const fn counting() -> Self {
        let accesses = 0..=u64::MAX;
        Self {
            action: Action::Stat,
            accesses,
            age: 0,
            bytes_per_second: None,
            cgroup: None,
            goal: None,
        }
    }
}

/// A target, and what to do with its regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// What to watch.
    pub target: Target,
    /// The first one says which regions are read.
    pub schemes: Vec<Scheme>,
}

/// How closely to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Time between two samples of a region.
    pub sample: Duration,
    /// Time over which samples are counted.
    pub aggregate: Duration,
    /// Regions at most: the bound of the cost.
    pub regions: u64,
    /// What the kernel should tune both times for, if it should (kernel 6.16).
    pub tuning: Option<Tuning>,
}

/// What samples should find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// An access, in so many of 10,000 by size.
    pub accessed_bp: u64,
    /// Aggregations between two changes.
    pub aggregations: u64,
    /// The longest time between two samples; the shortest is that of the attributes.
    pub longest: Duration,
}

/// A region that DAMON saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Sampling intervals of the last aggregation in which it was accessed.
    pub accesses: u64,
}

/// What a scheme has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of regions that fit.
    pub tried: u64,
    /// Bytes on which the action succeeded.
    pub applied: u64,
}

impl Linux {
    /// Whether DAMON's directory is there and free. [`Kind::NotFound`] without it.
    ///
    /// # Errors
    /// [`Kind::NotFound`] without it; a file cannot be read.
    pub fn damon(&self) -> Result<State> {
        let threads = self.read_number(COUNT).map_err(|error| match error.kind() {
            Kind::NotFound => error.advise("boot a kernel with CONFIG_DAMON_SYSFS=y"),
            _ => error,
        })?;
        if threads > 0 {
            let states = (0..threads).map_while(|at| self.read(state(at)).ok());
            let running = states.filter(|state| state.trim() == "on").count() as u64;
            return Ok(State::Busy { threads, running });
        }
        let stat = present(self.read(DAMON_STAT))?;
        Ok(State::Free { stat: stat.is_some_and(|text| text.trim() == "Y") })
    }
}

/// The file that says whether a thread runs.
fn state(thread: u64) -> String {
    format!("{KDAMONDS}/{thread}/state")
}

/// The directory, as it is found when it may be borrowed: nobody's.
#[derive(Clone, Debug, PartialEq)]
struct Nobody;

impl Settings for Nobody {
    const EXTENSION: &'static str = "kdamonds";

    fn to_text(&self) -> String {
        "0\n".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        (text == "0\n").then_some(Self)
    }

    fn restore(&self, linux: &Linux) -> Result<()> {
        let all = 0..linux.read_number(COUNT)?;
        for path in all.map(state).take_while(|path| linux.path(path).exists()) {
            // One that does not run refuses to be stopped.
            let _ = linux.write(path, "off");
        }
        linux.write(COUNT, "0")
    }
}

/// Stops what a killed borrower left running; `true` if there was something.
///
/// # Errors
/// The journal cannot be read, or the settings not be restored.
pub fn recover(linux: &Linux, directory: &Path) -> Result<bool> {
    let stopped = loan::recover::<Nobody>(linux, directory, NAME)?.is_some();
    let stat = loan::recover::<Files>(linux, directory, STAT_NAME)?.is_some();
    Ok(stopped || stat)
}

/// Whether a killed borrower left DAMON running; changes nothing.
///
/// # Errors
/// The journal cannot be read.
pub fn left_over(directory: &Path) -> Result<bool> {
    Ok(loan::left_over::<Nobody>(directory, NAME)?.is_some())
}

/// Whether this kernel's DAMON moves the pages of a process (6.17), and not only physical memory; watches
/// this process for a moment.
///
/// # Errors
/// As of [`Monitor::start`].
pub fn migrates_virtual(linux: &Linux, directory: &Path) -> Result<bool> {
    let _monitor = watch_myself(linux, directory)?;
    // Several destinations came with it, and show.
    Ok(linux.path(format!("{KDAMONDS}/0/contexts/0/schemes/0/dests")).exists())
}

/// One kernel thread a target, watching. Dropping it stops and removes them.
#[derive(Debug)]
pub struct Monitor {
    linux: Linux,
    watches: Vec<Watch>,
    // Dropped in this order: the threads are gone before DAMON_STAT starts again.
    _loan: Loan<Nobody>,
    _stat: Loan<Files>,
}

impl Monitor {
    /// Starts to watch. The journal lives in `directory`.
    ///
    /// [`Kind::Busy`] if somebody has set DAMON up; [`Kind::Unsupported`] if this kernel does not have
    /// the operations or an action.
    ///
    /// # Errors
    /// [`Kind::Busy`] if somebody has set DAMON up; [`Kind::Unsupported`] if this kernel lacks an operation or an
    /// action; the journal or a setting cannot be written.
    pub fn start(
        linux: &Linux,
        directory: &Path,
        watches: &[Watch],
        attributes: Attributes,
    ) -> Result<Self> {
        recover(linux, directory)?;
        if let State::Busy { threads, running } = linux.damon()? {
            return Err(busy(threads, running));
        }
        let stat = Loan::files(linux, directory, STAT_NAME, &[DAMON_STAT])?;
        if stat.found().value(DAMON_STAT) == Some("Y") {
            stat.set(DAMON_STAT, "N")?;
        }
        let find = || match linux.read_number(COUNT)? {
            0 => Ok(Nobody),
            threads => Err(busy(threads, 0)),
        };
        let loan =
            Loan::take_unless(linux, directory, NAME, find, |_| false)?.map_err(|_| busy(0, 0))?;
        let monitor =
            Self { linux: linux.clone(), watches: watches.to_vec(), _loan: loan, _stat: stat };
        for (path, value) in writes(watches, attributes) {
            linux.write(&path, &value).map_err(|error| refused(&path, &value, error))?;
        }
        Ok(monitor)
    }

    /// What is watched.
    pub fn watches(&self) -> &[Watch] {
        &self.watches
    }

    /// The kernel's thread for target `at`.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn thread(&self, at: usize) -> Result<Pid> {
        let pid = self.linux.read_number(format!("{KDAMONDS}/{at}/pid"))?;
        u32::try_from(pid)
            .map(Pid)
            .map_err(|_| Error::malformed(format!("{KDAMONDS}/{at}/pid"), pid))
    }

    /// The regions of target `at` that fit its first scheme, in the order of their addresses. Waits
    /// for the end of the aggregation.
    ///
    /// # Errors
    /// DAMON has stopped, or a file of it is not of the form that is known.
    pub fn regions(&self, at: usize) -> Result<Vec<Region>> {
        self.command(at, "update_schemes_tried_regions")?;
        let directory = format!("{KDAMONDS}/{at}/contexts/0/schemes/0/tried_regions");
        let entries = std::fs::read_dir(self.linux.path(&directory))
            .map_err(|error| Error::io("list", &directory, error))?;
        let mut regions = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if !name.starts_with(|first: char| first.is_ascii_digit()) {
                continue;
            }
            let number = |file: &str| self.linux.read_number(format!("{directory}/{name}/{file}"));
            regions.push(Region {
                start: number("start")?,
                end: number("end")?,
                accesses: number("nr_accesses")?,
            });
        }
        regions.sort_unstable_by_key(|region| region.start);
        Ok(regions)
    }

    /// What each scheme of target `at` has done.
    ///
    /// # Errors
    /// As of [`Monitor::regions`].
    pub fn stats(&self, at: usize) -> Result<Vec<Stats>> {
        self.command(at, "update_schemes_stats")?;
        let schemes = 0..self.watches.get(at).map_or(0, |watch| watch.schemes.len());
        let stats = |scheme| {
            let directory = format!("{KDAMONDS}/{at}/contexts/0/schemes/{scheme}/stats");
            Ok(Stats {
                tried: self.linux.read_number(format!("{directory}/sz_tried"))?,
                applied: self.linux.read_number(format!("{directory}/sz_applied"))?,
            })
        };
        schemes.map(stats).collect()
    }

    /// Changes what schemes of target `at` may do, without a restart: the scheme, and bytes a second.
    ///
    /// # Errors
    /// DAMON has stopped, or refuses a value.
    pub fn limit(&self, at: usize, limits: &[(usize, u64)]) -> Result<()> {
        for (scheme, bytes_per_second) in limits {
            let scheme = format!("{KDAMONDS}/{at}/contexts/0/schemes/{scheme}");
            for (path, value) in allowance(&scheme, *bytes_per_second) {
                self.linux.write(path, &value)?;
            }
        }
        self.command(at, "commit")
    }

    fn command(&self, at: usize, command: &str) -> Result<()> {
        let path = format!("{KDAMONDS}/{at}/state");
        self.linux.write(&path, command).map_err(|error| refused(&path, command, error))
    }
}

/// A file of the directory, and what is written into it.
type Write = (String, String);

/// All that is written to watch `watches`, in this order.
#[must_use]
pub fn writes(watches: &[Watch], attributes: Attributes) -> Vec<Write> {
    let mut all = vec![(COUNT.to_owned(), watches.len().to_string())];
    for (at, watch) in watches.iter().enumerate() {
        let thread = format!("{KDAMONDS}/{at}");
        let context = format!("{thread}/contexts/0");
        all.push((format!("{thread}/contexts/nr_contexts"), "1".to_owned()));
        all.extend(target_files(&context, &watch.target));
        all.extend(attribute_files(&format!("{context}/monitoring_attrs"), attributes));
        all.push((format!("{context}/schemes/nr_schemes"), watch.schemes.len().to_string()));
        for (number, scheme) in watch.schemes.iter().enumerate() {
            all.extend(scheme_files(&format!("{context}/schemes/{number}"), scheme));
        }
        all.push((format!("{thread}/state"), "on".to_owned()));
    }
    all
}

fn files<const N: usize>(directory: &str, values: [(&str, String); N]) -> Vec<Write> {
    values.map(|(name, value)| (format!("{directory}/{name}"), value)).into()
}

fn target_files(context: &str, target: &Target) -> Vec<Write> {
    let one = || "1".to_owned();
    let count = ("targets/nr_targets", one());
    match target {
        Target::Process(pid) => {
            let pid = ("targets/0/pid_target", pid.to_string());
            files(context, [count, ("operations", "vaddr".to_owned()), pid])
        }
        Target::Physical(Range { start, end }) => files(
            context,
            [
                count,
                ("operations", "paddr".to_owned()),
                ("targets/0/regions/nr_regions", one()),
                ("targets/0/regions/0/start", start.to_string()),
                ("targets/0/regions/0/end", end.to_string()),
            ],
        ),
    }
}

fn attribute_files(directory: &str, attributes: Attributes) -> Vec<Write> {
    let micros = |time: Duration| time.as_micros().max(1).to_string();
    let mut all = files(
        directory,
        [
            ("intervals/sample_us", micros(attributes.sample)),
            ("intervals/aggr_us", micros(attributes.aggregate)),
            ("intervals/update_us", micros(attributes.aggregate * 2)),
            // The kernel wants at least three: the parts between the two largest gaps.
            ("nr_regions/max", attributes.regions.max(10).to_string()),
            ("nr_regions/min", attributes.regions.clamp(3, 10).to_string()),
        ],
    );
    if let Some(Tuning { accessed_bp, aggregations, longest }) = attributes.tuning {
        let goal = format!("{directory}/intervals/intervals_goal");
        all.extend(files(
            &goal,
            [
                ("access_bp", accessed_bp.to_string()),
                ("aggrs", aggregations.to_string()),
                ("min_sample_us", micros(attributes.sample)),
                ("max_sample_us", micros(longest)),
            ],
        ));
    }
    all
}

fn scheme_files(directory: &str, scheme: &Scheme) -> Vec<Write> {
    let (action, node) = match scheme.action {
        Action::Stat => ("stat", None),
        Action::MigrateHot(node) => ("migrate_hot", Some(node)),
        Action::MigrateCold(node) => ("migrate_cold", Some(node)),
    };
    let mut all = files(directory, [("action", action.to_owned())]);
    all.extend(node.map(|node| (format!("{directory}/target_nid"), node.to_string())));
    let most = u64::from(u32::MAX);
    let accesses = (*scheme.accesses.start(), (*scheme.accesses.end()).min(most));
    for (name, (least, most)) in
        [("sz", (0, u64::MAX)), ("nr_accesses", accesses), ("age", (scheme.age, most))]
    {
        let pattern = format!("{directory}/access_pattern/{name}");
        all.extend(files(&pattern, [("max", most.to_string()), ("min", least.to_string())]));
    }
    if let Some(bytes) = scheme.bytes_per_second {
        // What is hot, or cold, now counts for more than for how long; the kernel's own tiering makes no difference.
        let weights = if scheme.goal.is_some() { [100, 100] } else { [900, 100] };
        all.extend(files(
            &format!("{directory}/quotas"),
            [
                ("reset_interval_ms", "1000".to_owned()),
                ("weights/nr_accesses_permil", weights[0].to_string()),
                ("weights/age_permil", weights[1].to_string()),
            ],
        ));
        all.extend(allowance(directory, bytes));
    }
    if let Some(goal) = scheme.goal {
        let (metric, value) = match goal.fill {
            Fill::Used(part) => ("node_mem_used_bp", part),
            Fill::Free(part) => ("node_mem_free_bp", part),
        };
        all.extend(files(
            directory,
            [
                ("apply_interval_us", "1000000".to_owned()),
                ("quotas/goals/nr_goals", "1".to_owned()),
                ("quotas/goals/0/target_metric", metric.to_owned()),
                ("quotas/goals/0/nid", goal.node.to_string()),
                ("quotas/goals/0/target_value", value.to_string()),
            ],
        ));
    }
    all.extend(filter_files(&format!("{directory}/filters"), scheme));
    all
}

/// Who does not belong to the cgroup is left out first; then who has, or has not, been accessed.
fn filter_files(directory: &str, scheme: &Scheme) -> Vec<Write> {
    let flag = |set: bool| if set { "Y" } else { "N" }.to_owned();
    let group = scheme.cgroup.as_ref().map(|group| {
        vec![("type", "memcg".to_owned()), ("memcg_path", group.clone()), ("matching", flag(false))]
    });
    let young = scheme.goal.map(|goal| {
        vec![("type", "young".to_owned()), ("matching", flag(true)), ("allow", flag(goal.accessed))]
    });
    let filters: Vec<_> = group.into_iter().chain(young).collect();
    if filters.is_empty() {
        return Vec::new();
    }
    let mut all = files(directory, [("nr_filters", filters.len().to_string())]);
    for (number, filter) in filters.into_iter().enumerate() {
        let write = |(name, value)| (format!("{directory}/{number}/{name}"), value);
        all.extend(filter.into_iter().map(write));
    }
    all
}

/// Zero bytes of a quota would mean no limit at all, and kernels before 6.17 apply quotas only five minutes after
/// their boot: a scheme that may do nothing asks for regions larger than any.
fn allowance(scheme: &str, bytes_per_second: u64) -> Vec<Write> {
    let least = if bytes_per_second == 0 { u64::MAX } else { 0 };
    files(
        scheme,
        [
            ("access_pattern/sz/min", least.to_string()),
            ("quotas/bytes", bytes_per_second.max(1).to_string()),
        ],
    )
}

/// What a kernel that lacks a part of DAMON, or has another user of it, says to a write, with what to do.
fn refused(path: &str, value: &str, error: Error) -> Error {
    let has = |part: &str| path.contains(part);
    let (what, advice) = match error.kind() {
        // Only one user of DAMON at a time may run: a module of the kernel is another.
        Kind::Busy => {
            return error.advise(
                "another user of DAMON runs: see /sys/module/damon_*/parameters/enabled and damo",
            );
        }
        Kind::NotFound | Kind::Other if has("/operations") => (
            format!("the operations {value}"),
            "with CONFIG_DAMON_VADDR=y and CONFIG_DAMON_PADDR=y",
        ),
        Kind::NotFound | Kind::Other if has("/action") => {
            ("migration between nodes".to_owned(), "6.11 or newer")
        }
        Kind::NotFound | Kind::Other
            if has("/goals/") || has("/intervals_goal/") || value == "young" || has("/allow") =>
        {
            ("what the kernel's own tiering by it tunes".to_owned(), "6.16 or newer")
        }
        _ => return error,
    };
    Error::new(Kind::Unsupported, "set up DAMON with", what, error.reason())
        .advise(format!("boot a kernel {advice}"))
}

fn busy(threads: u64, running: u64) -> Error {
    Error::new(
        Kind::Busy,
        "borrow",
        "DAMON",
        format_args!("somebody has set up {threads} kernel threads of it, {running} of them run"),
    )
    .advise("stop them (damo stop; echo 0 > /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)")
}

fn watch_myself(linux: &Linux, directory: &Path) -> Result<Monitor> {
    let watch = Watch { target: Target::Process(Pid::own()), schemes: vec![Scheme::counting()] };
    let attributes = Attributes {
        sample: Duration::from_millis(5),
        aggregate: Duration::from_millis(20),
        regions: 10,
        tuning: None,
    };
    Monitor::start(linux, directory, &[watch], attributes)
}

/// Finds out whether DAMON works here: watches this process for a moment.
///
/// # Errors
/// As of [`Monitor::start`] and [`Monitor::regions`].
pub fn probe(linux: &Linux) -> Result<()> {
    let monitor = watch_myself(linux, &loan::directory(linux))?;
    monitor.regions(0).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use std::fs;

    #[test]
    fn a_kernel_that_runs_its_own_statistics_is_free() {
        assert_eq!(fixtures::two_nodes().damon().unwrap(), State::Free { stat: true });
        assert_eq!(fixtures::debian().damon().unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn what_somebody_set_up_is_neither_borrowed_nor_touched() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        let directory = linux.path(format!("{KDAMONDS}/0"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("state"), "on\n").unwrap();
        fs::write(linux.path(COUNT), "1\n").unwrap();
        assert_eq!(linux.damon().unwrap(), State::Busy { threads: 1, running: 1 });
        let attributes = Attributes {
            sample: Duration::from_millis(5),
            aggregate: Duration::from_millis(100),
            regions: 100,
            tuning: None,
        };
        let journals = linux.path("/run/pagemill");
        let error = Monitor::start(
            &linux,
            &journals,
            &[Watch { target: Target::Process(Pid(1)), schemes: vec![] }],
            attributes,
        )
        .unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.to_string().contains("1 kernel threads of it, 1 of them run"), "{error}");
        assert_eq!(fs::read_to_string(directory.join("state")).unwrap(), "on\n");
        assert!(!left_over(&journals).unwrap());
        // Of a count beyond what is there, nobody reads on.
        fs::write(linux.path(COUNT), format!("{}\n", u64::MAX)).unwrap();
        assert_eq!(linux.damon().unwrap(), State::Busy { threads: u64::MAX, running: 1 });
        Nobody.restore(&linux).unwrap();
        assert_eq!(fs::read_to_string(directory.join("state")).unwrap(), "off");
    }

    /// The values of the kernel's sample (`samples/damon/mtier.c`), as its documentation names the files.
    #[test]
    fn the_kernels_own_tiering_is_written_down_whole_and_its_last_write_starts_it() {
        let scheme = Scheme {
            action: Action::MigrateHot(0),
            accesses: 1..=u64::MAX,
            bytes_per_second: Some(200 << 20),
            cgroup: Some("/web".to_owned()),
            goal: Some(Goal { node: 0, fill: Fill::Used(9970), accessed: true }),
            ..Scheme::counting()
        };
        let watch = Watch { target: Target::Physical(4096..8192), schemes: vec![scheme] };
        let attributes = Attributes {
            sample: Duration::from_millis(5),
            aggregate: Duration::from_millis(100),
            regions: 1000,
            tuning: Some(Tuning {
                accessed_bp: 400,
                aggregations: 3,
                longest: Duration::from_secs(10),
            }),
        };
        let writes = writes(&[watch], attributes);
        let value = |name: &str| {
            let path = format!("{KDAMONDS}/0/contexts/0/{name}");
            let found = writes.iter().filter(|(at, _)| *at == path);
            found.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(",")
        };
        for (name, expected) in [
            ("operations", "paddr"),
            ("monitoring_attrs/intervals/intervals_goal/access_bp", "400"),
            ("monitoring_attrs/intervals/intervals_goal/aggrs", "3"),
            ("monitoring_attrs/intervals/intervals_goal/min_sample_us", "5000"),
            ("monitoring_attrs/intervals/intervals_goal/max_sample_us", "10000000"),
            ("monitoring_attrs/nr_regions/min", "10"),
            ("monitoring_attrs/nr_regions/max", "1000"),
            ("schemes/0/action", "migrate_hot"),
            ("schemes/0/target_nid", "0"),
            ("schemes/0/access_pattern/nr_accesses/min", "1"),
            ("schemes/0/apply_interval_us", "1000000"),
            ("schemes/0/quotas/bytes", "209715200"),
            ("schemes/0/quotas/goals/0/target_metric", "node_mem_used_bp"),
            ("schemes/0/quotas/goals/0/target_value", "9970"),
            ("schemes/0/filters/nr_filters", "2"),
            ("schemes/0/filters/0/memcg_path", "/web"),
            ("schemes/0/filters/1/type", "young"),
            ("schemes/0/filters/1/allow", "Y"),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        assert_eq!(writes[0], (COUNT.to_owned(), "1".to_owned()));
        assert_eq!(writes.last().unwrap(), &(format!("{KDAMONDS}/0/state"), "on".to_owned()));
    }

    #[test]
    fn a_kernel_that_lacks_a_part_says_from_which_version_on_it_is_there() {
        let said = |file: &str, value: &str| {
            let error = Error::new(Kind::NotFound, "write", file, "no such file");
            let error = refused(&format!("{KDAMONDS}/0/contexts/0/{file}"), value, error);
            assert_eq!(error.kind(), Kind::Unsupported);
            error.to_string()
        };
        assert!(said("operations", "vaddr").contains("CONFIG_DAMON_VADDR=y"));
        assert!(said("schemes/0/action", "migrate_hot").contains("6.11"));
        let goals = "schemes/0/quotas/goals/0/target_metric";
        assert!(said(goals, "node_mem_used_bp").contains("6.16"));
    }

    /// On the running kernel, where that is allowed and DAMON is free.
    #[test]
    fn physical_memory_is_watched_and_nothing_is_left_behind() {
        let linux = Linux::live();
        let journals = tempfile::tempdir().unwrap();
        match linux.damon() {
            Ok(State::Free { .. }) => {}
            other => return eprintln!("skipped: {other:?}"),
        }
        let attributes = Attributes {
            sample: Duration::from_millis(5),
            aggregate: Duration::from_millis(50),
            regions: 20,
            tuning: None,
        };
        let target = Target::Physical(1 << 20..512 << 20);
        let watch = Watch { target, schemes: vec![Scheme::counting()] };
        let monitor = match Monitor::start(&linux, journals.path(), &[watch], attributes) {
            Ok(monitor) => monitor,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let regions = monitor.regions(0).unwrap();
        assert!(!regions.is_empty());
        assert!(regions.windows(2).all(|pair| pair[0].end <= pair[1].start), "{regions:?}");
        assert!(regions.iter().all(|region| region.accesses <= 11), "{regions:?}");
        assert!(monitor.stats(0).unwrap()[0].tried > 0);
        drop(monitor);
        assert!(matches!(linux.damon().unwrap(), State::Free { .. }));
        assert!(!left_over(journals.path()).unwrap());
    }
}
