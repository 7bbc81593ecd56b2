//! Programs of every day that come as packages of their own: what they run, and a PostgreSQL cluster.
//!
//! | program | what it does |
//! |---|---|
//! | `pass` | Python that ends at once |
//! | `zstd` | compresses the text of `xz` at level 12 |
//! | `node`, `java` | a map of numbers and small objects, filled and read |
//! | `duckdb` | a table in memory, grouped and joined, by Python's module |
//! | `postgres` | a cluster of its own, its buffers 256 MiB, nothing synced; selects by `pgbench`, four clients |
//!
//! The server refuses to be root's, so root's cluster is the user nobody's: `run --huge` then sets what the system
//! gives, and its library, which belongs to root's board, does nothing there.

use std::ffi::OsString;
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagemill_kernel::Linux;
use pagemill_kernel::process::signal::Signals;
use pagemill_model::Pid;

use crate::reproduce::packages::find;

const NODE: &str = "\
const count = Number(process.argv[2]);
const map = new Map();
for (let i = 0; i < count; i++) map.set('k' + i, { a: i, b: [i, i + 1] });
let sum = 0;
for (const [, value] of map) sum += value.b[1];
console.log(sum);
";

const JAVA: &str = "\
import java.util.HashMap;
class Words {
    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        HashMap<Integer, int[]> map = new HashMap<>();
        long sum = 0;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < count; i++) map.put(i + round * 1000, new int[] {i, round, 3, 4});
            for (int i = 0; i < count; i += 3) sum += map.get(i + round * 1000)[0];
        }
        System.out.println(sum);
    }
}
";

const DUCKDB: &str = "\
import duckdb, sys
run = duckdb.connect(config={'threads': 1}).execute
run(f\"create table t as select range a, range % 1000 b, hash(range) h, 'x' || range s from range(3 * {sys.argv[1]})\")
print(run('select b, sum(h % 7), count(distinct h) from t group by b order by 2 limit 1').fetchall())
print(run('select count(*) from t x join t y on x.a = y.h % 1000000').fetchall())
";

/// Python itself: what is found first may be a script that looks for it, by a dozen programs.
pub fn interpreter() -> Result<OsString> {
    let python = find("python3", "python3")?;
    let said = Command::new(&python).args(["-c", "import sys; print(sys.executable)"]).output();
    let said = said.with_context(|| format!("cannot start {}", python.display()))?;
    let path = OsString::from_vec(said.stdout.trim_ascii().to_vec());
    ensure!(
        said.status.success() && !path.is_empty(),
        "{} does not say where it is",
        python.display()
    );
    Ok(path)
}

/// How a program is called, and its script with the name of the file. The script's file and a count come behind.
pub fn script(program: &str) -> Result<(Vec<OsString>, &'static str, &'static str)> {
    Ok(match program {
        "node" => (vec![find("node", "nodejs")?.into()], "map.js", NODE),
        "java" => {
            let flags = ["-Xmx2g", "-XX:+UseSerialGC"].map(OsString::from);
            let java = find("java", "default-jdk")?.into();
            (std::iter::once(java).chain(flags).collect(), "Words.java", JAVA)
        }
        _ => (vec![interpreter()?], "join.py", DUCKDB),
    })
}

/// Why a program cannot be run here; `None` if it can.
pub fn missing(program: &str) -> Option<String> {
    let need = |pairs: &[(&str, &str)]| {
        pairs.iter().find_map(|(name, package)| find(name, package).err()).map(|e| e.to_string())
    };
    match program {
        "zstd" => need(&[("zstd", "zstd")]),
        "node" => need(&[("node", "nodejs")]),
        // A file of source is run by the compiler's package.
        "java" => need(&[("java", "default-jdk"), ("javac", "default-jdk")]),
        "postgres" => need(&[
            ("initdb", "postgresql"),
            ("postgres", "postgresql"),
            ("pgbench", "postgresql-contrib"),
            ("pg_isready", "postgresql-client"),
            ("setpriv", "util-linux"),
        ]),
        "duckdb" => {
            let imported = || -> Result<bool> {
                let mut python = Command::new(interpreter()?);
                let python = python.args(["-c", "import duckdb"]).stderr(Stdio::null());
                Ok(python.status()?.success())
            };
            let found = imported().unwrap_or(false);
            (!found).then(|| "Python has no module duckdb (run: pip install duckdb)".into())
        }
        _ => None,
    }
}

/// A cluster, which goes when this is dropped.
pub struct Cluster {
    directory: tempfile::TempDir,
    /// Whether it is nobody's.
    lent: bool,
}

/// The variable that names the database, for all of its programs.
const DATABASE: (&str, &str) = ("PGDATABASE", "postgres");

/// How long each step of making a cluster may take; all of them take some seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a process ends, which is killed if it has not by then.
fn status_of(child: &mut Child, name: &str, patience: Duration) -> Result<ExitStatus> {
    let end = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            bail!(
                "{name} had not ended after {} s and was killed (it waits for the disk: see df and iostat, or name \
                 another directory by TMPDIR; or run it by hand)",
                patience.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The user and the group "nobody".
const NOBODY: u32 = 65_534;

impl Cluster {
    /// Makes one with the tables of `pgbench` at a scale.
    pub fn new(signals: &Signals, scale: usize) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("pagemill-postgres-").tempdir()?;
        let lent = Linux::live().is_root();
        if lent {
            std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY))?;
        }
        let cluster = Self { directory, lent };
        let data = cluster.data();
        cluster.finish(signals, "initdb", &["-A", "trust", "-U", "postgres", "-D"], &data)?;
        let server = cluster.server()?;
        let mut command = Command::new(&server[0]);
        command.args(&server[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        signals.restore_in(&mut command);
        let mut server = command.spawn().context("cannot start postgres")?;
        let patience = Instant::now() + PATIENCE;
        while !cluster.is_ready()? && server.try_wait()?.is_none() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        let scale = scale.to_string();
        let filled = cluster.finish(
            signals,
            "pgbench",
            &["-i", "-q", "-U", "postgres", "-s", &scale, "-h"],
            cluster.directory.path(),
        );
        // One that has ended is nobody to send a signal to.
        let told = pagemill_kernel::process::signal::send(
            Pid(server.id()),
            pagemill_kernel::process::signal::TERMINATE,
        );
        let ended = status_of(&mut server, "postgres", PATIENCE);
        filled.and(ended.map(drop)).and(told.map_err(Into::into)).map(|()| cluster)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A program of the package, as the cluster's user.
    fn program(&self, name: &str) -> Result<Vec<OsString>> {
        let mut words: Vec<OsString> = Vec::new();
        if self.lent {
            words.push(find("setpriv", "util-linux")?.into());
            words.push(format!("--reuid={NOBODY}").into());
            words.push(format!("--regid={NOBODY}").into());
            words.extend(["--clear-groups", "--"].map(OsString::from));
        }
        words.push(find(name, "postgresql")?.into());
        Ok(words)
    }

    /// Runs one of them to its end; the cluster's path is the last argument.
    fn finish(&self, signals: &Signals, name: &str, flags: &[&str], path: &Path) -> Result<()> {
        let words = self.program(name)?;
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(flags)
            .arg(path)
            .current_dir("/")
            .env(DATABASE.0, DATABASE.1);
        signals.restore_in(&mut command);
        let mut errors = tempfile::tempfile().context("cannot make a file for its errors")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.try_clone()?);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let status = status_of(&mut child, name, PATIENCE)?;
        let mut said = Vec::new();
        errors.rewind().and_then(|()| errors.read_to_end(&mut said))?;
        let said = String::from_utf8_lossy(&said);
        ensure!(status.success(), "{name}: {}", said.lines().last().unwrap_or_default());
        Ok(())
    }

    /// The server's command line.
    pub fn server(&self) -> Result<Vec<OsString>> {
        let mut words = self.program("postgres")?;
        words.extend(["-D".into(), self.data().into(), "-k".into(), self.directory.path().into()]);
        for setting in ["listen_addresses=", "shared_buffers=256MB", "fsync=off"] {
            words.extend(["-c".into(), setting.into()]);
        }
        Ok(words)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join(".s.PGSQL.5432")
    }

    /// A client that asks so many times.
    pub fn client(&self, count: usize) -> Result<Command> {
        let words = self.program("pgbench")?;
        let mut command = Command::new(&words[0]);
        let each = (count / 4).max(1).to_string();
        command
            .args(&words[1..])
            .args(["-S", "-n", "-c", "4", "-U", "postgres", "-t", &each, "-h"]);
        command.arg(self.directory.path()).current_dir("/").env(DATABASE.0, DATABASE.1);
        Ok(command)
    }

    /// Whether the server answers.
    pub fn is_ready(&self) -> Result<bool> {
        let words = self.program("pg_isready")?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["-q", "-h"]).arg(self.directory.path());
        Ok(command.current_dir("/").status()?.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The set-up of a cluster waited for ever for an `initdb` that waited for a disk.
    #[test]
    fn what_does_not_end_is_ended() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let error = status_of(&mut child, "initdb", Duration::from_millis(1)).unwrap_err();
        assert!(
            error.to_string().contains("initdb had not ended")
                && child.try_wait().unwrap().is_some()
        );
        let mut child = Command::new("false").spawn().unwrap();
        assert!(!status_of(&mut child, "false", PATIENCE).unwrap().success());
    }
}
