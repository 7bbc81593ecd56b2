//! A recording as a workload of the simulated machine.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use pagemill_analysis::addresses::ProcessAddress;
use pagemill_analysis::page_heat::{MOST, PageHeat, PageHeatFold};
use pagemill_model::recording::Meta;
use pagemill_model::{Event, Fold as _, Nanos, Source as _, page};
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::recorded;
use pagemill_sim::run::Setup;
use pagemill_sim::surface::Sampling;
use pagemill_sim::sweep::Sweep;
use pagemill_sim::workload::{self, Workload};

/// What of a recording makes a workload, from its events.
pub struct Program {
    meta: Meta,
    tids: BTreeSet<u64>,
    heat: PageHeatFold,
    /// Of a page that is told apart.
    bytes: u64,
}

impl Program {
    /// Nothing yet, of a recording that ended then.
    fn until(meta: &Meta, ended: Nanos) -> Self {
        let middle = meta.started.0 + ended.since(meta.started).0 / 2;
        let touched = meta.datasets.iter().any(|dataset| dataset == "touched");
        let bytes = if touched { page::BASE } else { page::HUGE };
        let heat = PageHeatFold::new(Nanos(middle), bytes);
        Self { meta: meta.clone(), tids: BTreeSet::new(), heat, bytes }
    }

    /// Nothing yet, of the recording at `path`, which has this header. One that was cut off is read for when that was.
    ///
    /// # Errors
    /// It is damaged.
    pub fn begin(path: &Path, meta: &Meta) -> Result<Self> {
        let mut last = meta.ended;
        if last.is_none() {
            let mut reader = pagemill_launch::context::recording(path, false)?;
            while let Some(event) = reader.next_event()? {
                last = Some(event.time());
            }
        }
        Ok(Self::until(meta, last.unwrap_or(meta.started)))
    }

    /// The next event.
    pub fn event(&mut self, event: &Event) {
        if let Event::Access(access) = event {
            self.tids.extend(access.tid);
        }
        self.heat.event(event);
    }

    /// The program, whose cores do between two reads what those of `like` do, and whether it has as many threads as
    /// that because the recording does not say.
    ///
    /// # Errors
    /// The recording at `path` tells of more pages than are placed one by one, or not how often memory was accessed.
    pub fn workload(self, path: &Path, like: &Workload) -> Result<(Workload, bool)> {
        let Self { meta, tids, heat, bytes } = self;
        let known = heat.pages();
        if known > MOST {
            bail!(
                "{} tells of {known} pages that were touched, more than the {MOST} that are placed one by one: it is \
                 damaged, or of too large a program",
                path.display()
            );
        }
        let page = |(at, heat): (ProcessAddress, PageHeat)| recorded::Page {
            address: at.address,
            bytes: bytes as f64,
            before: heat.before,
            after: heat.after,
        };
        let pages: Vec<recorded::Page> = heat.view().into_iter().map(page).collect();
        // A thread that was seen to access memory, in older recordings.
        let threads = meta.threads.or((!tids.is_empty()).then_some(tids.len() as u64));
        let cores = threads.map_or(like.cores, |threads| threads.clamp(1, 1024) as usize);
        let like = Workload { cores, ..like.clone() };
        let load = recorded::workload(&pages, &like).with_context(|| {
            format!(
                "{} does not say how often memory was accessed: it has {} ({} is what a placement needs: \
                 pagemill tier -p PID --record DIR, or pagemill record --with accesses -o DIR -- CMD)",
                path.display(),
                if meta.datasets.is_empty() { "no dataset".to_owned() } else { meta.datasets.join(", ") },
                if pages.is_empty() { "the dataset tiers or touched" } else { "a longer recording of a busier \
                                                                               program" },
            )
        })?;
        Ok((load, threads.is_none()))
    }
}

/// The program of a recording: [`Program::workload`].
///
/// # Errors
/// It is none, is damaged, or those of [`Program::workload`].
pub fn program(path: &Path, like: &Workload) -> Result<(Workload, bool)> {
    let mut reader = pagemill_launch::context::recording(path, false)?;
    let mut program = Program::begin(path, reader.meta())?;
    while let Some(event) = reader.next_event()? {
        program.event(&event);
    }
    program.workload(path, like)
}

/// A recorded program on the built-in machine, ready to be placed on a fast tier of any size: one whose reads wait for
/// none of the others, and one whose reads each wait for the one before; a recording does not tell which it is. Both do
/// nothing but read. `tick` is called after each point of what the tiers do, with its number and their count.
///
/// # Errors
/// Those of [`Program::workload`].
pub fn sweeps(
    program: Program,
    path: &Path,
    tick: &mut dyn FnMut(usize, usize),
) -> Result<[Sweep; 2]> {
    let machine = Machine::parse(ICELAKE).context("the built-in machine")?;
    let like =
        |name| workload::named(name, &machine).with_context(|| format!("no workload {name}"));
    let (load, _) = program.workload(path, &like("zipf")?)?;
    let waiting = Workload { step: like("chase")?.step, ..load.clone() };
    let mut sweep = |number, load| {
        let mut tick = |at, of| tick(number * of + at, 2 * of);
        sweep(machine.clone(), load, &mut tick)
    };
    Ok([sweep(0, load), sweep(1, waiting)])
}

fn sweep(machine: Machine, load: Workload, tick: &mut dyn FnMut(usize, usize)) -> Sweep {
    let setup = Setup {
        machine,
        workload: load,
        policy: "none".to_owned(),
        steps: 0.0,
        later_steps: None,
        // The second half of a recording is where its hot set has moved to.
        moves_at: Some(0.0),
        seconds: 1.0,
        scale: 1.0,
        noise: 0.0,
        seed: 1,
        sampling: Sampling { seed: 1, ..Sampling::default() },
    };
    let pages = setup.workload.bytes() / setup.page_bytes();
    let scale = (pages / f64::from(1 << 20)).max(1.0);
    Sweep::prepare(&Setup { scale, ..setup }, tick)
}
