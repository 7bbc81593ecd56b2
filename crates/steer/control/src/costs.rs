//! What huge pages cost on this machine and how it is doing: the machine's part of a huge page view.
//!
//! Costs are measured in under two seconds and stand for [`STANDS`] of a boot, for the host of a virtual machine has
//! good and bad hours. A program that is run does not wait for that: it begins with the last ones of the boot
//! ([`latest`]). They are kept in a file beside the journals (`/run/pagemill` for root, otherwise
//! `$XDG_RUNTIME_DIR/pagemill`, or without it `$XDG_CACHE_HOME/pagemill`, which is `~/.cache/pagemill`; see
//! `loan::directory`). What could not be measured stays absent, with the reason. Whether memory is cold changes by the
//! minute, so that figure is as old as the file says.
//!
//! Few touches are tried, so it happens that huge pages were cold and no base page was. A cold base page is then taken
//! for at least what a warm one costs and a 512th of what the host took for 512: modelled, and too little where the
//! host provides more than a base page at once.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use pagemill_analysis::fragmentation;
use pagemill_kernel::memory::huge_costs::{self, HugeCosts};
use pagemill_kernel::{Linux, settings::loan};
use pagemill_model::page::PER_HUGE;
use pagemill_model::{Nanos, Order};
use pagemill_policy::huge::{Costs, Figure, View};
use serde::{Deserialize, Serialize};

/// How long they stand.
const STANDS: Duration = Duration::from_secs(3600);

/// Costs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// The boot that they are of.
    pub boot: String,
    /// Seconds since 1970 UTC when they were measured.
    pub measured_unix_s: u64,
    /// What was measured.
    #[serde(flatten)]
    pub measured: HugeCosts,
}

impl Calibration {
    /// What a reference beyond the reach of the TLB takes longer on base pages.
    fn walk_ns(&self) -> Option<u64> {
        Some(self.measured.read_base_ps?.saturating_sub(self.measured.read_huge_ps?) / 1000)
    }

    /// What a base page from cold memory costs at the least, where only huge pages were seen cold.
    fn base_cold_modelled(&self) -> Option<u64> {
        let host = self.measured.huge_cold_ns?.saturating_sub(self.measured.huge_ns?);
        Some(self.measured.base_ns?.saturating_add(host / PER_HUGE))
    }

    /// As a policy takes them. What a huge page waits for without a free block is not among them: it shows only when it
    /// happens.
    pub fn costs(&self) -> Costs {
        let figure = |value: Option<u64>| value.map_or(Figure::Absent, Figure::Measured);
        Costs {
            base: figure(self.measured.base_ns),
            base_cold: match self.measured.base_cold_ns {
                Some(cold) => Figure::Measured(cold),
                None => self.base_cold_modelled().map_or(Figure::Absent, Figure::Modelled),
            },
            medium: figure(self.measured.medium_ns),
            huge: figure(self.measured.huge_ns),
            huge_cold: figure(self.measured.huge_cold_ns),
            collapse: figure(self.measured.collapse_ns),
            deliver: figure(self.measured.deliver_ns),
            stall: Figure::Absent,
            fetch: figure(self.measured.fetch_ns),
            walk: figure(self.walk_ns()),
        }
    }

    /// As text, with what the machine's view says just now.
    pub fn text(&self, view: &View) -> String {
        let mut text = String::new();
        let times = [
            ("base page, warm", self.measured.base_ns),
            ("base page, cold", self.measured.base_cold_ns),
            ("64 KiB, warm", self.measured.medium_ns),
            ("huge page, warm", self.measured.huge_ns),
            ("huge page, cold", self.measured.huge_cold_ns),
            ("collapse 512 base pages", self.measured.collapse_ns),
            ("move a huge page into place", self.measured.deliver_ns),
            ("fetch 2 MiB provided elsewhere", self.measured.fetch_ns),
        ];
        for (what, value) in times {
            match value {
                Some(ns) => text.push_str(&format!("{what:<28} {}  measured\n", Nanos(ns))),
                None => text.push_str(&format!("{what:<28}         -  absent\n")),
            }
        }
        if let (Some(base), Some(huge)) = (self.measured.read_base_ps, self.measured.read_huge_ps) {
            let (base, huge) = (base as f64 / 1000.0, huge as f64 / 1000.0);
            text.push_str(&format!(
                "{:<28} {base:>6.1} ns  in base pages, {huge:.1} ns in huge pages: measured\n",
                "random read in 256 MiB"
            ));
        }
        if let Some(cold) = self.measured.cold_permille {
            text.push_str(&format!(
                "{:<28} {:>6.1} %   of fresh memory just now: measured\n",
                "cold",
                cold as f64 / 10.0
            ));
        }
        if let (Some(base), Some(huge)) = (self.measured.base_ns, self.measured.huge_ns) {
            text.push_str(&format!(
                "{:<28} {:>6} pages of 512 touched, warm and a block free\n",
                "a huge page pays from",
                huge.div_ceil(base.max(1))
            ));
        }
        if let Some(free) = view.free_huge.value() {
            text.push_str(&format!(
                "{:<28} {free:>6} blocks of order 9 and above\n",
                "free just now"
            ));
        }
        if let (Some(load), Some(used)) = (view.load.value(), view.used.value()) {
            let (load, used) = (load as f64 / 100.0, used as f64 / 10.0);
            text.push_str(&format!(
                "{:<28} {load:>6.2} on {} CPUs, {used:.1} % of memory in use\n",
                "load", view.cpus
            ));
        }
        for (what, why) in &self.measured.not_measured {
            text.push_str(&format!("not measured: {what}: {why}\n"));
        }
        text.push_str(&format!("took {}\n", Nanos(self.measured.took_ns).plain()));
        text
    }
}

/// Where costs are kept, best first.
fn files(linux: &Linux) -> Vec<PathBuf> {
    files_called(linux, "huge-costs.json")
}

/// Where a file of this name is kept, best first.
pub(crate) fn files_called(linux: &Linux, name: &str) -> Vec<PathBuf> {
    files_of(loan::directory(linux), name, |name| std::env::var_os(name))
}

/// The same for an environment. A variable that holds no absolute path counts as not set, as the XDG base directory
/// specification has it.
fn files_of(
    system: PathBuf,
    file: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<PathBuf> {
    let place = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let own = place("XDG_RUNTIME_DIR")
        .or_else(|| place("XDG_CACHE_HOME"))
        .or_else(|| Some(place("HOME")?.join(".cache")));
    let mut directories = vec![system];
    directories.extend(own.map(|own| own.join("pagemill")));
    directories.into_iter().map(|directory| directory.join(file)).collect()
}

/// Seconds since 1970 UTC.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn of_file(path: &Path) -> Option<Calibration> {
    serde_json::from_slice(&pagemill_model::whole::read(path, pagemill_model::whole::TEXT).ok()?)
        .ok()
}

/// The costs of this boot on file. Pages of 64 KiB have a cost only while the system gives them; costs that lack it
/// then are of no use.
///
/// # Errors
/// The kernel does not name this boot.
pub fn on_file(linux: &Linux) -> Result<Option<Calibration>> {
    let boot = linux.boot()?;
    let medium = linux.thp_medium().is_some_and(|choice| choice.active != "never");
    Ok(files(linux).into_iter().find_map(|path| {
        let mut known = of_file(&path)?;
        let whole = known.boot == boot && (known.measured.medium_ns.is_some() || !medium);
        known.measured.medium_ns = known.measured.medium_ns.filter(|_| medium);
        whole.then_some(known)
    }))
}

impl Calibration {
    /// Whether they are to be measured again when there is time.
    pub fn is_old(&self) -> bool {
        now().saturating_sub(self.measured_unix_s) > STANDS.as_secs()
    }
}

/// The last costs of this boot; measured now if there are none.
///
/// # Errors
/// As of [`on_file`]; they cannot be measured.
pub fn latest(linux: &Linux) -> Result<Calibration> {
    on_file(linux)?.map_or_else(|| measure(linux), Ok)
}

/// The costs of this hour: those on file, or measured now. `fresh` measures in any case.
///
/// # Errors
/// As of [`latest`].
pub fn calibrate(linux: &Linux, fresh: bool) -> Result<Calibration> {
    let known = on_file(linux)?.filter(|known| !fresh && !known.is_old());
    known.map_or_else(|| measure(linux), Ok)
}

/// Measures, and keeps the answer.
fn measure(linux: &Linux) -> Result<Calibration> {
    let measured = huge_costs::measure(linux).context("cannot measure what huge pages cost")?;
    let known = Calibration { boot: linux.boot()?, measured_unix_s: now(), measured };
    // Pages of 64 KiB cannot be timed while the system gives none, and whoever borrows them for a program would have to
    // begin again.
    let before = files(linux).into_iter().find_map(|path| of_file(&path));
    let before =
        before.filter(|before| before.boot == known.boot).and_then(|it| it.measured.medium_ns);
    let mut kept = known.clone();
    kept.measured.medium_ns = kept.measured.medium_ns.or(before);
    let text = serde_json::to_vec_pretty(&kept)?;
    // Where nothing can be kept, it is measured each time.
    for path in files(linux) {
        if keep(&path, &text).is_ok() {
            break;
        }
    }
    Ok(known)
}

/// Puts it in place, with its directory.
pub(crate) fn keep(path: &Path, text: &[u8]) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    pagemill_model::whole::replace(path, text, 0o644)
}

/// A view with the machine's figures as they are now, for regions to be filled in.
pub fn machine_view(linux: &Linux, known: &Calibration) -> View {
    let mut view = View {
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        mhz: linux.mhz().ok().flatten().unwrap_or(0),
        cold: known.measured.cold_permille.map_or(Figure::Absent, Figure::Measured),
        costs: known.costs(),
        ..View::default()
    };
    refresh(linux, &mut view);
    view
}

/// Reads again what changes by the moment: load and memory.
pub fn refresh(linux: &Linux, view: &mut View) {
    if let Ok(load) = linux.load() {
        view.load = Figure::Measured(load.hundredths);
        let used = load.memory.saturating_sub(load.available);
        view.used = Figure::Measured(used.saturating_mul(1000) / load.memory.max(1));
    }
    // As the published estimator and the indices do, the zones that programs get their memory from.
    if let Ok(mut zones) = linux.buddyinfo() {
        zones.retain(|zone| zone.zone != "DMA");
        let blocks = fragmentation::together(zones.iter().map(|zone| zone.blocks.as_slice()));
        let free: u64 = blocks.iter().skip(9).sum();
        let score = fragmentation::unusable(&blocks, Order(9));
        view.free_huge = Figure::Measured(free);
        view.unusable = u64::try_from(score.0).map_or(Figure::Absent, Figure::Measured);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_kept_where_the_environment_says() {
        let files = |set: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            files_of("/run/pagemill".into(), "huge-costs.json", value)
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        let home = ("HOME", "/home/a");
        let cache = ("XDG_CACHE_HOME", "/var/b");
        let system = "/run/pagemill/huge-costs.json".to_owned();
        assert_eq!(files(&[])[0], system);
        assert_eq!(files(&[home])[1], "/home/a/.cache/pagemill/huge-costs.json");
        assert_eq!(files(&[home, cache])[1], "/var/b/pagemill/huge-costs.json");
        assert_eq!(files(&[home, ("XDG_CACHE_HOME", "b")])[1], files(&[home])[1]);
        let runtime = ("XDG_RUNTIME_DIR", "/run/user/7");
        assert_eq!(
            files(&[home, cache, runtime]),
            [system, "/run/user/7/pagemill/huge-costs.json".into()]
        );
    }

    /// `plan` said of a program that fills 46 huge pages that there was nothing to weigh: of 32 fresh huge pages four
    /// had been cold and of the base pages none, so a chance of cold memory met no cost of it, and base faults had no
    /// price.
    #[test]
    fn a_base_fault_has_a_price_where_only_huge_pages_were_seen_cold() {
        use pagemill_policy::huge::{Moment, Unit, find};
        let measured = HugeCosts {
            base_ns: Some(2_100),
            huge_ns: Some(371_700),
            huge_cold_ns: Some(1_907_700),
            cold_permille: Some(125),
            fetch_ns: Some(280_000),
            ..HugeCosts::default()
        };
        let mut known = Calibration { measured, ..Calibration::default() };
        let costs = known.costs();
        assert_eq!(costs.base_cold, Figure::Modelled(2_100 + 3_000));
        let view = View {
            moment: Moment::Ahead,
            cpus: 2,
            present: Figure::Measured(0),
            expected: Figure::Measured(512),
            profile_huge: Figure::Modelled(0),
            unit: Unit::Cycles,
            free_huge: Figure::Measured(100),
            load: Figure::Measured(20),
            used: Figure::Measured(30),
            cold: Figure::Measured(125),
            costs,
            ..View::default()
        };
        let decision = find("cbmm+").unwrap().decide(&view);
        assert!(decision.action.makes_huge(), "{decision}");
        // Whoever wrote the file: figures beyond all bounds are no sum that wraps.
        let measured = HugeCosts { base_ns: Some(u64::MAX), ..known.measured.clone() };
        let absurd = Calibration { measured, ..Calibration::default() };
        assert_eq!(absurd.costs().base_cold, Figure::Modelled(u64::MAX));
        known.measured.base_cold_ns = Some(20_000);
        assert_eq!(known.costs().base_cold, Figure::Measured(20_000));
    }

    #[test]
    fn costs_are_measured_once_an_hour_of_a_boot() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/sys/kernel/random/boot_id", "one\n");
        put("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n");
        put("proc/loadavg", "0.10 0.20 0.30 1/2 3\n");
        put("proc/cpuinfo", "cpu MHz : 2000.0\n");
        put(
            "proc/buddyinfo",
            "Node 0, zone      DMA 1 0 0 0 0 0 0 0 0 1 2\nNode 0, zone   Normal 4 0 0 0 0 0 0 0 0 3 1\n",
        );
        let linux = Linux::at(root.path());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let known = Calibration {
            boot: "one".into(),
            measured_unix_s: now,
            measured: HugeCosts { base_ns: Some(1100), ..HugeCosts::default() },
        };
        let path = files(&linux).remove(0);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, serde_json::to_vec(&known).unwrap()).unwrap();
        assert_eq!(calibrate(&linux, false).unwrap(), known);
        let view = machine_view(&linux, &known);
        assert_eq!((view.load, view.used), (Figure::Measured(10), Figure::Measured(600)));
        assert_eq!((view.mhz, view.free_huge), (2000, Figure::Measured(4)));
        assert_eq!((view.costs.base, view.costs.stall), (Figure::Measured(1100), Figure::Absent));
        let old = Calibration { measured_unix_s: now - 4000, ..known };
        fs::write(&path, serde_json::to_vec(&old).unwrap()).unwrap();
        assert_eq!(latest(&linux).unwrap(), old, "no program waits for new ones");
        assert!(old.is_old() && calibrate(&linux, false).unwrap().measured_unix_s >= now);

        let mut medium = old;
        medium.measured.medium_ns = Some(9_000);
        fs::write(&path, serde_json::to_vec(&medium).unwrap()).unwrap();
        assert_eq!(calibrate(&linux, true).unwrap().measured.medium_ns, None, "there are none now");
        let kept = of_file(&path).unwrap();
        assert_eq!(kept.measured.medium_ns, Some(9_000), "as last seen");

        put("proc/sys/kernel/random/boot_id", "two\n");
        let again = calibrate(&linux, false).unwrap();
        assert_eq!(
            (again.boot.as_str(), calibrate(&linux, false).unwrap()),
            ("two", again.clone())
        );
        assert!(again.measured.base_ns.is_some());
    }
}
