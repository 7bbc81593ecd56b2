//! What a policy may look at, gathered: the machine now, what the mechanisms cost here, and a region of the program.
//!
//! | figure | from |
//! |---|---|
//! | free blocks, memory in use | the machine, every 50 ms |
//! | load | the average of the last minute; for `cbmm+` the CPUs that others kept busy in the last 0.2 s |
//! | costs | the last of this boot (`plan --costs`); of pages and collapses, what the library measures |
//! | growth | the library |
//! | a stall | [`STALL_NS`], modelled; once the library has made huge pages, part of what those cost |
//! | pages that will be touched | all, while a region grows in order; modelled |
//! | pool, bloat | the library |
//! | benefit of a huge page | the profile; absent without one |
//!
//! The helpers of `cbmm+` work for milliseconds, and count for none of its load. Costs are renewed each hour, after a
//! run of a minute or more; `auto` does without rather than wait for them.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_model::page::{HUGE, PER_HUGE};
use pagemill_policy::huge::profile::{self, Mapping, Profile};
use pagemill_policy::huge::{Figure, Moment, Section, View};
use pagemill_prefault::board::{Kind, Process, ProcessWord, Region, RegionWord};

use crate::costs::{self, Calibration};

/// Half way between the median and the ninth decile of direct compaction for one huge page.
const STALL_NS: u64 = 500_000;

/// What is known of a process's latest doing.
#[derive(Clone, Copy, Debug)]
pub struct RecentCosts {
    /// Its library has made huge pages of late, so that it knows what they cost.
    pub huge: bool,
    /// The same of smaller pages.
    pub base: bool,
    /// How fast it grows, bytes a millisecond.
    pub growth: Figure,
}

/// What holds for all processes, looked at now and then.
#[derive(Debug)]
pub struct Machine {
    linux: Linux,
    now: View,
    /// Whether the load is that of now instead of the last minute.
    recent: bool,
    /// When the busy CPUs were counted last, idle time and that of the helpers until then.
    counted: (Instant, u64, Duration),
    busy: Figure,
    /// What the mechanisms cost here, as far as is known.
    known: Calibration,
    /// Whether it was looked at.
    seen: bool,
}

impl Machine {
    /// Finds out what the mechanisms cost here, and looks a first time.
    /// `recent`: how busy the CPUs are now counts as the load, instead of the average of the last minute.
    pub fn new(linux: &Linux, recent: bool) -> Result<Self> {
        let mut machine = Self::with(linux, recent, costs::latest(linux)?);
        machine.measure();
        Ok(machine)
    }

    /// The same with the costs that are on file, and without a look until the first [`Machine::refresh`]: for a program
    /// that may end before there is something to decide.
    pub fn unseen(linux: &Linux, recent: bool) -> Result<Self> {
        Ok(Self::with(linux, recent, costs::on_file(linux)?.unwrap_or_default()))
    }

    fn with(linux: &Linux, recent: bool, known: Calibration) -> Self {
        let now = View { costs: known.costs(), ..View::default() };
        let counted = (Instant::now(), 0, Duration::ZERO);
        let (linux, busy) = (linux.clone(), Figure::Absent);
        Self { linux, now, recent, counted, busy, known, seen: false }
    }

    fn measure(&mut self) {
        let now = costs::machine_view(&self.linux, &self.known);
        self.counted.0 = Instant::now();
        self.counted.1 = self.linux.idle_ticks().unwrap_or(0);
        // Until a first window is over: who wants a CPU now, with the program in the place of this process.
        let runnable = self.linux.runnable();
        self.busy = runnable.map_or(now.load, |threads| Figure::Measured(threads * 100));
        self.now = if self.recent { View { load: self.busy, ..now } } else { now };
        self.seen = true;
    }

    /// Finds out anew what the mechanisms cost if that is not of this hour, now that nobody waits.
    pub fn renew(&self) -> Result<()> {
        if self.known.is_old() {
            costs::calibrate(&self.linux, false)?;
        }
        Ok(())
    }

    /// Reads memory and load again; `helpers` is the CPU time that the libraries' threads have taken until now.
    pub fn refresh(&mut self, helpers: Duration) {
        if !self.seen {
            self.counted.2 = helpers;
            return self.measure();
        }
        costs::refresh(&self.linux, &mut self.now);
        if self.recent {
            self.count_busy_cpus(helpers);
            self.now.load = self.busy;
        }
    }

    /// How many CPUs others than the helpers keep busy, in hundredths. A helper's own time is not what it competes
    /// with: a program of one thread and its helper on two CPUs take nothing from each other.
    fn count_busy_cpus(&mut self, helpers: Duration) {
        const WINDOW: Duration = Duration::from_millis(200);
        const TICKS_A_SECOND: f64 = 100.0;
        let (then, before, helped) = self.counted;
        let passed = then.elapsed();
        if passed < WINDOW {
            return;
        }
        let Ok(idle) = self.linux.idle_ticks() else { return };
        let idle_cpus =
            (idle.saturating_sub(before)) as f64 / TICKS_A_SECOND / passed.as_secs_f64();
        let helper_cpus = helpers.saturating_sub(helped).as_secs_f64() / passed.as_secs_f64();
        let busy = (self.now.cpus as f64 - idle_cpus - helper_cpus).max(0.0) * 100.0;
        // With the window before: a program comes and goes by milliseconds.
        let before = self.busy.value().map_or(busy, |before| before as f64);
        self.busy = Figure::Measured(((busy + before) / 2.0) as u64);
        self.counted = (Instant::now(), idle, helpers);
    }

    /// Bytes that may be had without swapping.
    pub fn available(&self) -> u64 {
        self.linux.load().map_or(u64::MAX, |load| load.available)
    }

    /// The view of any chunk of a region that grows in order, before anything is known of one.
    pub fn typical(&self, moment: Moment, section: Section) -> View {
        let mut view = View {
            moment,
            section,
            batch: 1,
            present: Figure::Measured(0),
            expected: Figure::Modelled(PER_HUGE),
            ..self.now
        };
        view.costs.stall = Figure::Modelled(STALL_NS);
        // Whether memory is cold changes by the minute, and the figure on file is of the boot. What the library
        // measures tells of now.
        view.cold = Figure::Absent;
        // That it grows has to be seen.
        view.growth = Figure::Modelled(0);
        view
    }

    /// The view of the next chunk of a region of `process`.
    pub fn of(
        &self,
        process: Process<'_>,
        region: Region<'_>,
        moment: Moment,
        fresh: RecentCosts,
    ) -> View {
        let mut view = self.next(process, section(region), moment, fresh);
        view.address = region.get(RegionWord::Touched) / HUGE * HUGE;
        view
    }

    /// The view of a chunk of the next region of `process`.
    pub fn next(
        &self,
        process: Process<'_>,
        section: Section,
        moment: Moment,
        fresh: RecentCosts,
    ) -> View {
        let mut view = self.typical(moment, section);
        let measured = |word| Some(process.get(word)).filter(|ns| *ns > 0).map(Figure::Measured);
        if let Some(huge) = measured(ProcessWord::HugeNs).filter(|_| fresh.huge) {
            view.costs.huge = huge;
            // Whatever it waited for is in that.
            view.costs.stall = Figure::Measured(0);
        }
        if let Some(base) =
            Some(process.get(ProcessWord::BaseNs) / PER_HUGE).filter(|ns| *ns > 0 && fresh.base)
        {
            view.costs.base = Figure::Measured(base);
        }
        if let Some(medium) = measured(ProcessWord::MediumNs).filter(|_| fresh.base) {
            view.costs.medium = medium;
        }
        if fresh.growth != Figure::Absent {
            view.growth = fresh.growth;
        }
        if let Some(collapse) = measured(ProcessWord::CollapseNs) {
            view.costs.collapse = collapse;
        }
        view.pool = Figure::Measured(process.get(ProcessWord::Pool));
        let resident = process.get(ProcessWord::Resident).max(1);
        view.bloat =
            Figure::Measured(process.get(ProcessWord::Untouched).saturating_mul(1000) / resident);
        view
    }
}

/// The section that a region lies in.
pub fn section(region: Region<'_>) -> Section {
    match Kind::from_word(region.get(RegionWord::Kind)) {
        Kind::Heap => Section::Heap,
        Kind::Mapping => Section::Mmap,
    }
}

/// Fills in what a profile says about the place that the view is of; `top` is the end of the area that the kernel maps
/// into, `site` who made the memory there.
pub fn profiled(
    view: &mut View,
    profile: &Profile,
    region: Region<'_>,
    top: u64,
    site: Option<String>,
) {
    let (start, end) = (region.get(RegionWord::Start), region.get(RegionWord::End));
    let base = if view.section == Section::Heap { start } else { top };
    profiled_in(
        view,
        profile,
        &Mapping { start, end, section: view.section, base, site, ..Mapping::default() },
    );
}

/// The same, for a chunk of a mapping.
pub fn profiled_in(view: &mut View, profile: &Profile, mapping: &Mapping) {
    let at = view.address.max(mapping.start);
    let benefit = |kind| {
        let ranges = profile.ranges(kind, mapping);
        let range = ranges.into_iter().find(|range| range.start <= at && at < range.end);
        Figure::Modelled(range.map_or(0, |range| range.benefit))
    };
    view.unit = profile.unit;
    view.profile_huge = benefit(profile::Kind::Huge);
    view.profile_eager = benefit(profile::Kind::Eager);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first `run --huge auto` of a boot measured for a second and a half before the program began.
    #[test]
    fn a_program_that_may_end_at_once_waits_for_no_measurement_and_no_look() {
        let root = tempfile::tempdir().unwrap();
        let boot = root.path().join("proc/sys/kernel/random/boot_id");
        std::fs::create_dir_all(boot.parent().unwrap()).unwrap();
        std::fs::write(&boot, "a boot of which nothing is on file\n").unwrap();
        let mut machine = Machine::unseen(&Linux::at(root.path()), true).unwrap();
        let view = machine.typical(Moment::Ahead, Section::Mmap);
        assert_eq!((view.cpus, view.costs.base), (View::default().cpus, Figure::Absent));
        machine.refresh(Duration::ZERO);
        let view = machine.typical(Moment::Ahead, Section::Mmap);
        assert!(view.cpus > 0);
        assert_eq!(view.costs.base, Figure::Absent);
        assert!(!root.path().join("run").exists(), "something was measured and kept");
    }
}
