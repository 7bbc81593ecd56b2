//! `BUILD`: a number of the sources that the libraries for programs are made of, by which a launcher tells whether a
//! library that it finds was built from the sources that it was built from itself.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The sources below `directory`.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let own = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let wing = own.parent().unwrap_or(&own);
    let mut found = Vec::new();
    for entry in fs::read_dir(wing)? {
        let directory = entry?.path().join("src");
        if directory.is_dir() {
            println!("cargo:rerun-if-changed={}", directory.display());
            sources(&directory, &mut found)?;
        }
    }
    found.sort();
    // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
    let mut number = 0xcbf2_9ce4_8422_2325_u64;
    for path in &found {
        for byte in fs::read(path)? {
            number = (number ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    let text = format!(
        "/// A number of the sources of the libraries.\npub const BUILD: u64 = {number:#x};\n"
    );
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("build.rs"), text)
}
