//! Slurm: all cells as one job array.
//!
//! A task of the array has a node to itself, is queued again when its node fails, and runs one cell; more cells than an
//! array may have tasks are dealt out, so that a task runs every `stride`th. What a cluster wants said besides
//! (partition, account, time limit, constraint) `sbatch` reads from the environment: `SBATCH_PARTITION` and so on.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_launch::files;
use pagemill_model::shell::quoted;

/// The file of the job.
pub const FILE: &str = "job.sh";

/// Tasks of an array, by Slurm's default (`MaxArraySize`).
const MOST: usize = 1000;

/// The most tasks that an array may have here.
pub fn most() -> usize {
    let said = Command::new("scontrol").args(["show", "config"]).stderr(Stdio::null()).output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    most_in(&said.unwrap_or_default())
}

/// The same, by the answer of `scontrol show config`.
pub fn most_in(said: &str) -> usize {
    let size = said.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "MaxArraySize").then(|| value.trim().parse::<usize>().ok())?
    });
    // Indices are below the size, and ours begin at 1.
    size.map_or(MOST, |size| size.saturating_sub(1)).clamp(1, MOST)
}

/// The job: cells `left` of `all`, which are numbered from 1.
pub fn script(results: &str, all: usize, left: &[usize], most: usize) -> String {
    let stride = all.min(most).max(1);
    let mut tasks: Vec<usize> = left.iter().map(|number| (number - 1) % stride + 1).collect();
    tasks.sort_unstable();
    tasks.dedup();
    format!(
        "#!/bin/bash\n\
         #SBATCH --job-name=pagemill\n\
         #SBATCH --array={}\n\
         #SBATCH --nodes=1\n\
         #SBATCH --exclusive\n\
         #SBATCH --mem=0\n\
         #SBATCH --requeue\n\
         #SBATCH --open-mode=append\n\
         #SBATCH --output=\"{results}/log/%a.txt\"\n\
         # Task N runs cells N, N + {stride}, … of {all}. Finished cells take no time.\n\
         status=0\n\
         for cell in $(seq \"$SLURM_ARRAY_TASK_ID\" {stride} {all}); do\n    \
             sh {} \"$cell\" || status=$?\n    \
             [ \"$status\" -lt 128 ] || break\n\
         done\n\
         exit \"$status\"\n",
        ranges(&tasks),
        quoted(format!("{results}/cell.sh"))
    )
}

/// Numbers as Slurm takes them: `1-3,7`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let words = parts.iter().map(|&(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

/// Nodes that do not take jobs, with the state that Slurm gives them.
pub fn down() -> Vec<(String, String)> {
    let asked = ["-h", "-N", "-o", "%N %T"];
    let said = Command::new("sinfo").args(asked).stderr(Stdio::null()).output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    out_of_order(&said.unwrap_or_default())
}

/// The same, by the answer of `sinfo -h -N -o "%N %T"`.
pub fn out_of_order(said: &str) -> Vec<(String, String)> {
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    let mut nodes: Vec<(String, String)> = lines
        .filter(|(_, state)| {
            let bad = ["down", "drain", "fail", "unknown", "no_respond", "power"];
            state.ends_with('*') || bad.iter().any(|bad| state.starts_with(bad))
        })
        .map(|(node, state)| (node.to_owned(), state.trim().to_owned()))
        .collect();
    // A node is listed once for each of its partitions.
    nodes.sort();
    nodes.dedup();
    nodes
}

/// Writes the job.
///
/// # Errors
/// Where it cannot be written.
pub fn write(results: &Path, script: &str) -> Result<()> {
    let log = results.join("log");
    std::fs::create_dir_all(&log).with_context(|| format!("cannot make {}", log.display()))?;
    files::write(&results.join(FILE), script, true)
}

/// Submits the job and returns its number.
///
/// # Errors
/// Without Slurm, and with what it says against the job.
pub fn submit(results: &Path) -> Result<String> {
    let job = results.join(FILE);
    let output = match Command::new("sbatch").arg("--parsable").arg(&job).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "there is no sbatch here (run: apt-get install slurm-client, or submit {} where there is)",
            job.display()
        ),
        output => output.context("cannot run sbatch")?,
    };
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "sbatch took no job: {said} (the job is {})", job.display());
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(said.split(';').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_a_task_for_each_cell_that_is_left_and_at_most_as_many_as_it_may() {
        let script = |all, left: &[usize], most| super::script("/my results", all, left, most);
        let text = script(9, &[1, 2, 3, 7], 1000);
        assert!(text.contains("#SBATCH --array=1-3,7\n"), "{text}");
        for line in ["--exclusive", "--requeue", "--output=\"/my results/log/%a.txt\""] {
            assert!(text.contains(&format!("#SBATCH {line}\n")), "{text}");
        }
        assert!(
            text.contains("seq \"$SLURM_ARRAY_TASK_ID\" 9 9")
                && text.contains("'/my results/cell.sh'")
        );
        let text = script(25, &[3, 13, 14, 23], 10);
        assert!(text.contains("#SBATCH --array=3-4\n") && text.contains(" 10 25)"), "{text}");
    }

    #[test]
    fn nodes_that_take_no_jobs_are_named_once() {
        let said = "n1 idle\nn2 down*\nn2 down*\nn3 allocated\nn4 drained\nn5 mixed*\n";
        let names: Vec<_> = out_of_order(said).into_iter().map(|(node, _)| node).collect();
        assert_eq!(names, ["n2", "n4", "n5"]);
    }
}
