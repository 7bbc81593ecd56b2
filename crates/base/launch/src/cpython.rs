//! Whether a process is CPython with its own allocator of small objects, pymalloc.
//!
//! pymalloc takes *arenas* of 1 MiB (256 KiB before Python 3.10) from the kernel by mmap, beside malloc, and gives one
//! back only when nothing lives in it (Objects/obmalloc.c). `PYTHONMALLOC=malloc` has all objects from malloc instead.

use std::path::Path;

use pagemill_kernel::Linux;
use pagemill_model::{Pid, whole};

/// The variable that says which allocator it has, and the value for malloc.
pub const VARIABLE: &str = "PYTHONMALLOC";
/// See [`VARIABLE`].
pub const MALLOC: &str = "malloc";

/// Whether `pid` executes CPython, by the name of its file or of a library, and its environment does not say that it
/// has no pymalloc. False where nobody may look, or where that has only just been executed.
pub fn has_pymalloc(linux: &Linux, pid: Pid) -> bool {
    let program = std::fs::read_link(linux.process_file(pid, "exe"));
    let is_program = || program.is_ok_and(|path| path.file_name().is_some_and(is_python));
    let is_library = |path: &str| path.rsplit('/').next().is_some_and(is_libpython);
    let has_library = || {
        linux.maps(pid).is_ok_and(|maps| maps.iter().any(|map| map.file().is_some_and(is_library)))
    };
    // While it is being executed its environment is empty.
    let is_there = || linux.layout(pid).is_ok_and(|layout| layout.words[3] != 0);
    (is_program() || has_library()) && is_there() && !is_off(linux, pid)
}

/// `python`, `python3`, `python3.11`; a build without a global lock (`python3.13t`) has another allocator.
fn is_python(name: &std::ffi::OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix("python"));
    rest.is_some_and(is_version)
}

/// `libpython3.11.so.1.0`.
fn is_libpython(name: &str) -> bool {
    let rest = name.strip_prefix("libpython").and_then(|rest| rest.split_once(".so"));
    rest.is_some_and(|(version, _)| is_version(version))
}

fn is_version(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Whether its environment names another allocator than pymalloc.
fn is_off(linux: &Linux, pid: Pid) -> bool {
    let path = linux.process_file(pid, "environ");
    let Ok(environment) = whole::read(Path::new(&path), whole::TEXT) else { return false };
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables
        .find_map(|variable| variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
    value.is_some_and(|value| value.starts_with(MALLOC.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn names_of_python_are_told_from_others() {
        let program = |name: &str| is_python(name.as_ref());
        assert!(["python", "python3", "python3.11"].into_iter().all(program));
        assert!(!["pythonic", "python3.13t", "perl", "ipython"].into_iter().any(program));
        assert!(["libpython3.11.so.1.0", "libpython3.so"].into_iter().all(is_libpython));
        assert!(
            !["libpython3.13t.so.1.0", "libpythonic.so", "libc.so.6"].into_iter().any(is_libpython)
        );
    }

    /// A process of its own that is called so, with this in its environment.
    fn called(name: &str, value: Option<&str>) -> bool {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join(name);
        let done = std::process::Command::new("install")
            .args(["-m", "755", "/bin/sleep"])
            .arg(&path)
            .status();
        assert!(done.unwrap().success());
        let mut command = std::process::Command::new(&path);
        command.arg("1000").env_remove(VARIABLE).envs(value.map(|value| (VARIABLE, value)));
        let mut child = command.spawn().unwrap();
        let (linux, pid, begun) = (Linux::live(), Pid(child.id()), Instant::now());
        while linux.layout(pid).unwrap().words[3] == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        let has = has_pymalloc(&linux, pid);
        child.kill().unwrap();
        child.wait().unwrap();
        has
    }

    #[test]
    fn who_has_it_is_told_by_its_file_and_its_environment() {
        assert!(called("python3.11", None));
        assert!(called("python3", Some("pymalloc")));
        assert!(!called("python3", Some("malloc_debug")));
        assert!(!called("perl", None));
    }
}
