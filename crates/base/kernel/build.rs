//! Compiles what is not Rust: the BPF programs in `src/trace/bpf` with clang, where there is one, and the code
//! for traced programs in `src/process/injected` with the C compiler, on x86-64.
//!
//! Without clang, or with one that has no BPF back end, the build succeeds all the same: the object
//! is absent, `kernel::bpf` says so, and callers use the next way of measuring.
//!
//! `PAGEMILL_BPF_CLANG` names another clang; empty, it switches BPF off.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Programs: name of the constant, file below `src/trace/bpf`.
const OBJECTS: &[(&str, &str)] = &[("ACCESSES", "accesses.bpf.c"), ("FAULTS", "faults.bpf.c")];

fn main() {
    println!("cargo:rerun-if-env-changed=PAGEMILL_BPF_CLANG");
    println!("cargo:rerun-if-changed=src/trace/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let clang = env::var("PAGEMILL_BPF_CLANG").unwrap_or_else(|_| "clang".into());
    let mut text = String::new();
    for (name, file) in OBJECTS {
        let object = out.join(file).with_extension("o");
        let value = match compile(&clang, &Path::new("src/trace/bpf").join(file), &object) {
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
    injected(&out);
}

/// The code for traced programs: a flat image linked at its address there.
fn injected(out: &Path) {
    println!("cargo:rerun-if-changed=src/process/injected");
    println!("cargo:rerun-if-env-changed=CC");
    let image = out.join("injected.bin");
    let value = match image_of(&image) {
        Ok(()) => format!("Ok(include_bytes!({:?}))", image.display()),
        Err(why) => format!("Err({why:?})"),
    };
    let text = format!("pub(super) static CODE: Result<&[u8], &str> = {value};\n");
    let written = fs::write(out.join("injected.rs"), text);
    assert!(written.is_ok(), "cannot write to {}: {written:?}", out.display());
}

fn image_of(image: &Path) -> Result<(), String> {
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return Err("it is written for x86-64".into());
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-builtin"])
        .args([
            "-fno-stack-protector",
            "-fno-pic",
            "-fno-pie",
            "-mcmodel=large",
            "-fcf-protection=none",
        ])
        .args(["-mno-sse", "-mno-red-zone", "-nostdlib", "-static", "-no-pie"])
        .args([
            "-Wl,-T,src/process/injected/injected.ld",
            "-Wl,--build-id=none",
            "-Wl,--oformat=binary",
        ])
        .args(["src/process/injected/injected.c", "-o"])
        .arg(image)
        .output()
        .map_err(|error| format!("{compiler} cannot be executed: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{compiler} failed: {}", said.lines().next().unwrap_or("it does not say why")))
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
