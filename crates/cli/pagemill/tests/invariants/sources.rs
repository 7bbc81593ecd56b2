//! How long sources are, and what does not stand in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{Source, files_below, sources};

/// `thread::spawn` and `Scope::spawn` panic where a user may have no more processes: eight verbs were aborted. In
/// tests they may.
#[test]
fn no_thread_is_started_that_may_not_fail() {
    let mut wrong = Vec::new();
    let sources = sources();
    for Source { place, text, .. } in &sources {
        let code: String = without_tests(text).map(|line| format!("{line}\n")).collect();
        if code.contains("thread::spawn(") || code.contains("scope.spawn(") {
            wrong.push(place);
        }
    }
    assert!(sources.len() > 300, "{}", sources.len());
    assert_eq!(wrong, Vec::<&String>::new(), "thread::start, Builder::spawn");
}

/// What is installed took a tree of files for the machine from whoever set `PAGEMILL_ROOT`.
#[test]
fn what_only_tests_set_is_read_by_no_build_for_users() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut reads = 0;
    for Source { place, text, .. } in sources() {
        let code: Vec<&str> =
            without_tests(&text).filter(|line| !line.trim_start().starts_with("//")).collect();
        for line in code.iter().filter(|line| {
            line.contains("\"PAGEMILL_ROOT\"") || line.contains(concat!("\"PAGEMILL", "_TEST_"))
        }) {
            let guarded = ["cfg!(debug_assertions).then(|| std::env::var", "for_test(\""]
                .iter()
                .any(|guard| line.contains(guard));
            assert!(guarded, "{place}: {}", line.trim());
            reads += 1;
        }
        if let Some((_, body)) = text.split_once("fn for_test") {
            assert!(body.lines().nth(1).unwrap().contains("cfg!(debug_assertions).then("));
        }
    }
    assert!(reads >= 4, "{reads}");
    for file in ["Cargo.toml", "pagemill", ".cargo/config.toml", "packaging/debian/rules"] {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        assert!(!text.contains("debug-assertions") && !text.contains("DEBUG_ASSERTIONS"), "{file}");
    }
}

/// Files that name one of the kernel's own, outside of the crates that read them, and why.
const NAMES_OF_THE_KERNEL: [(&str, &str); 11] = [
    ("base/launch/src/redirected.rs", "an open file of this process, by its descriptor"),
    ("base/model/src/recording/redact.rs", "names that tell nothing of who recorded"),
    ("lab/workloads/src/programs/pauses.rs", "is read while it is timed, and allocates nothing"),
    ("see/live/src/terminal.rs", "an open file of this process, by its descriptor"),
    ("see/record/src/recorders/frag.rs", "the name of a source, in a recording"),
    ("see/record/src/recorders/mappings.rs", "the name of a source, in a recording"),
    ("see/record/src/recorders/pressure.rs", "the name of a source, in a recording"),
    ("see/record/src/recorders/surroundings.rs", "files as another process sees them"),
    ("see/record/src/sampler.rs", "the name of a source, in a recording"),
    ("steer/advise/src/estimates.rs", "names of open files, in a command line"),
    ("steer/control/src/tier/daemon.rs", "where control groups are, for a path of one"),
];

/// Experiments read the processor's name, caches and load by hand, each in its own words, where `Linux` has them.
#[test]
fn files_of_the_kernel_are_read_by_the_crate_for_that() {
    let (mut found, mut looked) = (BTreeSet::new(), 0);
    for Source { wing, room, place, text } in sources() {
        // What runs in other programs has no such crate; a fuzz target makes such files.
        if wing == "inside" || ["kernel", "tracer", "fuzz"].contains(&room) {
            continue;
        }
        looked += 1;
        let mut code = without_tests(&text).filter(|line| !line.trim_start().starts_with("//"));
        // A message may begin with the name of a file.
        let is_path = |line: &str, start: &str| {
            let mut after = line.split(start).skip(1);
            after.any(|rest| !rest.split('"').next().unwrap().contains([' ', ':']))
        };
        if code.any(|line| is_path(line, "\"/proc/") || is_path(line, "\"/sys/")) {
            found.insert(place);
        }
    }
    assert!(looked > 300, "{looked}");
    let known = NAMES_OF_THE_KERNEL.map(|(place, _)| place.to_owned());
    assert_eq!(found, known.into(), "ask `pagemill_kernel::Linux`");
}

/// What callers of `Linux` have that reads no text of the kernel's, or one that another method reads.
const NO_TEXT: [(&str, &str); 14] = [
    ("clear_referenced", "writes"),
    ("compact_memory", "writes"),
    ("descendants", "asks for `children`"),
    ("drain_lists", "writes"),
    ("drop_caches", "writes"),
    ("in_first_pid_namespace", "the target of a link"),
    ("is_root", "the status of this process"),
    ("may_compact", "opens"),
    ("may_set_ksm", "opens"),
    ("pressure_file", "where a file is"),
    ("refresh_lists", "has the kernel count; what it reads is `zoneinfo`"),
    ("set_ksm_settings", "writes"),
    ("set_oom_score_adj", "writes"),
    ("shrink_slabs", "writes"),
];

/// The methods of `Linux` in a source that other crates may call.
fn methods(text: &str) -> BTreeSet<&str> {
    let blocks = text.split("\nimpl Linux {").skip(1);
    let bodies = blocks.map(|block| block.split("\n}\n").next().unwrap());
    let items = bodies.flat_map(|body| body.split("\n    pub fn ").skip(1));
    let heads = items.map(|item| item.split('{').next().unwrap());
    let methods = heads.filter(|head| head.contains("&self"));
    methods.map(|head| head.split(['(', '<']).next().unwrap()).collect()
}

/// Seventeen readers of the kernel's text were in no target of the fuzzer.
#[test]
fn what_reads_text_of_the_kernel_is_fuzzed() {
    let all = sources();
    let of = |room: &'static str| all.iter().filter(move |source| source.room == room);
    let methods: BTreeSet<&str> = of("kernel").flat_map(|source| methods(&source.text)).collect();
    assert!(methods.len() > 60, "{methods:?}");
    let fuzzed: Vec<&str> = of("fuzz").map(|source| source.text.as_str()).collect();
    let is_called = |name: &str| fuzzed.iter().any(|text| text.contains(&format!("linux.{name}(")));
    let left: BTreeSet<&str> = methods.into_iter().filter(|name| !is_called(name)).collect();
    assert_eq!(
        left,
        NO_TEXT.map(|(name, _)| name).into(),
        "a row of TEXTS in the fuzzer's kernel.rs"
    );
}

#[test]
fn methods_of_the_machine_are_found() {
    let text = "pub fn a(&self) {}\nimpl Linux {\n    pub fn b(&self, x: u8) -> u8 {\n        1\n    }\n    pub fn \
                c<T>(\n        &self,\n    ) {\n    }\n    fn d(&self) {}\n    pub(crate) fn e(&self) {}\n    pub fn \
                f() {}\n}\nimpl Other {\n    pub fn g(&self) {}\n}\n";
    assert_eq!(methods(text), ["b", "c"].into());
}

/// A sum of what a file says stops at the largest number: six places had written that out, and others had not.
#[test]
fn sums_that_stop_are_written_once() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    for wing in ["base", "see", "steer", "lab", "cli"] {
        for at in files_below(&crates.join(wing), ".rs") {
            let shown = at.display().to_string();
            if shown.contains("/tests/") || shown.ends_with("model/src/sums.rs") {
                continue;
            }
            let text = fs::read_to_string(&at).unwrap();
            let code: Vec<&str> = without_tests(&text).map(str::trim).collect();
            let code = code.concat();
            let folds = code.split(".fold(0").skip(1).map(|rest| rest.split(')').next().unwrap());
            wrong.extend(
                folds.filter(|fold| fold.contains("saturating_add")).map(|_| shown.clone()),
            );
        }
    }
    assert_eq!(wrong, [""; 0], "pagemill_model::sums::sum");
}

/// `pagemill validate … 2>&1 | head -1` was aborted: the standard library's `eprintln!` panics when nobody reads any
/// more. A crate that prints has the macros of `launch`, and says its name by `notice!`.
#[test]
fn what_prints_does_so_by_the_macros_of_launch() {
    let sources = sources();
    let with_macros =
        sources.iter().filter(|one| one.text.contains("extern crate pagemill_launch;"));
    let with_macros: Vec<&str> = with_macros.map(|one| one.room).chain(["launch"]).collect();
    let mut prints = 0;
    for Source { room, place, text, .. } in &sources {
        let code: String = without_tests(text).map(str::trim).collect();
        assert!(!code.contains("eprintln!(\"pagemill: "), "{place}: notice!");
        if ["println!(", "print!(", "notice!("].iter().any(|one| code.contains(one)) {
            assert!(with_macros.contains(room), "{place} prints by the standard library");
            prints += 1;
        }
    }
    assert!(prints > 40, "{prints}");
}

/// What prints answers, reads the command's words and ends the process is the verb. Who may besides, and why.
const PROGRAMS: [(&str, &str); 3] = [
    // A workload is the program of a child process, in which a thread that is missing leaves the others waiting.
    ("lab/workloads/src/threads.rs", "process::exit("),
    // What `launch` calls when nothing is left to do: the end of a wrapper is its child's.
    ("base/kernel/src/process/signal.rs", "process::exit("),
    // The verbs' `println!` itself.
    ("base/launch/src/stdio.rs", "io::stdout("),
];

/// What stands in a text of what is the verb's, as whole words.
fn of_the_verb(text: &str) -> Vec<&'static str> {
    let code: Vec<&str> =
        without_tests(text).map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let words = ["println!(", "print!(", "args_os(", "env::args(", "process::exit(", "io::stdout("];
    let whole = |word: &&str| {
        code.match_indices(*word).any(|(at, _)| {
            let before = code[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    };
    words.into_iter().filter(whole).collect()
}

#[test]
fn libraries_print_no_answer_read_no_argument_and_end_no_process() {
    let mut found = Vec::new();
    for Source { place, text, .. } in sources().iter().filter(|one| one.wing != "cli") {
        found.extend(of_the_verb(text).into_iter().map(|word| (place.clone(), word)));
    }
    let mut may = PROGRAMS.map(|(place, word)| (place.to_owned(), word));
    may.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, may, "a writer, a result, what the verb was asked");
}

#[test]
fn what_is_the_verbs_is_found_as_whole_words() {
    let text = "fn a() {\n    eprintln!(); // println!()\n    std::process::exit(1)\n}\n#[cfg(test)]\nmod tests {\n\
                fn b() { print!() }\n}\n";
    assert_eq!(of_the_verb(text), ["process::exit("]);
    assert_eq!(of_the_verb("macro_rules! println {}\nprint!(\"\");"), ["print!("]);
}

/// What is read whole, however long it is, outside of `kernel` and of what makes seeds for a fuzzer: a file
/// of the kernel, and what programs of an experiment wrote. Where, and what is read.
const READ_WHOLE: [(&str, &str); 10] = [
    ("lab/experiments/src/huge_pages/programs.rs", "self.at(\"benchmark\")"),
    ("lab/experiments/src/huge_pages/programs.rs", "self.at(\"complaints\")"),
    ("lab/experiments/src/huge_pages/programs.rs", "self.at(\"output\")"),
    ("lab/experiments/src/huge_pages/programs.rs", "self.at(\"stats.json\")"),
    ("lab/experiments/src/reproduce/browser.rs", "&program.complaints"),
    ("lab/experiments/src/reproduce/cell.rs", "&program.complaints"),
    ("lab/experiments/src/reproduce/cell.rs", "&program.output"),
    ("lab/experiments/src/reproduce/cell.rs", "output"),
    ("lab/experiments/src/reproduce/redis.rs", "&program.output"),
    ("see/record/src/sampler.rs", "group.directory().join(\"cgroup.procs\")"),
];

/// What a text reads whole: the arguments of the calls. One that is passed on by its name, without a call, is "".
fn read_whole(text: &str) -> Vec<String> {
    let lines = without_tests(text).map(|line| line.split("//").next().unwrap_or_default());
    let code: String = lines.map(|line| format!("{}\n", line.trim())).collect();
    let mut found = Vec::new();
    for word in ["fs::read", "fs::read_to_string", "io::read_to_string"] {
        for (at, _) in code.match_indices(word) {
            let rest = &code[at + word.len()..];
            if rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            if !rest.starts_with('(') {
                found.push(String::new());
                continue;
            }
            let mut depth = 0;
            let end = rest.char_indices().find(|(_, c)| {
                depth += i32::from(*c == '(') - i32::from(*c == ')');
                depth == 0
            });
            let end = end.map_or(0, |(at, _)| at);
            found.push(rest.get(1..end).unwrap_or_default().to_owned());
        }
    }
    // By an import it has no module before it.
    if code.split(';').any(|part| {
        let part = part.trim_start();
        part.starts_with("use std::fs::") && part.contains("read")
            || part.starts_with("use std::{") && part.contains("fs::{") && part.contains("read")
    }) {
        found.push(String::new());
    }
    found
}

#[test]
fn what_users_name_is_read_with_a_bound() {
    let (mut found, mut seen) = (Vec::new(), 0);
    for Source { wing, room, place, text } in sources() {
        // The kernel's files; seeds of a fuzzer; programs of an experiment.
        if wing != "inside" && !["kernel", "fuzz", "workloads"].contains(&room) {
            seen += 1;
            found.extend(read_whole(&text).into_iter().map(|what| (place.clone(), what)));
        }
    }
    found.sort_unstable();
    assert!(seen > 300, "{seen}");
    let may = READ_WHOLE.map(|(place, what)| (place.to_owned(), what.to_owned()));
    assert_eq!(found, may, "model::whole");
}

#[test]
fn what_is_read_whole_is_found() {
    let text = "fn a() {\n    std::fs::read(b(c)).unwrap(); // fs::read(x)\n    fs::read_to_string(\n        \
                \"/proc/x\",\n    );\n    d.map(fs::read);\n    fs::read_dir(e);\n}\n#[cfg(test)]\nmod tests {\n    \
                fs::read(f);\n}\n";
    assert_eq!(read_whole(text), ["b(c)", "", "\n\"/proc/x\",\n"]);
    assert_eq!(read_whole("use std::fs::{self, read};\n"), [""]);
    assert_eq!(read_whole("use std::fs::{self, File};\n"), [""; 0]);
}

/// Lines of a function at most, and of a file; tests apart.
const FUNCTION: usize = 80;
const FILE: usize = 800;

/// The code of a file without what is for tests only.
pub(crate) fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let mut skips = false;
    text.lines().filter(move |line| {
        skips |= line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        let skipped = skips;
        // An item ends in its first column, or on a line of its own.
        let ends = line.ends_with(';') || line.ends_with(" {}");
        skips &= line.starts_with(['#', '/']) || !(*line == "}" || !line.starts_with(' ') && ends);
        !skipped
    })
}

/// The functions of a file: name and lines. Where one ends is seen by its indentation, which rustfmt has made.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = without_tests(text).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let Some((before, after)) = body.split_once("fn ") else { continue };
        let words = ["pub", "const", "async", "unsafe", "safe", "default", "extern", "$vis"];
        let is_modifier = |word: &str| words.contains(&word) || word.starts_with(['"', '(']);
        let before = before.replace("pub(", "pub (").replace("in ", "");
        let end = after.find(|c: char| !c.is_alphanumeric() && !['_', '$'].contains(&c));
        let (name, rest) = after.split_at(end.unwrap_or(after.len()));
        if !before.split_whitespace().all(is_modifier) || !rest.starts_with(['(', '<']) {
            continue;
        }
        let indent = &line[..line.len() - body.len()];
        // Of a body, or of a declaration over several lines.
        let end = |line: &&str| {
            let rest = line.strip_prefix(indent);
            rest.is_some_and(|rest| rest == "}" || rest.starts_with(')') && rest.ends_with(';'))
        };
        let one = line.ends_with([';', '}']);
        // One whose end is not seen is as long as can be.
        let length = lines[at..].iter().position(end).map_or(usize::MAX, |lines| 1 + lines);
        let length = if one { 1 } else { length };
        found.push((name.to_owned(), length));
    }
    found
}

#[test]
fn functions_and_files_are_short() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crates");
    let mut seen = 0;
    for path in files_below(&crates, ".rs") {
        let shown = path.display().to_string();
        if shown.contains("/tests/") || shown.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines = without_tests(&text).count();
        assert!(lines <= FILE, "{shown}: {lines} lines");
        for (name, length) in functions(&text) {
            seen += 1;
            assert!(length <= FUNCTION, "{shown}: {name} has {length} lines");
        }
    }
    assert!(seen > 4000, "{seen} functions");
}

#[test]
fn functions_are_measured() {
    let text = "pub(crate) fn a() {\n    b();\n    let f = |fn_: u8| {\n    };\n}\n\nimpl X \
                {\n    const fn c(&self) -> u8 {\n        \
                1\n    }\n    fn d();\n    fn e() {}\n}\n#[cfg(test)]\nmod tests {\nfn g() {\n}\n}\n";
    let found = functions(text);
    let expected = [("a", 5), ("c", 3), ("d", 1), ("e", 1)];
    assert_eq!(found, expected.map(|(name, lines)| (name.to_owned(), lines)));
    let odd = "pub(in crate::x) async fn a<T>(\n) {\n}\n    unsafe extern \"C-unwind\" fn b() {\n    $vis fn $c() \
               {\n    }\nlet f = \"a fn(x)\";\ntype F = fn (u8);\n";
    let expected = [("a", 3), ("b", 3), ("$c", 2)];
    assert_eq!(functions(odd), expected.map(|(name, lines)| (name.to_owned(), lines)));
    // A function that the indentation does not end was one line.
    assert_eq!(functions("fn a() {\n  b();\n  }\n"), [("a".to_owned(), usize::MAX)]);
}

/// Crates in which what has a unit has a type.
const TYPED: [&str; 3] = ["base", "see", "steer"];
/// Pairs of plain numbers that stay: they are arrays in JSON, and each is a step of time and what was in it.
const PLAIN: [(&str, &str); 3] = [
    ("see/analysis/src/heat/view.rs", "pub type Cell"),
    ("see/analysis/src/heat/view.rs", "pub type LastUse"),
    ("see/analysis/src/cold_stacks.rs", "pub last_touched"),
];

/// The items of a file, each as one line: signatures, whoever sees them; fields and aliases that others see, be it in
/// the crate only.
fn items(text: &str) -> Vec<String> {
    let lines: Vec<&str> = without_tests(text).collect();
    let is_seen = |line: &str| line.starts_with("pub ") || line.starts_with("pub(");
    let starts = lines.iter().enumerate().filter(|(_, line)| {
        let body = line.trim_start();
        is_seen(body) || is_function(body)
    });
    let whole = |(at, first): (usize, &&str)| {
        let function = is_function(first.trim_start());
        let ends =
            |line: &&str| line.ends_with(['{', ';', '}']) || !function && line.ends_with(',');
        let more = lines[at..].iter().position(ends).unwrap_or(0);
        lines[at..=at + more].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    };
    starts.map(whole).collect()
}

/// Whether a line, without what it is indented by, begins a function.
fn is_function(line: &str) -> bool {
    let words = ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "extern", "\"C\""];
    let before = line.split_once("fn ").map(|(before, _)| before);
    before.is_some_and(|before| before.split_whitespace().all(|word| words.contains(&word)))
}

/// What a beginning and an end, or a beginning and a length, are called.
const BEGINS: [&str; 6] = ["start", "from", "first", "begin", "low", "at"];
const ENDS: [&str; 9] = ["end", "to", "until", "last", "high", "length", "len", "bytes", "size"];

/// Whether an item has plain numbers where a type would say what they are.
fn is_plain(item: &str) -> bool {
    // What a closure is called with has names where it is called.
    let item = item.replace("FnMut(u64", "").replace("Fn(u64", "");
    let pair = |at: usize| {
        let name = |text: &str, end: bool| -> String {
            let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
            let part: Vec<char> = match end {
                true => text.chars().rev().take_while(is_part).collect(),
                false => text.chars().take_while(is_part).collect(),
            };
            if end { part.into_iter().rev().collect() } else { part.into_iter().collect() }
        };
        let (first, rest) = (name(&item[..at], true), &item[at + ": u64, ".len()..]);
        let second = name(rest, false);
        let plain = rest[second.len()..].starts_with(": u64");
        plain && BEGINS.contains(&first.as_str()) && ENDS.contains(&second.as_str())
    };
    let named = item.contains("pid: u64") || item.match_indices(": u64, ").any(|(at, _)| pair(at));
    item.contains("(u64, u64") || named && item.contains("fn ")
}

/// What is two numbers may be an address and a length, a first and a last page, a process and a page: a type says it.
#[test]
fn no_signature_and_no_public_item_has_a_pair_of_plain_numbers() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for Source { place, text, .. } in sources().iter().filter(|one| TYPED.contains(&one.wing)) {
        for item in items(text) {
            seen += 1;
            let known = PLAIN.iter().any(|(file, start)| place == file && item.starts_with(start));
            if is_plain(&item) && !known {
                wrong.push(format!("{place}: {item}"));
            }
        }
    }
    assert!(seen > 4000, "{seen} items");
    assert_eq!(wrong, Vec::<String>::new(), "a Pid, a PageRange, a Range<u64>, a type of its own");
}

/// A method of a trait has no `pub` before it, and a private one is called by others of its file.
#[test]
fn no_function_takes_a_process_that_is_a_plain_number() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    let typed = |one: &&Source| one.wing == "inside" || TYPED.contains(&one.wing);
    for Source { place, text, .. } in sources().iter().filter(typed) {
        let code = without_tests(text).collect::<Vec<_>>().join(" ");
        for signature in code.split("fn ").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            seen += 1;
            if signature.contains("pid: u64") {
                wrong.push(format!("{place}: {signature}"));
            }
        }
    }
    assert!(seen > 3000, "{seen} functions");
    assert_eq!(wrong, Vec::<String>::new(), "a Pid");
}

#[test]
fn items_are_found_whoever_sees_them() {
    let text = "pub struct A {\n    pub b: (u64, u64),\n    c: u8,\n}\npub fn d(\n    e: u8,\n    f: u8,\n) -> g \
                {\n}\n    pub(crate) h: u8,\nimpl A {\n    pub(super) const fn i() {\n    }\n    fn j(\n    k: u8,\n\
                \x20   ) {\n    let f = |fn_: u8| {};\n    }\n}\n";
    let found = [
        "pub struct A {",
        "pub b: (u64, u64),",
        "pub fn d( e: u8, f: u8, ) -> g {",
        "pub(crate) h: u8,",
        "pub(super) const fn i() {",
        "fn j( k: u8, ) {",
    ];
    assert_eq!(items(text), found);
    let plain = [
        "pub b: (u64, u64),",
        "pub fn d( &self, pid: u64, e: u8, ) {",
        "pub const fn d(start: u64, end: u64) {",
        "pub(crate) fn d(&self, from: u64, to: u64) {",
        "fn d(of: &[u8], at: u64, length: u64, e: u8) -> u64 {",
        "fn d() -> Option<(u64, u64)> {",
    ];
    let typed = [
        "pub pid: u64,",
        "pub fn d(each: impl FnMut(u64, u64)) {",
        "pub fn d(pid: Pid) {",
        "fn d(start: u64, index: u64, restart: u64, end: u64) {",
    ];
    assert!(plain.iter().all(|item| is_plain(item)) && !typed.iter().any(|item| is_plain(item)));
}
