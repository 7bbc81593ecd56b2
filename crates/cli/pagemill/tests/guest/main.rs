//! The placement daemon on real memory nodes: Debian kernels under QEMU, two nodes, one of them without
//! processors; pagemill with the libraries that it needs; and `guest.sh`, with Colloid's programs in `programs.sh`, of
//! which two are placed, or with `PAGEMILL_GUEST_PROGRAMS` all. The pagemill is the one built for release that
//! `PAGEMILL_GUEST_BINARY` names, which the launcher does where it is not older than its sources, or else that of
//! the other tests.
//!
//! The launcher downloads the kernels and names their directory in `PAGEMILL_GUEST` (`vmlinuz-6.12`,
//! `vmlinuz-7`); where something could not be prepared, `PAGEMILL_GUEST_MISSING` says what.
//! With `PAGEMILL_GUEST_MEASURE` naming a pagemill built for release, that one runs, and what the daemon costs with 64
//! GiB tracked is printed after the checks.
//!
//! Nothing here is timed: the script waits for what it expects, and [`LIMIT`] ends a guest that hangs. A kernel that
//! the emulator cannot start in [`BOOTS`] attempts is a skip by name; one that started and then stops fails the test.

#![expect(clippy::unwrap_used, reason = "what cannot be prepared fails the test")]

mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagemill_model::recording::Reader;
use pagemill_model::{Event, Source as _};

/// A guest that has not ended by then is ended; one that runs all programs has three times as long.
const LIMIT: Duration = Duration::from_secs(900);

/// Programs that are always placed, and those that are with `PAGEMILL_GUEST_PROGRAMS`.
const PROGRAMS: [&str; 2] = ["gups", "gap-pr"];
const MORE_PROGRAMS: [&str; 9] = [
    "gups-antagonist",
    "gap-bfs",
    "gap-sssp",
    "gap-cc",
    "gap-bc",
    "gap-tc",
    "silo-ycsb",
    "silo-tpcc",
    "cache",
];

fn asked(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

/// A kernel that has not started its first program by then is started again: under emulation one in hundreds stops
/// while it boots.
const BOOT_LIMIT: Duration = Duration::from_secs(150);
const BOOTS: usize = 3;

/// Where the kernels are, or why they are not there.
fn prepared() -> Result<PathBuf, String> {
    if let Ok(why) = std::env::var("PAGEMILL_GUEST_MISSING") {
        return Err(why);
    }
    let Some(directory) = std::env::var_os("PAGEMILL_GUEST").map(PathBuf::from) else {
        return Err("run ./pagemill test --guest, which prepares kernels".into());
    };
    let found = Command::new("qemu-system-x86_64").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return Err("qemu-system-x86_64 is not installed (apt-get install qemu-system-x86)".into());
    }
    if !tiered().exists() {
        return Err("run cargo build --workspace --example tiered".into());
    }
    Ok(directory)
}

/// The program whose memory is placed, an example of the kernel crate.
fn tiered() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_pagemill")).with_file_name("examples").join("tiered")
}

fn shell(script: &str, directory: &Path, arguments: &[&Path]) {
    let mut command = Command::new("sh");
    let status =
        command.args(["-ec", script, "sh"]).args(arguments).current_dir(directory).status();
    assert!(status.unwrap().success(), "{script}");
}

/// The file system of the guest, as one archive.
fn initial_files(to: &Path) {
    let root = to.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    for name in ["proc", "sys", "dev", "tmp", "run"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    for (name, text) in [
        ("guest.sh", include_str!("guest.sh")),
        ("programs.sh", include_str!("programs.sh")),
        ("init", include_str!("init.sh")),
    ] {
        fs::write(root.join(name), text).unwrap();
    }
    // Each program with its libraries, at their own paths; debug information would only take room.
    const FILL: &str = "chmod 755 init
        for program in \"$(command -v busybox)\" \"$@\"; do
            strip -o bin/${program##*/} \"$program\" || cp \"$program\" bin
            for library in $(ldd \"$program\" 2> /dev/null | grep -o '/[^ ]*'); do
                mkdir -p .${library%/*}; cp -L $library .$library
            done
        done
        find . | cpio -o -H newc --quiet > ../initrd";
    let pagemill = ["PAGEMILL_GUEST_MEASURE", "PAGEMILL_GUEST_BINARY"]
        .into_iter()
        .find_map(std::env::var_os)
        .map_or_else(|| env!("CARGO_BIN_EXE_pagemill").into(), PathBuf::from);
    shell(FILL, &root, &[&pagemill, &tiered()]);
}

/// Boots `kernel` and returns what the guest printed and what it sent over its second line, or nothing if no attempt
/// got as far as the first program.
fn boot(kernel: &Path, room: &Path) -> Option<(String, String)> {
    (1..=BOOTS).find_map(|attempt| {
        // A second attempt says how far it came.
        let said =
            boot_once(kernel, room, if attempt == 1 { "quiet" } else { "earlyprintk=ttyS0" });
        if let Err(log) = &said {
            eprintln!("{}: no first program in attempt {attempt}:\n{log}", kernel.display());
        }
        said.ok()
    })
}

/// One attempt; an error is what a kernel printed that did not reach its first program.
fn boot_once(kernel: &Path, room: &Path, words: &str) -> Result<(String, String), String> {
    let (log, second) = (room.join("log"), room.join("second"));
    let numa = |target: u32, kind: &str, value: &str| {
        let what = if kind == "latency" { "latency" } else { "bandwidth" };
        format!(
            "hmat-lb,initiator=0,target={target},hierarchy=memory,data-type=access-{what},{what}={value}"
        )
    };
    let measure = if asked("PAGEMILL_GUEST_MEASURE") { " pagemill.measure" } else { "" };
    let programs = if asked("PAGEMILL_GUEST_PROGRAMS") { " pagemill.programs" } else { "" };
    let limit = LIMIT * if programs.is_empty() { 1 } else { 3 };
    let mut command = Command::new("qemu-system-x86_64");
    command
        // With a thread for each processor, TCG executes breakpoints of code that the other one has patched already,
        // and kernels crash. Both guests run side by side, so one thread each is no slower.
        .args(["-accel", "tcg,thread=single", "-machine", "pc,hmat=on"])
        // Under TCG of QEMU 7.2, cmpxchg16b loses flags and kernels crash.
        .args(["-cpu", "max,-cx16", "-smp", "2", "-m", "2G"])
        .args(["-object", "memory-backend-ram,id=m0,size=1G"])
        .args(["-object", "memory-backend-ram,id=m1,size=1G"])
        .args(["-numa", "node,nodeid=0,memdev=m0,cpus=0-1"])
        .args(["-numa", "node,nodeid=1,memdev=m1,initiator=0"])
        .args(["-numa", "dist,src=0,dst=1,val=20"])
        .args(["-numa", &numa(0, "latency", "70"), "-numa", &numa(0, "bandwidth", "200G")])
        .args(["-numa", &numa(1, "latency", "135"), "-numa", &numa(1, "bandwidth", "75G")])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(room.join("initrd"))
        // On a busy machine the kernel's check of its timer would fail.
        .args([
            "-append",
            &format!("console=ttyS0 panic=-1 no_timer_check {words}{measure}{programs}"),
        ])
        .args(["-display", "none", "-monitor", "none", "-no-reboot", "-net", "none"])
        .args(["-serial", &format!("file:{}", log.display())])
        .args(["-serial", &format!("file:{}", second.display())]);
    let mut guest = command.stdin(Stdio::null()).spawn().unwrap();
    let text = |path: &Path| {
        let bytes = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    };
    let begun = Instant::now();
    let mut up = false;
    let ended = loop {
        std::thread::sleep(Duration::from_millis(200));
        let ended = guest.try_wait().unwrap().is_some();
        up = up || text(&log).contains("GUEST-UP");
        if ended || begun.elapsed() > if up { limit } else { BOOT_LIMIT } {
            break ended;
        }
    };
    if !ended {
        guest.kill().unwrap();
        guest.wait().unwrap();
    }
    let log = text(&log);
    if !up {
        return Err(log);
    }
    assert!(ended, "the guest did not end within {limit:?}:\n{log}");
    eprintln!("{}: {:.0} s", kernel.display(), begun.elapsed().as_secs_f64());
    Ok((log, text(&second)))
}

/// What the guest sent, unpacked.
fn unpack(second: &str, room: &Path) {
    fs::write(room.join("sent.base64"), second).unwrap();
    shell("base64 -d sent.base64 | tar -xf -", room, &[]);
}

fn pagemill(arguments: &[&str], recording: &Path) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pagemill"))
        .args(arguments)
        .arg(recording)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

fn placed_on(kernel: &str) {
    let directory = match prepared() {
        Ok(directory) => directory,
        Err(why) => return eprintln!("skipped: guest on kernel {kernel}: {why}"),
    };
    let kernel = directory.join(format!("vmlinuz-{kernel}"));
    if !kernel.exists() {
        return eprintln!("skipped: {} could not be downloaded", kernel.display());
    }
    let room = tempfile::tempdir().unwrap();
    initial_files(room.path());
    let Some((log, second)) = boot(&kernel, room.path()) else {
        return eprintln!("skipped: the emulator did not start {}", kernel.display());
    };
    for line in log.lines().filter(|line| line.starts_with("MEASURE")) {
        eprintln!("{line}");
    }
    let lines = |word: &str| log.lines().filter(|line| line.starts_with(word)).count();
    assert!(log.contains("SCRIPT-END"), "the script did not reach its end:\n{log}");
    assert!(lines("FAIL") == 0 && lines("PASS") >= 60, "{} passed:\n{log}", lines("PASS"));

    unpack(&second, room.path());
    let placed = room.path().join("placed");
    let more: &[&str] = if asked("PAGEMILL_GUEST_PROGRAMS") { &MORE_PROGRAMS } else { &[] };
    let recordings = programs::are_where_decided(&placed, &[&PROGRAMS, more].concat());
    // The replay law, on another machine and kernel than the recordings'.
    let recording = room.path().join("rec");
    for recording in recordings.iter().chain([&recording]) {
        let (code, text) = pagemill(&["tier", "replay"], recording);
        assert_eq!(code, Some(0), "{}: {text}", recording.display());
    }
    let mut reader = Reader::open(&recording).unwrap();
    let (mut moves, mut moved) = (0, 0);
    while let Some(event) = reader.next_event().unwrap() {
        match event {
            Event::TierDecision(decision) => moves += decision.page.unwrap_or_default().len(),
            Event::TierOutcome(outcome) => {
                moved += outcome.moved.unwrap_or_default().iter().sum::<u64>()
            }
            _ => {}
        }
    }
    assert!(moves > 0 && moved > 24 << 20, "{moves} moves were decided, {moved} bytes moved");
    // A recording of a real program is an input of the simulator.
    let (code, text) = pagemill(
        &["simulate", "--tiers", "fast=32M,slow=1G", "--seconds", "2", "--json"],
        &recording,
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("units_per_s"), "{text}");
    // So is the machine that was measured.
    let machine = placed.join("machine.toml");
    let (code, text) = pagemill(
        &["simulate", "--machine", machine.to_str().unwrap(), "--seconds", "2", "--json"],
        &recording,
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("units_per_s"), "{text}");
}

#[test]
fn pages_are_placed_on_kernel_6_12() {
    placed_on("6.12");
}

#[test]
fn pages_are_placed_on_kernel_7() {
    placed_on("7");
}
