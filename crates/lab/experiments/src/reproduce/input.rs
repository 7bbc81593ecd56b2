//! Inputs of packaged programs, made once a run in a scratch directory, and the programs
//! themselves: found, and their versions checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use pagemill_kernel::process::locked_directory::LockedDirectory;
use pagemill_workloads::{generate, programs as workloads};

use super::browser;
use super::experiment::{Experiment, Input, Packaged, Program};
use super::packages::{Unsuitable, find};
use super::target;

/// Makes and keeps the inputs of a run; they go when this is dropped.
pub struct Inputs {
    directory: LockedDirectory,
    executable: PathBuf,
    seed: u64,
}

/// A program with how its result is checked.
pub struct CheckedProgram {
    /// What to start.
    pub program: target::Program,
    /// How its output is judged.
    pub check: Check,
}

/// How an output is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// It is the same in every arm.
    Same,
    /// This file, which the program writes, is the same in every arm.
    SameFile(PathBuf),
    /// Its lines that begin so are the same in every arm, and there are some.
    SameLines(String),
    /// It has this many lines that begin so, and is otherwise free.
    Lines(&'static str, usize),
    /// It is the JSON line of `pagemill workload`.
    Report,
}

fn unsuitable<T>(why: String) -> Result<T> {
    Err(Unsuitable(why).into())
}

impl Inputs {
    /// An empty set.
    ///
    /// # Errors
    /// No scratch directory can be made.
    pub fn new(executable: PathBuf, seed: u64) -> Result<Self> {
        let place = std::env::temp_dir();
        let directory = LockedDirectory::new_in(&place, "pagemill-reproduce")
            .with_context(|| format!("cannot make a scratch directory in {}", place.display()))?;
        Ok(Self { directory, executable, seed })
    }

    /// The scratch directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Builds everything that `case` of `experiment` needs, at `scale` of its full size.
    ///
    /// # Errors
    /// A program is not installed, or an input cannot be made.
    pub fn build(&self, experiment: &Experiment, case: &str, scale: f64) -> Result<CheckedProgram> {
        let scaled = |full: usize| ((full as f64 * scale) as usize).max(1);
        let at = |name: &str| self.directory().join(name);
        let mut program = target::Program {
            output: at("output"),
            complaints: at("complaints"),
            ..target::Program::default()
        };
        let check = match &experiment.program {
            Program::Redis(_) => {
                program.path = find("redis-server", "redis-server")?;
                Check::Same
            }
            Program::Ruby { megabytes, rounds, sleep_seconds } => {
                program.path = suitable_ruby()?;
                let script = at("strings.rb");
                self.make(&script, |out| out.write_all(generate::RUBY_STRINGS.as_bytes()))?;
                let seconds = (sleep_seconds * scale.min(1.0)).to_string();
                let numbers =
                    [scaled(*megabytes as usize).to_string(), rounds.to_string(), seconds];
                program.arguments = vec![script.into()];
                program.arguments.extend(numbers.map(Into::into));
                Check::Same
            }
            Program::Spamassassin { messages } => {
                let messages = scaled(*messages);
                let script = find("spamassassin", "spamassassin")?;
                program.path = find("perl", "perl")?;
                let mailbox = at("mailbox");
                self.make(&mailbox, |out| generate::mailbox(out, messages, self.seed))?;
                // No network, no learning, no files in the user's home.
                program.arguments = vec!["-T".into(), "-w".into(), script.into()];
                for option in ["-L", "-t", "-x", "--cf=use_bayes 0", "--mbox"] {
                    program.arguments.push(option.into());
                }
                program.arguments.push(mailbox.into());
                program.environment = vec![("HOME".into(), self.directory().into())];
                Check::Lines("X-Spam-Status:", messages)
            }
            Program::Compiler { functions, level } => {
                self.compiler(scaled(*functions), level, &mut program)?
            }
            Program::Sqlite { rows } => {
                program.path = find("sqlite3", "sqlite3")?;
                let script = at("script.sql");
                let rows = scaled(*rows);
                self.make(&script, |out| generate::sql_script(out, rows, self.seed))?;
                program.arguments =
                    vec!["-batch".into(), "-init".into(), "/dev/null".into(), ":memory:".into()];
                program.input = Some(script);
                Check::Same
            }
            Program::Browser(page) => {
                let one = page.browsers.iter().find(|one| one.name() == case);
                program = browser::program(*one.context("no such browser")?, program)?;
                Check::Same
            }
            Program::Packaged(programs) => {
                let one = programs.iter().find(|one| one.case == case);
                let one = one.with_context(|| format!("no case {case:?}"))?;
                self.packaged(one, scale, &mut program)?
            }
            Program::Workload { threads, seconds, hold_seconds, .. } => {
                program.path = self.executable.clone();
                let each = [("threads", threads.to_string()), ("hold", hold_seconds.to_string())];
                let scaled = [("seconds", seconds * scale), ("scale", scale)];
                program.arguments = vec!["workload".into(), case.into()];
                let scaled = scaled.map(|(name, value)| (name, value.to_string()));
                let seed = [("seed", self.seed.to_string())];
                let taken = workloads::find(case).context("no such workload")?;
                let all = each.into_iter().chain(scaled).chain(seed);
                for (name, value) in all.filter(|(name, _)| taken.takes(name)) {
                    program.arguments.extend([format!("--{name}").into(), value.into()]);
                }
                Check::Report
            }
        };
        Ok(CheckedProgram { program, check })
    }

    /// A C compiler without its driver, on a file of so many functions.
    fn compiler(
        &self,
        functions: usize,
        level: &str,
        program: &mut target::Program,
    ) -> Result<Check> {
        program.path = compiler_proper()?;
        let [source, assembly] = ["large.c", "large.s"].map(|name| self.directory().join(name));
        self.make(&source, |out| generate::c_program(out, functions, self.seed))?;
        program.arguments = vec!["-quiet".into(), level.into(), source.into(), "-o".into()];
        program.arguments.push(assembly.clone().into());
        Ok(Check::SameFile(assembly))
    }

    /// Where a packaged program is, or what to install.
    ///
    /// # Errors
    /// What to install.
    pub fn path_of(&self, one: &Packaged) -> Result<PathBuf> {
        match one.run.as_str() {
            "pagemill" => Ok(self.executable.clone()),
            name => find(name, &one.package),
        }
    }

    /// A packaged program with the inputs that it reads.
    fn packaged(&self, one: &Packaged, scale: f64, program: &mut target::Program) -> Result<Check> {
        let at = |name: &str| self.directory().join(name);
        program.path = self.path_of(one)?;
        let mut inputs = BTreeMap::new();
        for (&input, &full) in &one.inputs {
            let size = ((full as f64 * scale) as usize).max(1);
            let path = at(&format!("{}-{size}", input.name()));
            self.make(&path, |out| write_input(out, input, size, self.seed))?;
            inputs.insert(input, path);
        }
        let filled = |text: &str| {
            let text = text.replace("{out}", &at("out").display().to_string());
            let text = text.replace("{scale}", &(scale * one.scale).to_string());
            let text = text.replace("{seed}", &self.seed.to_string());
            inputs.iter().fold(text, |text, (input, path)| {
                text.replace(&format!("{{{}}}", input.name()), &path.display().to_string())
            })
        };
        program.arguments = one.arguments.iter().map(|text| filled(text).into()).collect();
        if let Some(input) = one.standard_input {
            let path = inputs.get(&input).context("its standard input is none of its inputs")?;
            program.input = Some(path.clone());
        }
        Ok(match (&one.same_file, &one.same_lines) {
            _ if one.run == "pagemill" => Check::Report,
            (Some(file), _) => Check::SameFile(filled(file).into()),
            (None, Some(start)) => Check::SameLines(start.clone()),
            (None, None) => Check::Same,
        })
    }

    /// Writes a file unless it is there: inputs are functions of the seed and the scale, which do
    /// not change within a run.
    fn make(
        &self,
        path: &Path,
        write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
    ) -> Result<()> {
        if path.exists() {
            return Ok(());
        }
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut out = BufWriter::new(file);
        write(&mut out)
            .and_then(|()| out.flush())
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

fn write_input<W: Write>(out: &mut W, input: Input, size: usize, seed: u64) -> std::io::Result<()> {
    match input {
        Input::Prose => generate::prose(out, size, seed),
        Input::Articles => generate::articles(out, size, seed),
        Input::Stylesheet => out.write_all(generate::STYLESHEET.as_bytes()),
        Input::Queries => generate::queries(out, size, seed),
        Input::Proteins => generate::proteins(out, size, seed),
        Input::GoGame => generate::go_game(out, size, seed),
        Input::Film => generate::film(out, size, seed),
        Input::Scene => generate::scene(out, size, seed),
    }
}

/// A limit after which a cell is given up.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The programs that an experiment runs, each with how to get it where it is not here.
pub fn needs(experiment: &Experiment) -> Vec<String> {
    let programs: Vec<(&str, &str)> = match &experiment.program {
        Program::Redis(_) => vec![("redis-server", "redis-server")],
        Program::Ruby { .. } => vec![("ruby", "ruby")],
        Program::Spamassassin { .. } => vec![("perl", "perl"), ("spamassassin", "spamassassin")],
        Program::Compiler { .. } => vec![("gcc", "gcc")],
        Program::Sqlite { .. } => vec![("sqlite3", "sqlite3")],
        Program::Packaged(programs) => {
            let packaged = programs.iter().filter(|one| one.run != "pagemill");
            packaged.map(|one| (one.run.as_str(), one.package.as_str())).collect()
        }
        Program::Browser(page) => {
            let all: BTreeSet<_> =
                page.browsers.iter().flat_map(|one| browser::needs(*one)).collect();
            all.into_iter().collect()
        }
        Program::Workload { .. } => Vec::new(),
    };
    let words = |(name, package): (&str, &str)| match find(name, package) {
        Ok(_) => name.to_owned(),
        Err(_) => format!("{name} (not here: apt-get install {package})"),
    };
    programs.into_iter().map(words).collect()
}

fn suitable_ruby() -> Result<PathBuf> {
    let path = find("ruby", "ruby")?;
    let output = Command::new(&path)
        .args(["-e", "print RUBY_VERSION"])
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    match keeps_strings_in_malloc(&version) {
        Some(true) => Ok(path),
        Some(false) => unsuitable(format!(
            "Ruby {version} keeps strings of up to 640 bytes in its own heap, where no malloc sees them; \
             this experiment needs Ruby 3.1 or older"
        )),
        None => unsuitable(format!("{} says its version is {version:?}", path.display())),
    }
}

/// Whether this version allocates all but the shortest strings by malloc; `None` if it is no version.
fn keeps_strings_in_malloc(version: &str) -> Option<bool> {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((major, minor) < (3, 2))
}

/// gcc's compiler proper: the driver itself allocates next to nothing.
///
/// # Errors
/// There is no gcc, or it does not say where its compiler is.
pub fn compiler_proper() -> Result<PathBuf> {
    let gcc = find("gcc", "gcc")?;
    let output = Command::new(&gcc)
        .arg("-print-prog-name=cc1")
        .output()
        .with_context(|| format!("cannot run {}", gcc.display()))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if path.is_absolute() && path.is_file() {
        return Ok(path);
    }
    unsuitable(format!("{} has no cc1 (run: apt-get install gcc)", gcc.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rubies_that_embed_strings_are_refused() {
        assert_eq!(keeps_strings_in_malloc("3.1.2"), Some(true));
        assert_eq!(keeps_strings_in_malloc("2.7.0"), Some(true));
        assert_eq!(keeps_strings_in_malloc("3.2.0"), Some(false));
        assert_eq!(keeps_strings_in_malloc("4.0.0"), Some(false));
        assert_eq!(keeps_strings_in_malloc("jruby"), None);
    }
}
