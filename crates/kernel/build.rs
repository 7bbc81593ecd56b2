//! Compiles the BPF programs in `src/bpf` with clang, where there is one.
//!
//! Without clang, or with one that has no BPF back end, the build succeeds all the same: the object
//! is absent, `kernel::bpf` says so, and callers use the next way of measuring.
//!
//! `PAGEMILL_BPF_CLANG` names another clang; empty, it switches BPF off.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Programs: name of the constant, file below `src/bpf`.
const OBJECTS: &[(&str, &str)] = &[("FAULTS", "faults.bpf.c")];

fn main() {
    println!("cargo:rerun-if-env-changed=PAGEMILL_BPF_CLANG");
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let clang = env::var("PAGEMILL_BPF_CLANG").unwrap_or_else(|_| "clang".into());
    let mut text = String::new();
    for (name, file) in OBJECTS {
        let object = out.join(file).with_extension("o");
        let value = match compile(&clang, &Path::new("src/bpf").join(file), &object) {
            Ok(()) => format!("Ok(aya::include_bytes_aligned!({:?}))", object.display()),
            Err(why) => {
                println!("cargo:warning=BPF programs are left out: {why}");
                format!("Err({why:?})")
            }
        };
        text.push_str(&format!(
            "/// The programs of `{file}`, or why this build has none.\n\
             pub(super) static {name}: Result<&[u8], &str> = {value};\n"
        ));
    }
    let written = fs::write(out.join("objects.rs"), text);
    assert!(written.is_ok(), "cannot write to {}: {written:?}", out.display());
}

fn compile(clang: &str, source: &Path, object: &Path) -> Result<(), String> {
    if clang.is_empty() {
        return Err("PAGEMILL_BPF_CLANG is empty".into());
    }
    let output = Command::new(clang)
        .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-c"])
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| {
            format!("{clang} cannot be executed: {error} (run: apt-get install clang)")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{clang} failed: {}", said.lines().next().unwrap_or("it does not say why")))
}
