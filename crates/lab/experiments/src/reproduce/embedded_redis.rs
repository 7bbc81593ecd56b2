//! A Redis server that brings its own jemalloc, which is what active defragmentation needs.
//!
//! Distributions link Redis with the system's jemalloc, and such a server refuses
//! `activedefrag yes`. The Maven artifact `com.github.codemonstur:embedded-redis:1.4.3` carries
//! server binaries for tests; the one for Linux on x86-64 is built with the modified jemalloc. It is
//! looked for in this order: `$PAGEMILL_REDIS` (any such server), our cache, the local Maven
//! repository, and the Maven client, which fetches it from wherever the user has configured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use pagemill_model::whole;

use super::packages::cache;

const GROUP: &str = "com/github/codemonstur";
const NAME: &str = "embedded-redis";
const VERSION: &str = "1.4.3";
const MEMBER: &str = "redis-server-6.2.6-v5-linux-amd64";

/// Path of the server, or why there is none.
///
/// # Errors
/// Why there is none.
pub fn redis_with_jemalloc() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os("PAGEMILL_REDIS").map(PathBuf::from) {
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("PAGEMILL_REDIS={} is no file", path.display()))
        };
    }
    if !cfg!(target_arch = "x86_64") {
        return Err("the published server binary is for x86-64; \
                    set PAGEMILL_REDIS to a redis-server built with its own jemalloc"
            .into());
    }
    let home = env::var_os("HOME").map(PathBuf::from).ok_or("HOME is not set")?;
    let server = cache().map_err(|error| error.to_string())?.join(MEMBER);
    if !server.is_file() {
        let archive = archive(&home)?;
        extract(&archive, &server)?;
    }
    Ok(server)
}

/// The jar, from the local repository or fetched into it.
fn archive(home: &Path) -> Result<PathBuf, String> {
    let jar = format!("{NAME}-{VERSION}.jar");
    let path = home.join(".m2/repository").join(GROUP).join(NAME).join(VERSION).join(jar);
    if path.is_file() {
        return Ok(path);
    }
    let artifact = format!("{}:{NAME}:{VERSION}", GROUP.replace('/', "."));
    let fetch = Command::new("mvn")
        .args(["-q", "-B", "dependency:get", "-Dtransitive=false"])
        .arg(format!("-Dartifact={artifact}"))
        .output();
    match fetch {
        Ok(output) if output.status.success() && path.is_file() => Ok(path),
        Ok(output) => Err(format!(
            "the Maven client did not fetch {artifact}: {} (or set PAGEMILL_REDIS)",
            first_error(&String::from_utf8_lossy(&output.stdout))
        )),
        Err(error) => Err(format!(
            "no Redis with its own jemalloc: mvn: {error} (run: apt-get install maven, or set PAGEMILL_REDIS)"
        )),
    }
}

fn first_error(output: &str) -> &str {
    output.lines().find(|line| line.contains("ERROR")).unwrap_or("no reason given")
}

/// Unpacks the one member, with whichever of three common tools is there.
fn extract(archive: &Path, server: &Path) -> Result<(), String> {
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let directory = server.parent().expect("the server lies in the cache directory");
    fs::create_dir_all(directory)
        .map_err(|error| failed(&format!("cannot make {}", directory.display()), error))?;
    let mut tools = [
        ("unzip", vec!["-p".into(), archive.display().to_string(), MEMBER.into()]),
        ("python3", vec![
            "-c".into(),
            "import sys,zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))".into(),
            archive.display().to_string(),
            MEMBER.into(),
        ]),
        ("bsdtar", vec!["-xOf".into(), archive.display().to_string(), MEMBER.into()]),
    ]
    .into_iter();
    let bytes = tools
        .find_map(|(tool, arguments): (&str, Vec<String>)| {
            let output = Command::new(tool).args(arguments).output().ok()?;
            (output.status.success() && output.stdout.starts_with(b"\x7fELF"))
                .then_some(output.stdout)
        })
        .ok_or_else(|| {
            format!("cannot unpack {} (run: apt-get install unzip)", archive.display())
        })?;
    whole::replace(server, &bytes, 0o755)
        .map_err(|error| failed(&format!("cannot write {}", server.display()), error))
}
