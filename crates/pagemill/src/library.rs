//! The preload library: where it is, and how a program is told to load it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol, elf};

use crate::program;
use crate::stats_page;

/// File name of the preload library.
const NAME: &str = "libpagemill.so";

/// The variable that names the library if it is somewhere else.
const OVERRIDE: &str = "PAGEMILL_LIB";

/// The absolute path of the preload library: `$PAGEMILL_LIB`, or next to this program, or in the
/// `lib` directory beside this program's directory.
pub fn find() -> Result<PathBuf> {
    let path = match env::var_os(OVERRIDE) {
        Some(path) => std::path::absolute(&path)
            .ok()
            .filter(|path| path.is_file())
            .with_context(|| format!("{OVERRIDE} is {path:?}, and there is no such file"))?,
        None => {
            let program = env::current_exe().context("cannot find out where this program is")?;
            let directory = program.parent().unwrap_or(Path::new("/"));
            let places = [directory.join(NAME), directory.join("../lib").join(NAME)];
            let found = places.into_iter().find(|path| path.is_file());
            found.and_then(|path| path.canonicalize().ok()).with_context(|| {
                format!(
                    "there is no {NAME} next to {} (run: cargo build --profile preload -p pagemill-preload, \
                     and set {OVERRIDE} to the file)",
                    program.display()
                )
            })?
        }
    };
    // The loader takes both for separators and knows no way to quote them.
    if path.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
        bail!("LD_PRELOAD cannot name {path:?}: move it to a path without spaces and colons");
    }
    if let Err(why) = inspect(&path) {
        bail!(
            "{} is not pagemill's preload library for this machine: {why} (set {OVERRIDE} to libpagemill.so, or unset it)",
            path.display()
        );
    }
    Ok(path)
}

/// Whether the loader will load the file and find the heap in it: what it cannot load it passes over
/// with a line on standard error, and the program runs without the heap.
fn inspect(path: &Path) -> Result<(), String> {
    let image = std::fs::read(path).map_err(|error| error.to_string())?;
    let file = ElfFile64::<Endianness>::parse(image.as_slice())
        .map_err(|_| "it is no ELF file of 64 bits, or is damaged")?;
    let machine = file.elf_header().e_machine(file.endian());
    if machine != program::host_machine() || !file.is_little_endian() {
        return Err(format!("it is built for another machine (ELF machine number {})", machine.0));
    }
    let is_page = |name: &[u8]| name == stats_page::SYMBOL.as_bytes();
    let exports = |symbol: &object::read::elf::ElfSymbol64<'_, '_>| {
        symbol.is_definition() && symbol.name_bytes().is_ok_and(is_page)
    };
    if !file.dynamic_symbols().any(|symbol| exports(&symbol)) {
        return Err(format!("it does not define {}", stats_page::SYMBOL));
    }
    if file.elf_header().e_type(file.endian()) != elf::ET_DYN {
        return Err("it is a program and no library".into());
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_stays_behind_ours() {
        let library = Path::new("/x/libpagemill.so");
        assert_eq!(preload(library, None), "/x/libpagemill.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/x/libpagemill.so");
        assert_eq!(
            preload(library, Some(OsStr::new("/a.so /b.so"))),
            "/x/libpagemill.so:/a.so /b.so"
        );
    }
}
