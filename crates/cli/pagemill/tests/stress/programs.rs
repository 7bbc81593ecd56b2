//! The system's own programs do exactly what they do without the library: same output, same status, in every
//! configuration.
//!
//! Each is a script of `tests/programs`, run in an empty folder; the shell runs on the heap as well. What differs from
//! run to run anyway (times, process numbers) the script leaves out.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::harness::{
    CONFIGS, Heap, Outcome, REMAP, Run, folder, installed, program, shared, skip, soak,
};
use crate::setting;

struct Program {
    name: &'static str,
    needs: &'static [&'static str],
    /// A file of `tests/programs`.
    script: &'static str,
    /// Seconds of CPU, about: the slow ones run in three configurations unless this is a soak.
    slow: bool,
}

/// What the python scripts share.
const PYTHON: &str = include_str!("../programs/python.sh");

macro_rules! script {
    ($file:literal) => {
        include_str!(concat!("../programs/", $file))
    };
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "python3 test_json",
        needs: &["python3"],
        script: script!("python_json.sh"),
        slow: true,
    },
    Program {
        name: "python3 test_pickle",
        needs: &["python3"],
        script: script!("python_pickle.sh"),
        slow: true,
    },
    Program {
        name: "python3 test_fork1",
        needs: &["python3"],
        script: script!("python_fork1.sh"),
        slow: true,
    },
    Program {
        name: "python3 forks",
        needs: &["python3"],
        script: script!("python_forks.sh"),
        slow: false,
    },
    Program { name: "perl", needs: &["perl"], script: script!("perl.sh"), slow: false },
    Program { name: "ruby", needs: &["ruby"], script: script!("ruby.sh"), slow: false },
    Program { name: "sqlite3", needs: &["sqlite3"], script: script!("sqlite3.sh"), slow: false },
    Program { name: "gcc", needs: &["gcc", "awk"], script: script!("gcc.sh"), slow: true },
    Program { name: "cargo build", needs: &["cargo"], script: script!("cargo.sh"), slow: true },
    Program {
        name: "redis-server",
        needs: &["redis-server", "redis-cli", "redis-benchmark", "awk"],
        script: script!("redis.sh"),
        slow: true,
    },
    Program { name: "node", needs: &["node"], script: script!("node.sh"), slow: false },
    Program { name: "git gc", needs: &["git"], script: script!("git.sh"), slow: true },
    Program {
        name: "pipelines",
        needs: &["awk", "sort", "sha256sum"],
        script: script!("pipelines.sh"),
        slow: false,
    },
    Program { name: "xz -T2", needs: &["xz", "awk"], script: script!("xz.sh"), slow: false },
];

fn run_script(script: &str, heap: Option<Heap>) -> Outcome {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let place = folder().join(format!(
        "program-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&place).expect("the target folder can be written");
    let mut run = Run::new("bash")
        .args(["-c", script])
        .within(&place)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .limit(240);
    if let Some(heap) = heap {
        // Warnings of the heap are no part of what a program prints.
        run = run.on(heap).env("PAGEMILL_QUIET", "1");
    }
    let outcome = run.outcome();
    let _ = std::fs::remove_dir_all(&place);
    outcome
}

/// Runs the script without and with the library under each heap; what differs.
fn differences(name: &str, script: &str, heaps: &[Heap]) -> Vec<String> {
    let plain = run_script(script, None);
    assert!(plain.status.success(), "{name} fails without the library\n{plain}");
    let mut different = Vec::new();
    for &heap in heaps {
        let outcome = run_script(script, Some(heap));
        if outcome.stdout != plain.stdout || outcome.status != plain.status {
            different.push(format!(
                "{name} under {heap:?}: expected\n{}\nfound\n{outcome}",
                plain.stdout
            ));
        }
    }
    different
}

fn missing(program: &Program) -> Option<&'static str> {
    program.needs.iter().copied().find(|command| !installed(command))
}

fn run_all(programs: &[&Program], heaps: impl Fn(&Program) -> Vec<Heap>) {
    let mut different = Vec::new();
    for program in programs {
        if let Some(command) = missing(program) {
            skip(program.name, &format!("{command} is not installed"));
            continue;
        }
        let mut script = program.script.to_owned();
        if program.name.starts_with("python3") {
            script.insert_str(0, PYTHON);
            if program.name.contains("test_")
                && !run_script(
                    &format!("{PYTHON}$python -c 'import test.test_fork1, test.test_pickle'"),
                    None,
                )
                .status
                .success()
            {
                skip(
                    program.name,
                    "python's own tests are not installed (run: apt-get install libpython3-testsuite)",
                );
                continue;
            }
        }
        let start = std::time::Instant::now();
        let heaps = heaps(program);
        different.extend(differences(program.name, &script, &heaps));
        eprintln!(
            "{}: {} configurations in {:.1} s",
            program.name,
            heaps.len(),
            start.elapsed().as_secs_f64()
        );
    }
    assert!(different.is_empty(), "{} runs differ:\n{}", different.len(), different.join("\n\n"));
}

fn of_speed(slow: bool) -> Vec<&'static Program> {
    PROGRAMS.iter().filter(|program| program.slow == slow).collect()
}

#[test]
fn quick_programs_are_identical_in_every_configuration() {
    let _machine = shared();
    run_all(&of_speed(false), |_| CONFIGS.to_vec());
}

#[test]
fn slow_programs_are_identical_in_the_default_and_others_in_turn() {
    let _machine = shared();
    let programs = of_speed(true);
    run_all(&programs, |program| {
        if soak().is_some() {
            return CONFIGS.to_vec();
        }
        // The default always; hardened and one of the rest, another one for each program.
        let place = PROGRAMS.iter().position(|other| other.name == program.name).unwrap_or(0);
        let rest = ["0n", "2y", "1n", "0y", "2n"][place % 5];
        vec![REMAP, Heap { config: "h", ..REMAP }, Heap { config: rest, ..REMAP }]
    });
}

#[test]
fn programs_are_identical_under_ksm() {
    let _machine = shared();
    let _ksm = match setting::ksm() {
        Ok(guard) => guard,
        Err(why) => return skip("the KSM back end", &why),
    };
    let ksm = Heap { config: "1y", backend: "ksm" };
    let programs: Vec<&Program> = PROGRAMS
        .iter()
        .filter(|program| {
            soak().is_some() || matches!(program.name, "perl" | "ruby" | "sqlite3" | "redis-server")
        })
        .collect();
    run_all(&programs, |_| vec![ksm]);
}

#[test]
fn a_program_that_uses_aligned_new_is_identical_in_every_configuration() {
    let _machine = shared();
    let Some(aligned) = program("aligned_new.cpp") else { return };
    let wrong = differences("aligned new", &quoted(&aligned), &CONFIGS);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}
