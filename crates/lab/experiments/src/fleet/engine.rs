//! What runs cells on machines: Slurm, or GNU parallel.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_kernel::process::signal;
use pagemill_launch::exit::Exit;
use pagemill_launch::progress::minutes;

use super::matrix::Matrix;
use super::scripts::SubmitHost;
use super::{parallel, slurm};
use crate::registry;
use crate::reproduce::experiment;
use crate::reproduce::plan::say_skipped;
use crate::reproduce::target::ENDING;
use pagemill_launch::exit::Interrupted;
use pagemill_launch::meant::meant;

/// What runs cells on machines.
#[derive(Debug)]
pub enum Engine {
    /// One job array.
    Slurm,
    /// These hosts, by ssh.
    Parallel(Vec<String>),
}

impl Engine {
    /// The engine of these words.
    ///
    /// # Errors
    /// They name none.
    pub fn of(words: &[String]) -> Result<Self> {
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
                let known = |host: &&String| {
                    let named = std::slice::from_ref(*host);
                    registry::names().contains(&host.as_str())
                        || experiment::select(named, &[]).is_ok()
                };
                if let Some(name) = hosts.iter().find(known) {
                    bail!(
                        "{name} is an experiment and no host: --on parallel host1,host2 {name} (: is this one)"
                    );
                }
                ensure!(
                    odd.is_none() && !hosts.is_empty(),
                    "--on parallel HOST,…: no host is so called"
                );
                Ok(Self::Parallel(hosts))
            }
            _ => {
                let engine = words.first().map_or("", String::as_str);
                // What follows a wrong name may be an experiment.
                let meant = meant(engine, ["slurm", "parallel"].into_iter());
                bail!("there is no engine {engine:?}{meant}; valid: slurm, parallel HOST,…")
            }
        }
    }
}

impl Engine {
    /// What would be submitted, as a script or a line for the shell.
    ///
    /// # Errors
    /// The name of the results directory cannot be written down.
    pub fn dry(
        &self,
        submitter: &SubmitHost<'_>,
        matrix: &Matrix,
        left: &[usize],
    ) -> Result<String> {
        let results = submitter.results()?;
        let text = match self {
            Self::Slurm => slurm::script(results, matrix.cells.len(), left, slurm::most()),
            Self::Parallel(hosts) => parallel::line(&parallel::words(results, hosts)) + "\n",
        };
        notice!("{}; nothing was written or submitted", amount(matrix, left));
        Ok(text)
    }

    /// Writes the matrix and runs the cells that are left.
    ///
    /// # Errors
    /// Files cannot be written, or the engine fails.
    pub fn submit(
        &self,
        submitter: &SubmitHost<'_>,
        matrix: &Matrix,
        left: &[usize],
    ) -> Result<Exit> {
        let results = submitter.results;
        fs::create_dir_all(results)
            .with_context(|| format!("cannot make {}", results.display()))?;
        matrix.write(results)?;
        submitter.write()?;
        say_skipped(&matrix.skipped);
        if left.is_empty() {
            notice!("all {} cells are finished", matrix.cells.len());
            next(results);
            return Ok(Exit::Ok);
        }
        match self {
            Self::Slurm => to_slurm(submitter, matrix, left),
            Self::Parallel(hosts) => to_parallel(submitter, matrix, left, hosts),
        }
    }
}

fn amount(matrix: &Matrix, left: &[usize]) -> String {
    let time = minutes(Duration::from_secs_f64(matrix.seconds(left)));
    format!("{} of {} cells, about {time} on one machine", left.len(), matrix.cells.len())
}

fn next(results: &Path) {
    eprintln!("next: pagemill collect {}", pagemill_model::shell::quoted(results));
}

fn to_slurm(submitter: &SubmitHost<'_>, matrix: &Matrix, left: &[usize]) -> Result<Exit> {
    let script = slurm::script(submitter.results()?, matrix.cells.len(), left, slurm::most());
    slurm::write(submitter.results, &script)?;
    for (node, state) in slurm::down() {
        notice!("node {node} is {state}; its share goes to the others");
    }
    let job = slurm::submit(submitter.results)?;
    notice!("job {job}: {}; logs in {}/log", amount(matrix, left), submitter.results()?);
    notice!("to see it: squeue -j {job}; to end it: scancel {job}");
    next(submitter.results);
    Ok(Exit::Ok)
}

fn to_parallel(
    submitter: &SubmitHost<'_>,
    matrix: &Matrix,
    left: &[usize],
    hosts: &[String],
) -> Result<Exit> {
    let signals = signal::Signals::block(ENDING)?;
    let (up, down) = match parallel::answering(submitter.executable, hosts, &signals) {
        Err(error) => return error.downcast().map(Interrupted::exit),
        Ok(answered) => answered,
    };
    for (host, why) in &down {
        notice!("host {host} is down after three tries: {why}");
    }
    parallel::write(submitter.results, matrix, left)?;
    if up.is_empty() {
        notice!("no host is up; not run:");
        left.iter().for_each(|number| eprintln!("  {}", matrix.cells[number - 1]));
        return Ok(Exit::Unsupported);
    }
    notice!("{} on {}", amount(matrix, left), up.join(", "));
    let ended = parallel::run(&parallel::words(submitter.results()?, &up), &signals)?;
    let still = matrix.left(submitter.results)?;
    if !still.is_empty() {
        notice!("not finished, each tried three times; the same command goes on with:");
    }
    for number in &still {
        let last = parallel::last(submitter.results, *number);
        let last = last.map_or(String::new(), |last| format!(" (last {last})"));
        eprintln!("  {}{last}", matrix.cells[number - 1]);
    }
    next(submitter.results);
    Ok(match (ended, still.is_empty()) {
        (Some(by), _) => by.exit(),
        (None, true) => Exit::Ok,
        (None, false) => Exit::Finding,
    })
}
