//! `--with pressure`: how long tasks have waited for memory, of the machine and of the process's cgroup.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::process::psi::{self, Resource};
use pagemill_kernel::{Linux, clock};
use pagemill_model::event::PressureSample;
use pagemill_model::recording::Writer;
use pagemill_model::{Event, EventKind, Nanos};

use super::recorder::{Recorder, RecorderKind, Start};

/// The word `pressure`.
pub const KIND: RecorderKind = RecorderKind {
    name: "pressure",
    about: "How long tasks wait for memory: pressure stall information",
    writes: &[EventKind::Pressure],
    pane: None,
    start: Start::Plain,
    attach: |linux, process, options| {
        linux.pressure(Resource::Memory)?;
        let cgroup = linux.memory_cgroup(process.pid).ok().and_then(|group| group.pressure_file());
        let interval = options.interval;
        Ok(Some(Box::new(Pressure { linux: linux.clone(), cgroup, interval, looks: 0 })))
    },
};

/// Looks at pressure once an interval.
struct Pressure {
    linux: Linux,
    /// The pressure file of the process's cgroup.
    cgroup: Option<PathBuf>,
    interval: Duration,
    looks: u64,
}

impl Recorder for Pressure {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        let machine = self.linux.pressure(Resource::Memory)?;
        // A cgroup goes with its last process.
        let cgroup = self.cgroup.as_deref().and_then(|file| psi::read_file(file).ok());
        let total = |stall: psi::Stall| Nanos::from(stall.total);
        let sample = PressureSample {
            time: Nanos::from(clock::monotonic()),
            some: Some(total(machine.some)),
            full: machine.full.map(total),
            cgroup_some: cgroup.map(|cgroup| total(cgroup.some)),
            cgroup_full: cgroup.and_then(|cgroup| cgroup.full).map(total),
        };
        writer.event(&Event::Pressure(Box::new(sample)))?;
        self.looks += 1;
        Ok(())
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        let meta = writer.meta_mut();
        meta.capabilities.push("/proc/pressure/memory".into());
        if self.cgroup.is_none() {
            let why = "its memory cgroup has no pressure file (cgroup v2, and not the root's)";
            meta.lacks("pressure of the cgroup", why);
        }
        Ok(())
    }

    fn amount(&self) -> String {
        format!("{} looks at pressure", self.looks)
    }
}
