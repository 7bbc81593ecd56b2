//! `reproduce --on` and `--cell`: the cells of a run on many machines, and one of them.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_kernel::{Linux, signal};
use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_launch::progress::minutes;
use serde_json::json;

use pagemill_experiments::fleet::matrix::{self, Matrix, Name};
use pagemill_experiments::fleet::scripts::Here;
use pagemill_experiments::fleet::{parallel, slurm};
use pagemill_experiments::reproduce::arm::Machine;
use pagemill_experiments::reproduce::cell::Cell;
use pagemill_experiments::reproduce::experiment;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::keep::{self, Keep};
use pagemill_experiments::reproduce::outcome::Outcome;
use pagemill_experiments::reproduce::plan::{Options, Plan, Skipped};
use pagemill_experiments::reproduce::series;
use pagemill_experiments::reproduce::target::{Interrupted, Stage};
use pagemill_experiments::{fragmentation, huge_pages};

use super::{ALONE, Arguments, Asked, ENDING, OTHERS, say_skipped};

/// What runs cells on machines.
enum Engine {
    Slurm,
    Parallel(Vec<String>),
}

impl Engine {
    fn of(words: &[String]) -> Result<Self> {
        match words {
            [slurm] if slurm == "slurm" => Ok(Self::Slurm),
            [parallel] if parallel == "parallel" => {
                bail!("on whose machines? for example: --on parallel host1,host2 (: is this one)")
            }
            [parallel, hosts] if parallel == "parallel" => {
                let mut hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
                hosts.retain(|host| !host.is_empty());
                // A host that begins so would be an option of ssh.
                let odd = hosts.iter().find(|host| host.starts_with('-'));
                ensure!(
                    odd.is_none() && !hosts.is_empty(),
                    "--on parallel HOST,…: no host is so called"
                );
                Ok(Self::Parallel(hosts))
            }
            _ => bail!("there is no engine {:?}; valid: slurm, parallel HOST,…", words.join(" ")),
        }
    }
}

impl Arguments {
    /// Writes the cells of what was asked for and has an engine run those that are left.
    pub(super) fn submit(&self, on: &[String]) -> Result<Exit> {
        // `--on slurm NAME`: what follows is an experiment.
        let (on, more) = match on {
            [slurm, name] if slurm == "slurm" => (&on[..1], Some(name.clone())),
            _ => (on, None),
        };
        let engine = Engine::of(on)?;
        let experiments = self.experiments.iter().cloned().chain(more).collect();
        let matrix = Self { experiments, ..self.clone() }.matrix()?;
        if matrix.cells.is_empty() {
            say_skipped(&matrix.skipped);
            eprintln!("pagemill: nothing of what was asked for can run here");
            return Ok(Exit::Unsupported);
        }
        let results = std::path::absolute(self.directory()).context("the results directory")?;
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let linux = Linux::live();
        let here = Here { linux: &linux, executable: &executable, results: &results };
        let left = match results.join(matrix::FILE).exists() {
            true => matrix.left(&results)?,
            false => (1..=matrix.cells.len()).collect(),
        };
        if self.dry_run {
            return dry(&engine, &here, &matrix, &left);
        }
        let holds = fs::read_dir(&results).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(
            !holds || self.force || results.join(matrix::FILE).exists(),
            "{} is not empty (choose another with -o, or write into it with -f)",
            results.display()
        );
        fs::create_dir_all(&results)
            .with_context(|| format!("cannot make {}", results.display()))?;
        matrix.write(&results)?;
        here.write()?;
        say_skipped(&matrix.skipped);
        if left.is_empty() {
            eprintln!("pagemill: all {} cells are finished", matrix.cells.len());
            next(&results);
            return Ok(Exit::Ok);
        }
        match engine {
            Engine::Slurm => to_slurm(&here, &matrix, &left),
            Engine::Parallel(hosts) => to_parallel(&here, &matrix, &left, &hosts),
        }
    }

    fn matrix(&self) -> Result<Matrix> {
        let asked = &self.experiments;
        self.check(asked)?;
        let of = Asked::of(asked);
        let alone = asked.iter().filter(|name| ALONE.contains(&name.as_str()));
        let names: Vec<String> =
            of.names.iter().filter(|name| !ALONE.contains(&name.as_str())).cloned().collect();
        let programs = of.all || !names.is_empty();
        let experiments = if programs { experiment::select(&names, &OTHERS)? } else { Vec::new() };
        let options = self.options();
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let inputs = Inputs::new(executable.clone(), self.seed)?;
        let plan = Plan::new(experiments, &options, &mut Machine::detect(&executable), &inputs)?;
        let signals = signal::Signals::block(&[])?;
        let mut matrix =
            self.matrix_of(&of.apart(), &plan, &stage(&signals, executable), &inputs)?;
        for name in alone.cloned() {
            matrix.cells.push(name);
            matrix.seconds.push(None);
        }
        Ok(matrix)
    }

    /// The cells of a plan and of what was asked for that has tables of its own.
    fn matrix_of(
        &self,
        apart: &[&'static str],
        plan: &Plan,
        stage: &Stage<'_>,
        inputs: &Inputs,
    ) -> Result<Matrix> {
        let (mut cells, mut seconds, mut skipped) = (Vec::new(), Vec::new(), plan.skipped.clone());
        for scheduled in &plan.scheduled {
            for cell in scheduled.cells() {
                cells.push(cell.name());
                seconds.push(Some(scheduled.experiment.seconds * scheduled.scale));
            }
        }
        for &name in apart {
            let Some(mut series) = self.series(name, stage, inputs)? else {
                cells.push(name.to_owned());
                seconds.push(None);
                continue;
            };
            skipped.extend(series.leave_out(None).into_iter().map(|reason| Skipped {
                experiment: name.to_owned(),
                arm: None,
                reason,
            }));
            for turn in series.turns() {
                cells.push(turn.cell.name());
                seconds.push(Some(turn.seconds));
            }
        }
        Ok(Matrix {
            schema: 1,
            experiments: self.experiments.clone(),
            programs: self.programs.clone(),
            options: self.options(),
            cells,
            skipped,
            machine: super::machine_facts(),
            seconds,
        })
    }

    /// Writes down which cells a run on this machine has, so that who collects them knows what is missing.
    pub(super) fn write_plan(
        &self,
        asked: &Asked,
        plan: &Plan,
        stage: &Stage<'_>,
        inputs: &Inputs,
        results: &Path,
    ) -> Result<()> {
        let mut apart = asked.apart();
        let programs = plan.scheduled.iter().map(|scheduled| scheduled.experiment.name.as_str());
        let of: Vec<&str> = programs.chain(apart.iter().copied()).collect();
        apart.retain(|name| match *name {
            fragmentation::NAME => fragmentation::missing(&stage.linux).is_none(),
            huge_pages::NAME => huge_pages::missing(&stage.linux).is_none(),
            _ => true,
        });
        self.matrix_of(&apart, plan, stage, inputs)?.plan(results, &of)
    }

    /// Runs one cell of the matrix in the results directory, unless it is finished.
    pub(super) fn one_cell(&self, called: &str) -> Result<Exit> {
        let results = self.output.as_deref().context("--cell is of a results directory: -o DIR")?;
        let results = std::path::absolute(results).context("the results directory")?;
        let matrix = Matrix::read(&results)?;
        match matrix.cell(called)? {
            Name::Program(cell) => self.cell(&matrix, &results, &cell),
            Name::Whole(name) => self.whole(&matrix, &results, &name),
        }
    }

    /// A cell of any experiment that has more than one.
    fn cell(&self, matrix: &Matrix, results: &Path, cell: &Cell) -> Result<Exit> {
        let keep = Keep::new(results)?;
        if keep.holds(cell) {
            eprintln!("pagemill: {} is finished", cell.name());
            return Ok(Exit::Ok);
        }
        // Before any other thread exists: signals are waited for.
        let signals = signal::Signals::block(ENDING)?;
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let inputs = Inputs::new(executable.clone(), matrix.options.seed)?;
        let stage = stage(&signals, executable);
        // What was chosen for one experiment alone is not for another of the same matrix.
        let inner = self.of(matrix, matrix.experiments.clone(), None);
        let run = match inner.series(&cell.experiment, &stage, &inputs)? {
            Some(mut series) => {
                let (kept, _) = keep::all(results)?;
                let so_far = kept.into_iter().filter(|(one, _)| one.experiment == cell.experiment);
                let so_far = so_far.map(|(one, kept)| (one, kept.outcome()));
                let so_far = so_far.collect::<Vec<_>>();
                let run = series::one(series.as_mut(), cell, &so_far, &stage, &keep);
                run.and_then(|run| run.context("it is no cell of its experiment here"))
            }
            None => program(matrix, cell, &stage, &inputs, &keep),
        };
        match run {
            Err(error) if error.is::<Interrupted>() => {
                eprintln!("pagemill: {} was interrupted, and is not finished", cell.name());
                Ok(Exit::Code(130))
            }
            Err(error) => Err(error),
            Ok(Err(why)) => {
                eprintln!("pagemill: {} failed: {why}", cell.name());
                Ok(Exit::Finding)
            }
            Ok(Ok(_)) => {
                eprintln!("pagemill: {} is finished", cell.name());
                Ok(Exit::Ok)
            }
        }
    }

    /// What would run experiments of a matrix here.
    fn of(&self, matrix: &Matrix, experiments: Vec<String>, output: Option<PathBuf>) -> Self {
        let options = matrix.options.clone();
        Self {
            experiments,
            list: false,
            quick: options.quick,
            reps: options.repetitions,
            arms: options.arms,
            programs: matrix.programs.clone(),
            seed: options.seed,
            scale: options.scale,
            settle: options.settle,
            output,
            force: true,
            json: false,
            from_kept: None,
            on: None,
            dry_run: false,
            cell: None,
        }
    }

    /// All of an experiment that is one cell, in a directory of its own.
    fn whole(&self, matrix: &Matrix, results: &Path, name: &str) -> Result<Exit> {
        let directory = matrix::whole_directory(results, name);
        let done = matrix::done_mark(results, name);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let _lock = locked(&directory.join("lock"))?;
        if done.exists() {
            eprintln!("pagemill: {name} is finished");
            return Ok(Exit::Ok);
        }
        // Chosen arms are those of others in the same matrix.
        let alone = self.of(matrix, vec![name.to_owned()], Some(directory));
        let exit = Self { arms: None, ..alone }.run()?;
        if matches!(exit, Exit::Ok | Exit::Finding) {
            let mark = json!({ "host": keep::host(), "failed": exit == Exit::Finding });
            files::write(&done, format!("{mark}\n"), true)?;
        }
        Ok(exit)
    }
}

/// Where a cell runs.
pub(super) fn stage(signals: &signal::Signals, executable: PathBuf) -> Stage<'_> {
    Stage { linux: Linux::live(), executable, signals, every: Duration::from_millis(100) }
}

/// A run of a program on an allocator.
fn program(
    matrix: &Matrix,
    cell: &Cell,
    stage: &Stage<'_>,
    inputs: &Inputs,
    keep: &Keep,
) -> Result<Result<Outcome, String>> {
    let options = Options { arms: Some(vec![cell.arm.to_owned()]), ..matrix.options.clone() };
    let experiments = experiment::select(std::slice::from_ref(&cell.experiment), &OTHERS)?;
    let named = experiments[0].clone();
    let mut machine = Machine::detect(&stage.executable);
    let plan = Plan::new(experiments, &options, &mut machine, inputs)?;
    plan.run_cell((cell, &named), stage, inputs, &options, keep)
}

/// Waits until nobody else holds the file.
fn locked(path: &Path) -> Result<File> {
    let cannot = || format!("cannot write {}", path.display());
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let mut file = open.with_context(cannot)?;
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        eprintln!("pagemill: waiting for who holds {}", path.display());
        file.lock().with_context(cannot)?;
    }
    file.set_len(0).with_context(cannot)?;
    let words = format!("on {}, process {}\n", keep::host(), std::process::id());
    std::io::Write::write_all(&mut file, words.as_bytes()).with_context(cannot)?;
    Ok(file)
}

fn dry(engine: &Engine, here: &Here<'_>, matrix: &Matrix, left: &[usize]) -> Result<Exit> {
    let results = here.results()?;
    match engine {
        Engine::Slurm => {
            print!("{}", slurm::script(results, matrix.cells.len(), left, slurm::most()));
        }
        Engine::Parallel(hosts) => {
            println!("{}", parallel::line(&parallel::words(results, hosts)));
        }
    }
    eprintln!("pagemill: {}; nothing was written or submitted", amount(matrix, left));
    Ok(Exit::Ok)
}

fn amount(matrix: &Matrix, left: &[usize]) -> String {
    let seconds = matrix.seconds(left);
    let time = minutes(Duration::from_secs_f64(seconds));
    let unknown = left.iter().filter(|number| matrix.seconds[*number - 1].is_none()).count();
    let more = match unknown {
        0 => String::new(),
        more => format!(" and {more} whole experiments"),
    };
    format!("{} of {} cells, about {time} on one machine{more}", left.len(), matrix.cells.len())
}

fn next(results: &Path) {
    eprintln!("next: pagemill collect {}", results.display());
}

fn to_slurm(here: &Here<'_>, matrix: &Matrix, left: &[usize]) -> Result<Exit> {
    let script = slurm::script(here.results()?, matrix.cells.len(), left, slurm::most());
    slurm::write(here.results, &script)?;
    for (node, state) in slurm::down() {
        eprintln!("pagemill: node {node} is {state}; its share goes to the others");
    }
    let job = slurm::submit(here.results)?;
    eprintln!("pagemill: job {job}: {}; logs in {}/log", amount(matrix, left), here.results()?);
    eprintln!("pagemill: to see it: squeue -j {job}; to end it: scancel {job}");
    next(here.results);
    Ok(Exit::Ok)
}

fn to_parallel(here: &Here<'_>, matrix: &Matrix, left: &[usize], hosts: &[String]) -> Result<Exit> {
    let signals = signal::Signals::block(ENDING)?;
    let (up, down) = parallel::answering(here.executable, hosts, &signals)?;
    for (host, why) in &down {
        eprintln!("pagemill: host {host} is down after three tries: {why}");
    }
    parallel::write(here.results, matrix, left)?;
    if up.is_empty() {
        eprintln!("pagemill: no host is up; not run:");
        left.iter().for_each(|number| eprintln!("  {}", matrix.cells[number - 1]));
        return Ok(Exit::Unsupported);
    }
    eprintln!("pagemill: {} on {}", amount(matrix, left), up.join(", "));
    let ended = parallel::run(&parallel::words(here.results()?, &up), &signals)?;
    let still = matrix.left(here.results)?;
    if !still.is_empty() {
        eprintln!("pagemill: not finished, each tried three times; the same command goes on with:");
    }
    for number in &still {
        let last = parallel::last(here.results, *number);
        let last = last.map_or(String::new(), |last| format!(" (last {last})"));
        eprintln!("  {}{last}", matrix.cells[number - 1]);
    }
    next(here.results);
    Ok(match (ended, still.is_empty()) {
        (true, _) => Exit::Code(130),
        (false, true) => Exit::Ok,
        (false, false) => Exit::Finding,
    })
}
