//! A server around WiredTiger, MongoDB's storage engine: no package has a MongoDB server, and the engine is a library.
//!
//! Its source comes from the Python package index by `pip`, wherever the user has configured that, and is held to a
//! checksum. It is built with CMake once, and kept in the cache (`$XDG_CACHE_HOME/pagemill`); the server around it is
//! `wiredtiger/server.c`, which speaks Redis' protocol. It runs as a program of its own: the engine is under the GPL,
//! and nothing of pagemill is linked with it. `$PAGEMILL_WIREDTIGER` names a server that is built already.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::packages::{cache, find};

const VERSION: &str = "11.3.1";
const CHECKSUM: &str = "95052d1b6fc06921dd617aafa1ba2a773d8dbbbf2eb74f77147290a630e598d0";
const SERVER: &str = include_str!("wiredtiger/server.c");

/// The server, if it is here.
///
/// # Errors
/// Says how it comes here.
pub fn built() -> Result<PathBuf> {
    let server = match env::var_os("PAGEMILL_WIREDTIGER") {
        Some(path) => path.into(),
        None => directory()?.join("wiredtiger-server"),
    };
    ensure!(
        server.is_file(),
        "{} is not built (run: pagemill reproduce huge-pages --programs wiredtiger)",
        server.display()
    );
    Ok(server)
}

/// Where it is kept: by the version of the engine, and by the text of the server.
fn directory() -> Result<PathBuf> {
    let text = crc32fast::hash(SERVER.as_bytes());
    Ok(cache()?.join(format!("wiredtiger-{VERSION}-{text:08x}")))
}

/// The server, fetched and built if it is not here: some minutes. `say` hears of each step.
///
/// # Errors
/// Names the tool that is missing, or the step that failed, with what it said.
pub fn build(mut say: impl FnMut(&str)) -> Result<PathBuf> {
    if let Ok(server) = built() {
        return Ok(server);
    }
    let kept = directory()?;
    let pip = find("pip3", "python3-pip")?;
    let cmake = find("cmake", "cmake")?;
    let compiler = find("cc", "gcc")?;
    let make = find("make", "make")?;
    find("g++", "g++")?;
    fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    let room = tempfile::tempdir_in(&kept)?;
    let room = room.path();
    say("wiredtiger: fetching its source");
    let wanted = room.join("wanted");
    fs::write(&wanted, format!("wiredtiger=={VERSION} --hash=sha256:{CHECKSUM}\n"))?;
    let words =
        ["download", "-q", "--no-deps", "--no-binary", "wiredtiger", "--require-hashes", "-r"];
    run(Command::new(pip).args(words).arg(&wanted).arg("-d").arg(room), "pip")?;
    let archive = room.join(format!("wiredtiger-{VERSION}.tar.gz"));
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(room), "tar")?;
    say("wiredtiger: building it, once (three minutes of a processor)");
    let (source, out) = (room.join(format!("wiredtiger-{VERSION}")), room.join("build"));
    let off =
        ["SHARED", "PYTHON", "STRICT", "DEBUG_INFO"].map(|what| format!("-DENABLE_{what}=OFF"));
    run(
        Command::new(&cmake)
            .args(["-G", "Unix Makefiles", "-DCMAKE_BUILD_TYPE=Release", "-DENABLE_STATIC=ON"])
            .args(off)
            .arg(format!("-DCMAKE_MAKE_PROGRAM={}", make.display()))
            .arg("-B")
            .arg(&out)
            .arg("-S")
            .arg(source),
        "cmake",
    )?;
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).to_string();
    let target = ["--target", "wiredtiger_static", "-j", &threads];
    run(Command::new(&cmake).arg("--build").arg(&out).args(target), "cmake --build")?;
    let (text, server) = (room.join("server.c"), room.join("wiredtiger-server"));
    fs::write(&text, SERVER)?;
    run(
        Command::new(compiler)
            .args(["-O2", "-I"])
            .arg(out.join("include"))
            .arg(&text)
            .arg(out.join("libwiredtiger.a"))
            .args(["-lpthread", "-ldl", "-o"])
            .arg(&server),
        "cc",
    )?;
    let to = kept.join("wiredtiger-server");
    fs::rename(&server, &to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(to)
}

fn run(command: &mut Command, what: &str) -> Result<()> {
    let ended = command.output().with_context(|| format!("cannot start {what}"))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let told = |word: &str| said.lines().rev().find(|line| line.to_lowercase().contains(word));
        let line = told("error").or_else(|| said.lines().next_back()).unwrap_or("nothing was said");
        bail!("wiredtiger: {what} ended with {}: {}", ended.status, line.trim());
    }
    Ok(())
}

/// A directory of the engine, empty.
///
/// # Errors
/// Where it cannot be made anew.
pub fn emptied(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot empty {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))
}
