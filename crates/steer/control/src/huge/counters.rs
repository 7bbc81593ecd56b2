//! The processor's counters in the runs of `advise --places`: how long page walks took, and in which parts of the
//! program's memory accesses walked.
//!
//! One run is sampled, others are counted, so that sampling is in no count. Samples are those of the processor alone
//! (PEBS, IBS), for only they say whether an access found its address in a TLB.

use std::time::Duration;

use anyhow::Result;
use pagemill_analysis::walks::Counted;
use pagemill_kernel::trace::access_samples::{Sampled, Samples, Source, ThreadEvent};
use pagemill_kernel::trace::page_walks::{Counting, PageWalks};
use pagemill_kernel::{Error, Kind, Linux};
use pagemill_model::Pid;
use pagemill_model::perf_data::walked;
use pagemill_tracer::advise::Watch;

/// Events of the processor between two samples: loads and stores, or cycles.
const PERIOD: u64 = 50_000;

/// Counters that work here.
pub struct Counters {
    linux: Linux,
    walks: PageWalks,
    source: Source,
}

impl Counters {
    /// Tries out whether walks are counted and accesses sampled; an error says why not.
    pub fn find(linux: &Linux) -> Result<Self> {
        let walks = PageWalks::find(linux)?;
        let samples = Samples::follow(linux, &[Pid::own()], PERIOD, true)?;
        let source = hardware(&samples)?;
        Ok(Self { linux: linux.clone(), walks, source })
    }

    /// What is counted and sampled, in words.
    pub fn name(&self) -> String {
        format!("{}, sampled by {}", self.walks.name, self.source.name())
    }

    /// For a run that is sampled.
    pub fn sampling(&self) -> Sampling<'_> {
        Sampling { linux: &self.linux, samples: None }
    }

    /// For a run that is counted.
    pub fn counting(&self) -> CountedRun<'_> {
        CountedRun { counters: self, counting: None }
    }
}

/// The source of samples, if it is the processor.
fn hardware(samples: &Samples) -> pagemill_kernel::Result<Source> {
    match samples.source() {
        Source::Clock => Err(Error::new(
            Kind::Unsupported,
            "sample",
            "accesses that walked page tables",
            samples.not_used().join("; "),
        )),
        source => Ok(source),
    }
}

/// A run whose accesses are sampled; those that walked are told.
pub struct Sampling<'a> {
    linux: &'a Linux,
    samples: Option<Samples>,
}

impl Watch for Sampling<'_> {
    fn suspended(&mut self, pid: Pid) -> pagemill_kernel::Result<()> {
        let samples = Samples::follow(self.linux, &[pid], PERIOD, true)?;
        hardware(&samples)?;
        self.samples = Some(samples);
        Ok(())
    }

    fn accesses(&mut self, each: &mut dyn FnMut(Pid, u64)) {
        let Some(samples) = &mut self.samples else { return };
        samples.read(|_, told| {
            if let ThreadEvent::Sample(sample) = told
                && let Sampled::Access { address, data_source, .. } = sample.what
                && walked(data_source) == Some(true)
            {
                each(sample.process, address);
            }
        });
    }
}

/// A run whose walks are counted.
pub struct CountedRun<'a> {
    counters: &'a Counters,
    counting: Option<Counting>,
}

impl Watch for CountedRun<'_> {
    fn suspended(&mut self, pid: Pid) -> pagemill_kernel::Result<()> {
        self.counting = Some(self.counters.walks.open(&self.counters.linux, pid)?);
        Ok(())
    }

    fn accesses(&mut self, _: &mut dyn FnMut(Pid, u64)) {}
}

impl CountedRun<'_> {
    /// What was counted in the run, which took `cpu` of processor time.
    pub fn counted(&self, cpu: Duration) -> Result<Option<Counted>> {
        let counted = self.counting.as_ref().map(|counting| counting.read(cpu)).transpose()?;
        Ok(counted.map(|counted| Counted { walks: counted.walks, kernel: counted.kernel }))
    }
}
