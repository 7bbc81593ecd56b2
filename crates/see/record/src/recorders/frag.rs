//! `--with frag`: the machine's free memory by zone and order.

use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::{Linux, page_size};
use pagemill_model::frag::FragSample;
use pagemill_model::recording::Writer;
use pagemill_model::units::counted;
use pagemill_model::{Bytes, Event, EventKind, Nanos};

use super::recorder::{Recorder, RecorderKind, Start};
use crate::free_memory::FreeMemory;

/// The word `frag`.
pub const KIND: RecorderKind = RecorderKind {
    name: "frag",
    about: "Free memory of the machine by zone and order: how fragmented it is",
    writes: &[EventKind::Frag],
    pane: Some("frag"),
    start: Start::Plain,
    attach: |linux, _, options| Ok(Some(Box::new(Frag::attach(linux.clone(), options.interval)?))),
};

/// Looks at free memory once an interval.
pub struct Frag {
    linux: Linux,
    interval: Duration,
    looks: u64,
}

impl Frag {
    /// Will look; fails if it may not.
    ///
    /// # Errors
    /// As of [`FreeMemory::quick`].
    pub fn attach(linux: Linux, interval: Duration) -> Result<Self> {
        FreeMemory::quick(&linux)?;
        Ok(Self { linux, interval, looks: 0 })
    }
}

impl Recorder for Frag {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        let look = FreeMemory::quick(&self.linux)?;
        let bytes = |pages: u64| Bytes(pages * page_size() as u64);
        for zone in look.zones {
            let sample = FragSample {
                time: Nanos::from(look.time),
                node: Some(zone.node.into()),
                zone: Some(zone.zone),
                free_blocks: Some(zone.blocks),
                hidden: zone.hidden.map(bytes),
                managed: zone.managed.map(bytes),
            };
            writer.event(&Event::Frag(Box::new(sample)))?;
        }
        self.looks += 1;
        Ok(())
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        writer.meta_mut().capabilities.push("/proc/buddyinfo".into());
        Ok(())
    }

    fn amount(&self) -> String {
        counted(self.looks, "look at free memory", "looks at free memory")
    }
}
