//! Compiles what runs inside the emulator of the exact back end: the plugin, once for each version of the
//! emulator's interface, and the program that it is tried on. Where that fails the build succeeds all the
//! same, and `exact` says so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const SOURCES: &str = "src/exact";

fn main() {
    println!("cargo:rerun-if-changed={SOURCES}");
    println!("cargo:rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let shared = [
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
    ];
    let alone = [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-ffreestanding",
        "-fno-stack-protector",
        "-O1",
        "-Wall",
    ];
    let mut text = String::new();
    for (name, source, flags, version) in [
        ("PLUGIN_1", "plugin.c", &shared[..], "-DAPI_VERSION=1"),
        ("PLUGIN_2", "plugin.c", &shared[..], "-DAPI_VERSION=2"),
        ("PROBE", "probe.c", &alone[..], "-DPROBE"),
    ] {
        let object = out.join(name);
        let value = match compile(&Path::new(SOURCES).join(source), flags, version, &object) {
            // Beside `exact.rs`: a build directory may be moved.
            Ok(()) => format!("Ok(include_bytes!({name:?}))"),
            Err(why) => format!("Err({why:?})"),
        };
        text.push_str(&format!("static {name}: std::result::Result<&[u8], &str> = {value};\n"));
    }
    let written = fs::write(out.join("exact.rs"), text);
    assert!(written.is_ok(), "cannot write to {}: {written:?}", out.display());
}

fn compile(source: &Path, flags: &[&str], version: &str, object: &Path) -> Result<(), String> {
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return Err("it is written for x86-64".into());
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(flags)
        .arg(version)
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| format!("{compiler} cannot be executed: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{compiler} failed: {}", said.lines().next().unwrap_or("it does not say why")))
}
