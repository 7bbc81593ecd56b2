//! The kernel reads and writes objects that are being compacted: no spurious error, no wrong byte.

use std::fs;
use std::path::PathBuf;

use crate::harness::{
    self, Heap, REMAP, Run, folder, has_liburing, program, seconds, seed, shared, skip,
};
use crate::setting;

/// Each word of the file is `mix` (of `stress.h`) of its number.
fn words() -> PathBuf {
    let mix = |index: u64| {
        let mut x = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let path = folder().join("words");
    let bytes: Vec<u8> = (0..1 << 17).flat_map(|index| mix(index).to_le_bytes()).collect();
    // Renamed into place: another test may be reading it.
    let fresh = folder().join(format!("words-{:?}", std::thread::current().id()));
    fs::write(&fresh, bytes).expect("the target folder can be written");
    fs::rename(&fresh, &path).expect("the target folder can be written");
    path
}

fn run(heap: Heap, length: u64, ways: &[&str]) {
    let Some(io) = program("io.c") else { return };
    let length = seconds(length);
    let outcome = Run::new(io)
        .args([&length.to_string(), &seed(), &words().display().to_string()])
        .args(ways)
        .on(heap)
        .limit(length + 150)
        .outcome()
        .succeeded();
    let facts = outcome.facts();
    assert!(facts["operations"] > 100, "hardly anything was read\n{outcome}");
    assert_eq!(facts["errors"], 0, "{outcome}");
    eprintln!("{heap:?} {ways:?}: {facts:?}");
    outcome.compacted(&ways.join(" "));
}

/// Whether O_DIRECT works where the file is.
fn direct() -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
    let works = fs::OpenOptions::new().read(true).custom_flags(O_DIRECT).open(words()).is_ok();
    if !works {
        skip("O_DIRECT", "the file system of the target folder does not support it");
    }
    works
}

fn uring() -> bool {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .is_ok_and(|text| text.trim() != "0" && !(text.trim() == "1" && harness::root()));
    if !has_liburing() {
        skip("io_uring", "liburing is not installed (run: apt-get install liburing-dev)");
    } else if disabled {
        skip("io_uring", "disabled by /proc/sys/kernel/io_uring_disabled");
    }
    has_liburing() && !disabled
}

#[test]
fn kernel_writes_into_objects_that_are_compacted() {
    let _machine = shared();
    run(REMAP, 5, &["read", "recv", "recv-tcp", "recvmsg", "pread", "readv"]);
}

#[test]
fn kernel_reads_and_foreign_writes_of_objects_that_are_compacted() {
    let _machine = shared();
    run(REMAP, 4, &["write", "send", "vm-writev", "proc-mem"]);
}

#[test]
fn plain_reads_in_the_other_compacting_configurations() {
    let _machine = shared();
    for config in ["0y", "2y"] {
        run(Heap { config, ..REMAP }, 3, &["read", "recv", "pread"]);
    }
}

#[test]
fn o_direct_into_objects_that_are_compacted() {
    let _machine = shared();
    if direct() {
        run(REMAP, 4, &["direct", "direct", "read"]);
    }
}

#[test]
fn o_direct_descriptors_that_come_and_go() {
    let _machine = shared();
    if direct() {
        run(REMAP, 4, &["direct-late", "direct-late", "pread"]);
    }
}

#[test]
fn io_uring_into_objects_that_are_compacted() {
    let _machine = shared();
    if uring() {
        run(REMAP, 4, &["uring", "read"]);
    }
    if uring() && direct() {
        run(REMAP, 3, &["uring-direct", "pread"]);
    }
}

#[test]
fn io_uring_with_registered_buffers() {
    let _machine = shared();
    if uring() {
        run(REMAP, 4, &["uring-fixed", "read"]);
    }
    if uring() && direct() {
        run(REMAP, 3, &["uring-fixed-direct", "pread"]);
    }
}

#[test]
fn the_same_with_ksm() {
    let _machine = shared();
    let _ksm = match setting::ksm() {
        Ok(guard) => guard,
        Err(why) => return skip("the KSM back end", &why),
    };
    let heap = Heap { config: "1y", backend: "ksm" };
    run(heap, 4, &["read", "recv", "pread", "readv", "write"]);
    if uring() && direct() {
        run(heap, 4, &["direct", "uring-fixed-direct"]);
    }
}
