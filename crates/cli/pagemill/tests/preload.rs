//! The preload library from outside: its symbols, and what C and C++ programs see of it.
//!
//! The programs are in `tests/preload`; each is compiled with the system's compiler and run with the library.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Object, ObjectSymbol};

/// Configurations that the programs run under; the helper thread is started at once.
const CONFIGURATIONS: [&str; 4] = ["0n", "1y", "2y", "h"];

fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

/// `libpagemill_heap.so`, built as it is shipped, once a test run.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", "preload", "-p", "pagemill-preload-heap"])
            .arg("--target-dir")
            .arg(target())
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
            .status()
            .unwrap();
        assert!(built.success(), "the preload library does not build");
        target().join("preload/libpagemill_heap.so")
    })
}

/// Compiles one of the programs; `None` (said) where there is no compiler.
fn program(name: &str) -> Option<PathBuf> {
    program_with(name, "", &[])
}

/// Likewise, with more flags, into a file of its own.
fn program_with(name: &str, as_well: &str, flags: &[&str]) -> Option<PathBuf> {
    let compiler = if name.ends_with(".cpp") { "c++" } else { "cc" };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload").join(name);
    let binary =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-{name}{as_well}.bin"));
    // Without -fno-builtin a compiler may leave out an allocation that nobody looks at.
    let compiled = Command::new(compiler)
        .args(["-O1", "-g", "-fno-builtin", "-w", "-pthread", "-o"])
        .args([&binary, &source])
        .args(flags)
        .arg("-ldl")
        .status();
    match compiled {
        Ok(status) => {
            assert!(status.success(), "{name} does not compile");
            Some(binary)
        }
        Err(error) => {
            eprintln!("skipped: no {compiler} to compile {name} with ({error})");
            None
        }
    }
}

/// A command with the library and nothing else of the caller's settings; every heap is worth a helper.
fn preloaded(program: &Path, configuration: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("PAGEMILL_HEAP", configuration)
        .env("PAGEMILL_HELPER_MIN", "0");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

#[test]
fn the_library_exports_the_whole_family_and_nothing_else() {
    let expected: BTreeSet<&str> = "
        malloc free calloc realloc reallocarray memalign aligned_alloc posix_memalign valloc pvalloc
        cfree malloc_usable_size malloc_trim mallopt mallinfo mallinfo2 malloc_stats malloc_info
        free_sized free_aligned_sized
        __libc_malloc __libc_free __libc_calloc __libc_realloc __libc_memalign __libc_valloc
        __libc_pvalloc
        _Znwm _Znam _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t _ZnwmSt11align_val_t
        _ZnamSt11align_val_t _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t
        _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm _ZdlPvRKSt9nothrow_t _ZdaPvRKSt9nothrow_t
        _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t _ZdlPvmSt11align_val_t _ZdaPvmSt11align_val_t
        _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPvSt11align_val_tRKSt9nothrow_t
        _Fork unshare setns mesh_mallctl mesh_in_bounds mesh_usable_size pagemill_stats pagemill_build"
        .split_whitespace()
        .collect();
    let bytes = std::fs::read(library()).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let exported: BTreeSet<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert_eq!(exported, expected);
    let page = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("pagemill_stats")).unwrap();
    assert_eq!(page.address() % 4096, 0);
    assert_eq!(page.size(), 4096);
}

#[test]
fn the_library_needs_no_other_and_uses_static_tls() {
    let bytes = std::fs::read(library()).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let endian = file.endian();
    let (entries, _) = file
        .elf_header()
        .sections(endian, &*bytes)
        .unwrap()
        .dynamic(endian, &*bytes)
        .unwrap()
        .unwrap();
    let values = |tag| {
        entries
            .iter()
            .filter(move |entry| entry.d_tag(endian) == tag)
            .map(|entry| entry.d_val(endian))
    };
    assert_eq!(values(elf::DT_NEEDED).count(), 0, "DT_NEEDED");
    let flags = values(elf::DT_FLAGS).next().unwrap();
    assert_ne!(flags & elf::DF_STATIC_TLS.0, 0, "DF_STATIC_TLS");
    let flags = values(elf::DT_FLAGS_1).next().unwrap();
    assert_ne!(flags & elf::DF_1_NODELETE.0, 0, "DF_1_NODELETE");
}

#[test]
fn c_answers_are_those_of_the_c_library() {
    let Some(program) = program("semantics.c") else { return };
    let wanted = text(&succeed(&mut Command::new(&program)).stdout);
    for configuration in CONFIGURATIONS {
        let got = succeed(&mut preloaded(&program, configuration));
        assert_eq!(text(&got.stdout), wanted, "under {configuration}");
        assert_eq!(text(&got.stderr), "", "under {configuration}");
    }
}

#[test]
fn cxx_operators_align_throw_and_call_the_new_handler() {
    let Some(program) = program("operators.cpp") else { return };
    let wanted = text(&succeed(&mut Command::new(&program)).stdout);
    assert!(wanted.contains("handler called 3 times"), "{wanted}");
    for configuration in CONFIGURATIONS {
        let got = succeed(&mut preloaded(&program, configuration));
        assert_eq!(text(&got.stdout), wanted, "under {configuration}");
    }
}

#[test]
fn every_kind_of_child_can_allocate() {
    let Some(program) = program("forks.c") else { return };
    for configuration in CONFIGURATIONS {
        let got = succeed(&mut preloaded(&program, configuration));
        assert_eq!(text(&got.stdout), "bad children: 0\n", "under {configuration}");
    }
}

#[test]
fn ten_thousand_short_threads_leave_nothing_behind() {
    let Some(program) = program("threads.c") else { return };
    for configuration in CONFIGURATIONS {
        let got = succeed(&mut preloaded(&program, configuration));
        let grown: i64 = text(&got.stdout).trim().parse().unwrap();
        // A cache that leaked would be some kilobytes a thread: tens of megabytes.
        assert!(grown < 4096, "{grown} KiB more after 9,000 threads under {configuration}");
    }
}

#[test]
fn signal_handlers_allocate_and_libraries_come_and_go() {
    let Some(program) = program("handlers.c") else { return };
    for configuration in CONFIGURATIONS {
        let got = succeed(&mut preloaded(&program, configuration));
        assert_eq!(text(&got.stdout), "handlers ran\n");
    }
}

#[test]
fn without_memory_malloc_fails_and_the_program_goes_on() {
    let Some(program) = program("exhaust.c") else { return };
    for configuration in CONFIGURATIONS {
        for size in ["100", "1000", "10000", "100000", "1000000", "10000000"] {
            let got = succeed(preloaded(&program, configuration).arg(size));
            let wanted = format!("{size}: full, goes on\n");
            assert_eq!(text(&got.stdout), wanted, "under {configuration}");
        }
    }
}

#[test]
fn misuse_is_named_with_its_address_and_ends_the_program() {
    const SIGABRT: i32 = 6;
    let Some(program) = program("misuse.c") else { return };
    for configuration in CONFIGURATIONS {
        for (how, name) in [
            ("twice", "double free"),
            ("later", "double free"),
            ("static", "wild free"),
            ("inside", "wild free"),
            ("large", ""),
        ] {
            let output = preloaded(&program, configuration).arg(how).output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.signal(), Some(SIGABRT), "{configuration} {how}: {said}");
            let address = said.lines().rev().nth(1).unwrap();
            let line = said.lines().next_back().unwrap();
            assert!(
                line.starts_with(&format!("pagemill: {name}")) && line.contains(address),
                "{configuration} {how}: {said}"
            );
        }
    }
}

/// Kinds of misuse, and what becomes of each for 8 bytes, 4 KiB and 256 KiB in the configurations but `h`, in `h`, and
/// with glibc 2.41: c(aught), m(issed), or what depends on what lies where.
const KINDS: [(&str, &str, &str, &str); 29] = [
    ("free twice", "c c c", "c c c", "c c c"),
    ("free twice, another between", "c c c", "c c c", "c c c"),
    ("free twice, much between", "c c c", "c c c", "c c c"),
    ("free twice, handed out between", "c c c", "c c c", "c c c"),
    ("resize after free", "c c c", "c c c", "m c c"),
    ("free inside", "c c c", "c c c", "c c c"),
    ("free inside, aligned", "c c c", "c c c", "c c c"),
    ("free inside, by 1", "c c c", "c c c", "c c c"),
    ("free beside", "c c c", "c c c", "c c c"),
    ("free far off", "c c c", "c c c", "c c c"),
    ("free of a static", "c c c", "c c c", "c c c"),
    ("free of the stack", "c c c", "c c c", "c c c"),
    ("write 1 behind", "? ? ?", "c c c", "m m m"),
    ("write 8 behind", "? ? ?", "c c c", "? m m"),
    ("write 0 behind", "? ? ?", "c c c", "m m m"),
    ("write 1 before", "? ? ?", "c c c", "m m m"),
    ("write 8 before", "? ? ?", "c c c", "m m m"),
    ("write 32 behind", "? ? ?", "c c c", "c c m"),
    ("write a page behind", "? ? ?", "? ? c", "m m m"),
    ("write a page before", "? ? ?", "? ? c", "? ? ?"),
    ("write 1 MiB behind", "c c ?", "c c c", "c c c"),
    ("write 1 MiB before", "c c ?", "c c c", "c c c"),
    ("write all of 1 MiB behind", "c c ?", "c c c", "c c c"),
    ("write after free", "? ? c", "c c c", "m m c"),
    ("write after free, at exit", "? ? c", "c c c", "m m c"),
    ("read after free", "? ? c", "c c c", "m m c"),
    ("same address again", "? ? c", "c c c", "m m c"),
    ("contents of before", "? ? ?", "c c c", "m m m"),
    ("read of nothing", "? ? ?", "c c c", "m m m"),
];

/// Of each kind with an object of each size, in a process of its own: whether it was stopped, or came to nothing.
fn is_caught(program: &Path, configuration: &str, kind: &str, size: &str) -> (bool, String) {
    let output = preloaded(program, configuration).args([kind, size]).output().unwrap();
    let (signal, said) = (output.status.signal(), text(&output.stdout));
    let what =
        format!("{configuration}, {kind}, {size}: {signal:?} {said:?} {:?}", text(&output.stderr));
    let caught = match kind {
        // Nothing to be stopped for: it is another address, and zero.
        "same address again" | "contents of before" => signal.is_none() && said == "done\n",
        // Either that, or it is stopped.
        "free twice, handed out between" | "read after free" => {
            signal.is_some() || said == "done\n"
        }
        // The program may be done; a large object faults before that.
        "write after free, at exit" => signal.is_some() && (said == "done\n" || size == "262144"),
        _ => signal.is_some() && said.is_empty(),
    };
    (caught, what)
}

#[test]
fn level_h_stops_every_kind_of_misuse_and_the_others_what_costs_nothing() {
    let Some(program) = program("kinds.c") else { return };
    for configuration in CONFIGURATIONS {
        let (mut caught, mut surely) = (0, 0);
        for (kind, others, h, _) in KINDS {
            let expected = if configuration == "h" { h } else { others };
            for (size, expected) in ["8", "4096", "262144"].into_iter().zip(expected.split(' ')) {
                let (is, what) = is_caught(&program, configuration, kind, size);
                assert!(is || expected != "c", "{what}");
                caught += usize::from(is);
                surely += usize::from(expected == "c");
            }
        }
        println!("{configuration}: {caught} of {}, {surely} for sure", KINDS.len() * 3);
        for size in ["8", "4096", "262144"] {
            let output =
                preloaded(&program, configuration).args(["nothing wrong", size]).output().unwrap();
            assert_eq!(text(&output.stdout), "done\n", "{configuration} {size}: {output:?}");
        }
    }
}

/// The page says what is caught, and how much of it: the table above, and its sums.
#[test]
fn the_page_on_misuse_says_what_is_caught() {
    let page = include_str!("../../../../docs/concepts/heap-misuse.md");
    let cell = |of: &str| match of {
        "c c c" => "yes",
        "c c ?" | "c c m" => "8 B, 4 KiB",
        "m c c" => "4 KiB, 256 KiB",
        "? ? c" | "m m c" => "256 KiB",
        other if !other.contains('c') => "no",
        other => panic!("{other} has no words"),
    };
    let mut sums = [0; 2];
    for (kind, others, h, glibc) in KINDS {
        let row = format!("| {kind} | {} | {} | {} |", cell(others), cell(h), cell(glibc));
        assert!(page.contains(&row), "{row}");
        for (sum, of) in sums.iter_mut().zip([others, h]) {
            *sum += of.matches('c').count();
        }
    }
    let [others, h] = sums;
    let all = KINDS.len() * 3;
    let sum = format!("Of these {all}, `h` stops {h} for sure, the other configurations {others}");
    assert!(page.replace('\n', " ").contains(&sum), "{sum}");
}

/// `mallinfo2` told memory that is held back as in use.
#[test]
fn memory_that_is_held_back_is_not_in_use() {
    let Some(program) = program("held.c") else { return };
    for configuration in CONFIGURATIONS {
        let output = preloaded(&program, configuration).output().unwrap();
        assert!(output.status.success(), "{configuration}: {}", text(&output.stderr));
    }
}

/// In `h` each of them stayed three mappings with page tables of their own, which made every fork dear.
#[test]
fn large_objects_that_were_freed_leave_no_mappings_behind() {
    let Some(program) = program("freed.c") else { return };
    for configuration in CONFIGURATIONS {
        let output = preloaded(&program, configuration).output().unwrap();
        assert!(output.status.success(), "{configuration}: {}", text(&output.stderr));
    }
}

#[test]
fn a_setting_that_cannot_be_used_is_said_once_and_the_default_holds() {
    for (variable, bad, good) in [
        ("PAGEMILL_BACKEND", "kms", "ksm"),
        ("PAGEMILL_PERIOD_MS", "100ms", "100"),
        ("MESH_PERIOD_MS", "-1", "0"),
        ("PAGEMILL_HELPER_MIN", "8M", "8388608"),
    ] {
        let said = |value: &str| {
            let mut command = Command::new("cat");
            command.arg("/dev/null").env("LD_PRELOAD", library()).env(variable, value);
            text(&succeed(&mut command).stderr)
        };
        let complaint = said(bad);
        assert_eq!(complaint.matches(variable).count(), 1, "{complaint}");
        assert!(
            complaint.contains(&format!("{variable}={bad} cannot be used; the default holds: ")),
            "{complaint}"
        );
        for fine in [good, ""] {
            assert_eq!(said(fine), "", "{variable}={fine}");
        }
    }
    // Each of several is said.
    let mut command = preloaded(Path::new("cat"), "3z");
    command.arg("/dev/null").env("PAGEMILL_BACKEND", "x").env("PAGEMILL_PERIOD_MS", "y");
    let complaint = text(&succeed(&mut command).stderr);
    assert_eq!(complaint.lines().count(), 3, "{complaint}");
}

/// What `PAGEMILL_HEAP` was called counts where that is not set, or is set to nothing.
#[test]
fn the_older_word_for_the_configuration_works() {
    let said = |newer: &str| {
        let mut command = preloaded(Path::new("/bin/true"), newer);
        text(&succeed(command.env("PAGEMILL_MESH", "3z")).stderr)
    };
    assert!(said("").contains("PAGEMILL_MESH=3z"), "{}", said(""));
    assert_eq!(said("1y"), "");
}

#[test]
fn an_unknown_configuration_is_said_once_and_the_default_holds() {
    let output = succeed(&mut preloaded(Path::new("/bin/true"), "3z"));
    let said = text(&output.stderr);
    assert!(said.contains("PAGEMILL_HEAP=3z") && said.contains("0n 1n 2n 0y 1y 2y h"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let quiet = succeed(preloaded(Path::new("/bin/true"), "3z").env("PAGEMILL_QUIET", "1"));
    assert_eq!(text(&quiet.stderr), "");
}

#[test]
fn the_helper_hides_its_descriptors_gives_up_its_rights_and_is_urgent() {
    let Some(program) = program("helper.c") else { return };
    let output = succeed(&mut preloaded(&program, "1y"));
    assert_eq!(
        text(&output.stdout),
        "one helper, confined\nas urgent as it may be\ndescriptors kept\n"
    );
    let output = succeed(&mut preloaded(&program, "1n"));
    assert_eq!(text(&output.stdout), "no helper\ndescriptors kept\n");
}

#[test]
fn a_program_that_rests_gets_its_memory_back_whatever_cpu_time_it_has_earned() {
    let Some(program) = program("rest.c") else { return };
    let output = succeed(preloaded(&program, "1y").env("PAGEMILL_BACKEND", "remap"));
    match &*text(&output.stdout) {
        "not root\n" => println!("skipped: merging by remap needs CAP_SYS_PTRACE"),
        said => assert_eq!(said, "given back\n"),
    }
}

/// The program counts the calls of its own functions.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_with_an_allocator_of_its_own_takes_the_detour_as_a_whole_or_not_at_all() {
    let flags = ["-rdynamic", "-O2"];
    let Some(whole) = program_with("detour.c", "", &flags) else { return };
    for configuration in CONFIGURATIONS {
        let mut command = preloaded(&whole, configuration);
        assert_eq!(text(&succeed(&mut command).stdout), "its own, calls\n", "{configuration}");
        let done = succeed(command.env("PAGEMILL_DETOUR", "1"));
        assert_eq!(text(&done.stdout), "the heap, no calls\n", "{configuration}");
        assert_eq!(text(&done.stderr), "");
    }
    let less = program_with("detour.c", "-less", &["-rdynamic", "-O2", "-DLESS"]).unwrap();
    let done = succeed(preloaded(&less, "1y").env("PAGEMILL_DETOUR", "1"));
    assert_eq!(text(&done.stdout), "its own, calls\n");
    assert!(text(&done.stderr).contains("it keeps its own"), "{}", text(&done.stderr));
    // A program without an allocator of its own is as it was.
    if let Some(plain) = program("semantics.c") {
        succeed(preloaded(&plain, "1y").env("PAGEMILL_DETOUR", "1"));
    }
}

#[test]
fn no_two_stripes_of_the_heap_are_one_mapping() {
    // The kernel reserves all memory in this mode, and mappings that differ in that alone become one.
    let reserves = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if reserves.trim() == "2" {
        println!("skipped: vm.overcommit_memory is 2");
        return;
    }
    let Some(program) = program("stripes.c") else { return };
    for config in ["1y", "1n"] {
        let output = succeed(&mut preloaded(&program, config));
        assert_eq!(text(&output.stdout), "several stripes, each with mappings of its own\n");
    }
}

#[test]
fn statistics_are_printed_at_exit_only_when_asked_for() {
    let silent = succeed(&mut preloaded(Path::new("/bin/true"), "1y"));
    assert_eq!(text(&silent.stderr), "");
    for variable in ["PAGEMILL_STATS", "MALLOCSTATS"] {
        let output = succeed(preloaded(Path::new("/bin/true"), "2y").env(variable, "1"));
        let said = text(&output.stderr);
        assert!(said.contains("configuration 2y") && said.contains("live bytes"), "{said}");
    }
}

/// The thread that compacts has no rights any more when it asks how much `ksmd` has merged: without the answer the
/// footprint stayed as the last pass had left it, 70 MiB above memory in a server at rest.
#[test]
fn the_helper_has_open_what_it_may_not_open_later() {
    let mut sleeps = Command::new("sleep");
    sleeps.arg("60").env("LD_PRELOAD", library()).env("PAGEMILL_MESH", "1y");
    let mut sleeps =
        sleeps.env("PAGEMILL_BACKEND", "ksm").env("PAGEMILL_HELPER_MIN", "0").spawn().unwrap();
    let tasks = format!("/proc/{}/task", sleeps.id());
    let opened = || -> BTreeSet<String> {
        let tasks = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        let files = tasks.flat_map(|task| std::fs::read_dir(task.path().join("fd")));
        let links = files.flatten().flatten().flat_map(|file| std::fs::read_link(file.path()));
        links.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
    };
    let mut files = opened();
    for _ in 0..400 {
        if files.contains("pagemap") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(25));
        files = opened();
    }
    let exists = Path::new("/proc/self/ksm_merging_pages").exists();
    sleeps.kill().unwrap();
    sleeps.wait().unwrap();
    assert!(files.contains("pagemap"), "{files:?}");
    assert!(!exists || files.contains("ksm_merging_pages"), "{files:?}");
}

/// One byte of the heap's static that was not zero from the start made all 549 KiB of it a mapping of the library's
/// file, of which the kernel reads in what lies around the pages that are used: a quarter of a MiB in every process.
#[test]
fn the_heap_is_no_part_of_the_librarys_file() {
    let maps = succeed(preloaded(Path::new("cat"), "1y").arg("/proc/self/maps")).stdout;
    let maps = text(&maps);
    let mut written = 0;
    for line in maps.lines().filter(|line| line.contains("libpagemill_heap.so")) {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        let (start, end) = range.split_once('-').unwrap();
        let address = |hexadecimal| u64::from_str_radix(hexadecimal, 16).unwrap();
        written += if rights.contains('w') { address(end) - address(start) } else { 0 };
    }
    assert!((1..64 << 10).contains(&written), "{written} bytes are writable:\n{maps}");
}
