//! The libraries for programs (heap, prefault, trim, sites): where they are, and how a program is told to load them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, elf};

use crate::lazy_file::Parts;
use crate::program;
use crate::stats_page;

/// A library of ours that programs are made to load.
struct Library {
    /// File name.
    name: &'static str,
    /// The variable that names it if it is somewhere else, and an older word for that, which counts where the first is
    /// not set.
    variable: &'static str,
    alias: Option<&'static str>,
    /// The package that it is built from.
    package: &'static str,
    /// What it defines and no other library does.
    symbol: &'static str,
    /// What it is, for messages.
    what: &'static str,
}

const HEAP: Library = Library {
    name: "libpagemill_heap.so",
    variable: "PAGEMILL_HEAP_LIB",
    alias: Some("PAGEMILL_LIB"),
    package: "pagemill-preload-heap",
    symbol: stats_page::SYMBOL,
    what: "heap library",
};

const PREFAULT: Library = Library {
    name: "libpagemill_prefault.so",
    variable: "PAGEMILL_PREFAULT_LIB",
    alias: Some("PAGEMILL_HUGE_LIB"),
    package: "pagemill-preload-prefault",
    symbol: "pagemill_prefault_version",
    what: "prefault library",
};

const TRIM: Library = Library {
    name: "libpagemill_trim.so",
    variable: "PAGEMILL_TRIM_LIB",
    alias: None,
    package: "pagemill-preload-trim",
    symbol: "pagemill_trim_version",
    what: "trim library",
};

#[cfg(target_arch = "x86_64")]
const SITES: Library = Library {
    name: "libpagemill_sites.so",
    variable: "PAGEMILL_SITES_LIB",
    alias: Some("PAGEMILL_NAMES_LIB"),
    package: "pagemill-preload-sites",
    symbol: "pagemill_sites_version",
    what: "library of call sites",
};

/// The absolute path of the library that notes who asks for memory: `$PAGEMILL_SITES_LIB`, or where the heap library
/// would be.
///
/// # Errors
/// As of [`find_heap`].
#[cfg(target_arch = "x86_64")]
pub fn find_sites() -> Result<PathBuf> {
    SITES.find()
}

/// The absolute path of the heap library: `$PAGEMILL_HEAP_LIB`, or next to this program, or in `lib/pagemill` or `lib`
/// beside this program's directory.
///
/// # Errors
/// There is none, or it was built from other sources than this program; what to do about it.
pub fn find_heap() -> Result<PathBuf> {
    HEAP.find()
}

/// The absolute path of the library of `run --huge`: `$PAGEMILL_PREFAULT_LIB`, or where the heap library would be.
///
/// # Errors
/// As of [`find_heap`].
pub fn find_prefault() -> Result<PathBuf> {
    PREFAULT.find()
}

/// The absolute path of the library of `run --trim`: `$PAGEMILL_TRIM_LIB`, or where the heap library would be.
///
/// # Errors
/// As of [`find_heap`].
pub fn find_trim() -> Result<PathBuf> {
    TRIM.find()
}

impl Library {
    fn find(&self) -> Result<PathBuf> {
        let Self { name, variable, alias, package, what, symbol } = self;
        let set = [Some(*variable), *alias].into_iter().flatten();
        let set = set.map(|variable| (variable, env::var_os(variable)));
        let named = set.filter_map(|(variable, path)| Some((variable, path?))).next();
        let path = match named {
            Some((variable, path)) => std::path::absolute(&path)
                .ok()
                .filter(|path| path.is_file())
                .with_context(|| {
                    format!("{variable} is {path:?}, and there is no such file (set it to {name}, or unset it)")
                })?,
            None => {
                let program =
                    env::current_exe().context("cannot find out where this program is")?;
                let directory = program.parent().unwrap_or(Path::new("/"));
                let places = PLACES.map(|at| directory.join(at).join(name));
                let found = places.iter().filter_map(|path| path.canonicalize().ok());
                let found: Vec<PathBuf> = found.filter(|path| path.is_file()).collect();
                let first = found.first().with_context(|| {
                    format!(
                        "there is no {name} next to {} or in {} (install it there, or run: cargo build --profile \
                         preload \
                         -p {package}, and set {variable} to the file)",
                        program.display(),
                        directory.join("../lib/pagemill").display()
                    )
                })?;
                // The program of a build directory may stand beside the library of an earlier build.
                let fits = found.iter().find(|path| build_of(path) == Some(pagemill_preload_sys::BUILD));
                fits.cloned().with_context(|| {
                    format!(
                        "{} was built from other sources than {} (run: cargo build --profile preload -p {package}, and \
                         set {variable}=target/preload/{name}; ./pagemill builds both)",
                        first.display(),
                        program.display()
                    )
                })?
            }
        };
        // The loader takes both for separators and knows no way to quote them.
        if path.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
            bail!("LD_PRELOAD cannot name {path:?}: move it to a path without spaces and colons");
        }
        if let Err(why) = inspect(&path, symbol) {
            bail!(
                "{} is not pagemill's {what} for this machine: {why} (set {variable} to {name}, or unset it)",
                path.display()
            );
        }
        Ok(path)
    }
}

/// Where a library may be, from the program's directory; what Cargo built is beside it in a build for tests.
const PLACES: [&str; 4] =
    ["", if cfg!(debug_assertions) { "../preload" } else { "" }, "../lib/pagemill", "../lib"];

/// What the library says that it was built from, if it says so.
fn build_of(path: &Path) -> Option<u64> {
    let image = Parts::open(path).ok()?;
    let file = ElfFile64::<Endianness, _>::parse(&image).ok()?;
    let is_it = |name: &[u8]| name == b"pagemill_build";
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name_bytes().is_ok_and(is_it))?;
    let bytes = file
        .segments()
        .find_map(|segment| segment.data_range(symbol.address(), 8).ok().flatten())?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Whether the loader will load the file and find our `symbol` in it: what it cannot load it passes over
/// with a line on standard error, and the program runs without it.
fn inspect(path: &Path, symbol: &str) -> Result<(), String> {
    let image = Parts::open(path).map_err(|error| error.to_string())?;
    let file = ElfFile64::<Endianness, _>::parse(&image)
        .map_err(|_| "it is no ELF file of 64 bits, or is damaged")?;
    let machine = file.elf_header().e_machine(file.endian());
    if machine != program::host_machine() || !file.is_little_endian() {
        return Err(format!("it is built for another machine (ELF machine number {})", machine.0));
    }
    let is_ours = |name: &[u8]| name == symbol.as_bytes();
    let exports = |symbol: &object::read::elf::ElfSymbol64<'_, '_, Endianness, &Parts>| {
        symbol.is_definition() && symbol.name_bytes().is_ok_and(is_ours)
    };
    if !file.dynamic_symbols().any(|symbol| exports(&symbol)) {
        return Err(format!("it does not define {symbol}"));
    }
    if file.elf_header().e_type(file.endian()) != elf::ET_DYN {
        return Err("it is a program and no library".into());
    }
    Ok(())
}

/// Where distributions keep shared libraries.
const DIRECTORIES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// The library of the distribution that has one of these file names; or that it is not there, and how to get it.
///
/// # Errors
/// It is not there: how to get it.
pub(crate) fn distributed(what: &str, package: &str, files: &[&str]) -> Result<PathBuf, String> {
    files
        .iter()
        .flat_map(|file| DIRECTORIES.iter().map(move |directory| Path::new(directory).join(file)))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            format!("{what} not found as {} (run: apt-get install {package})", files.join(" or "))
        })
}

/// The value of `LD_PRELOAD` that loads `library` first and then what was loaded before.
pub fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

/// What a command is to load already.
pub fn preloaded(command: &Command) -> Option<OsString> {
    let before = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
    let before = before.and_then(|(_, value)| value.map(OsStr::to_owned));
    before.or_else(|| env::var_os("LD_PRELOAD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_stays_behind_ours() {
        let library = Path::new("/x/libpagemill_heap.so");
        assert_eq!(preload(library, None), "/x/libpagemill_heap.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/x/libpagemill_heap.so");
        assert_eq!(
            preload(library, Some(OsStr::new("/a.so /b.so"))),
            "/x/libpagemill_heap.so:/a.so /b.so"
        );
    }
}
