//! Whether the preload library can work in a program: found out before the program is executed.
//!
//! The dynamic loader maps the libraries in `LD_PRELOAD` before the program's own and resolves
//! `malloc` to the first definition in the order program, preloaded libraries, other libraries. So
//! preloading has no effect when
//!
//! - there is no dynamic loader: a static program, and most Go programs;
//! - the loader ignores the variable: the program gains privileges when it is executed;
//! - the program itself comes first: it defines `malloc`, or calls an allocator of its own by
//!   another name;
//! - the loader is not the one that the library was built for: another machine, 32 bits, musl.
//!
//! A script is as good as its interpreter, which may be named through `env(1)`.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use object::read::elf::{
    Dyn, ElfFile32, ElfFile64, ElfSymbol64, FileHeader, ProgramHeader, SectionTable,
};
use object::{Endianness, Object, ObjectSymbol, ReadRef, elf};
use pagemill_kernel::process::privilege::{self, Gain};
use pagemill_model::whole;

use crate::exit::Exit;
use crate::lazy_file::Parts;

/// Scripts whose interpreters are scripts: how far the kernel follows.
const DEEPEST_SCRIPT: usize = 5;

/// Allocators by the name that only their own users call.
const ALLOCATORS: &[(&str, &str)] = &[
    ("moz_arena_malloc", "mozjemalloc"),
    ("je_malloc", "jemalloc"),
    ("_rjem_malloc", "jemalloc"),
    ("mi_malloc", "mimalloc"),
    ("tc_malloc", "tcmalloc"),
    ("sn_malloc", "snmalloc"),
    ("scudo_malloc", "scudo"),
];

/// A program's file, arguments (its name first) and environment, as execve(2) takes them.
#[derive(Clone, Debug)]
pub struct ExecArguments {
    /// The file.
    pub path: CString,
    /// Its arguments.
    pub arguments: Vec<CString>,
    /// Its environment: this process's.
    pub environment: Vec<CString>,
}

impl ExecArguments {
    /// Of `command`, whose file is `path` and which is known to itself as `name`.
    ///
    /// # Errors
    /// A word or a variable contains a NUL byte.
    pub fn of(path: &Path, command: &Command, name: &OsStr) -> anyhow::Result<Self> {
        let text =
            |word: &OsStr| CString::new(word.as_bytes()).context("an argument contains a NUL byte");
        let mut arguments = vec![text(name)?];
        for argument in command.get_args() {
            arguments.push(text(argument)?);
        }
        let mut environment = Vec::new();
        for (name, value) in std::env::vars_os() {
            let mut pair = name;
            pair.push("=");
            pair.push(value);
            environment.push(text(&pair)?);
        }
        Ok(Self { path: text(path.as_os_str())?, arguments, environment })
    }

    /// Sets variables of the environment, in place of those of the same name.
    ///
    /// # Errors
    /// As of [`ExecArguments::of`].
    pub fn set(&mut self, variables: &[(OsString, OsString)]) -> anyhow::Result<()> {
        for (name, value) in variables {
            let mut pair = name.as_bytes().to_vec();
            pair.push(b'=');
            self.environment.retain(|other| !other.as_bytes().starts_with(&pair));
            pair.extend(value.as_bytes());
            self.environment.push(CString::new(pair).context("a variable contains a NUL byte")?);
        }
        Ok(())
    }
}

/// Why there is no program to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProgram {
    /// No file of this name.
    Missing,
    /// There is one, but it may not be executed.
    NotExecutable(PathBuf),
}

/// What stands in the way of preloading; the last four in that of executing the program, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// There is no dynamic loader.
    Static,
    /// A Go program without one.
    Go,
    /// A library, and no program.
    Library,
    /// It gains privileges.
    Privileged,
    /// It carries an allocator.
    BundledAllocator,
    /// Its sanitizer must come first.
    Sanitizer,
    /// It is of another C library.
    Musl,
    /// It is of 32 bits.
    ThirtyTwoBit,
    /// It is of another machine.
    OtherMachine,
    /// It is none.
    NotAProgram,
    /// It is cut off, or not as ELF is.
    Damaged,
    /// Its interpreter is not there.
    NoInterpreter,
    /// Its interpreter may not be executed.
    InterpreterNotExecutable,
}

impl RefusalKind {
    /// One stable word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Go => "go",
            Self::Library => "library",
            Self::Privileged => "privileged",
            Self::BundledAllocator => "bundled-allocator",
            Self::Sanitizer => "sanitizer",
            Self::Musl => "musl",
            Self::ThirtyTwoBit => "32-bit",
            Self::OtherMachine => "other-machine",
            Self::NotAProgram => "not-a-program",
            Self::Damaged => "damaged",
            Self::NoInterpreter => "no-interpreter",
            Self::InterpreterNotExecutable => "interpreter-not-executable",
        }
    }
}

/// Why preloading cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What stands in the way.
    pub kind: RefusalKind,
    /// Why, as the end of "NAME cannot use the preload library: …".
    pub reason: String,
    /// What to do instead.
    pub way: String,
}

impl Refusal {
    /// How a wrapper ends: as env(1) where there is nothing to execute, with or without the library; as one that failed
    /// itself where only the library stands in the way.
    pub const fn exit(&self) -> Exit {
        match self.kind {
            RefusalKind::NoInterpreter => Exit::NotFound,
            RefusalKind::NotAProgram
            | RefusalKind::Damaged
            | RefusalKind::InterpreterNotExecutable => Exit::CannotExecute,
            RefusalKind::Static
            | RefusalKind::Go
            | RefusalKind::Library
            | RefusalKind::Privileged
            | RefusalKind::BundledAllocator
            | RefusalKind::Sanitizer
            | RefusalKind::Musl
            | RefusalKind::ThirtyTwoBit
            | RefusalKind::OtherMachine => Exit::WrapperFailed,
        }
    }
}

/// The outcome of an inspection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against preloading.
    Fits,
    /// The file could not be read, so nobody knows.
    Unknown(String),
    /// It cannot work.
    Refused(Refusal),
}

/// A program, the interpreters through which it runs, and the verdict on the last of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The program's file, then its interpreter if it is a script, and so on.
    pub chain: Vec<PathBuf>,
    /// Whether preloading can work.
    pub verdict: Verdict,
}

/// Finds the file that `execvp(3)` would execute for `command`.
///
/// # Errors
/// There is no such file, or none that may be executed.
pub fn find(command: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, NoProgram> {
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match executable(&path) {
            Some(true) => Ok(path),
            Some(false) => Err(NoProgram::NotExecutable(path)),
            None => Err(NoProgram::Missing),
        };
    }
    let default = OsStr::new("/bin:/usr/bin");
    let mut refused = None;
    for directory in std::env::split_paths(search.unwrap_or(default)) {
        let path = directory.join(command);
        match executable(&path) {
            Some(true) if !command.is_empty() => return Ok(path),
            Some(false) if path.is_file() => refused = refused.or(Some(path)),
            _ => {}
        }
    }
    Err(refused.map_or(NoProgram::Missing, NoProgram::NotExecutable))
}

/// Whether `path` is a file that somebody may execute; `None` if there is nothing.
fn executable(path: &Path) -> Option<bool> {
    let metadata = fs::metadata(path).ok()?;
    Some(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Says whether preloading a `malloc` can work in the program at `path`. `search` is the `PATH` that `env(1)`
/// would use.
pub fn inspect(path: &Path, search: Option<&OsStr>) -> Inspection {
    inspect_for(path, search, Replaces::Malloc)
}

/// What a preloaded library replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// The program's `malloc`, for which the program must have none of its own.
    Malloc,
    /// Nothing, so that the program's allocator is no hindrance, and not looked for: that takes a look at all symbols.
    Nothing,
}

/// The same for any library.
pub fn inspect_for(path: &Path, search: Option<&OsStr>, replaces: Replaces) -> Inspection {
    let mut chain = vec![path.to_owned()];
    let verdict = loop {
        let file = chain.last().map_or(path, PathBuf::as_path);
        match file_kind(file, search, replaces) {
            Ok(FileKind::Verdict(verdict)) => break verdict,
            Ok(FileKind::Interpreter(_)) if chain.len() > DEEPEST_SCRIPT => {
                break Verdict::Refused(not_a_program("its interpreters are scripts without end"));
            }
            Ok(FileKind::Interpreter(interpreter)) => chain.push(interpreter),
            Err(error) => {
                break Verdict::Unknown(format!("cannot read {}: {error}", file.display()));
            }
        }
    };
    Inspection { chain, verdict }
}

/// Shells by the names of their files.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ksh", "mksh", "zsh", "busybox"];

/// What a program runs: of a shell script that executes a program at last, as wrappers do, that program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped {
    /// All files on the way, each followed by its interpreters.
    pub chain: Vec<PathBuf>,
    /// The program that a script executes at last.
    pub executes: Option<PathBuf>,
    /// On the last program that is known.
    pub verdict: Verdict,
    /// Whether the last one that is known is a script that does not say what it executes.
    pub is_open: bool,
}

/// Inspects the program at `path`, and what shell scripts execute, script by script.
pub fn inspect_wrapped(path: &Path, search: Option<&OsStr>) -> Wrapped {
    let Inspection { mut chain, mut verdict } = inspect(path, search);
    let (mut executes, mut last): (Option<PathBuf>, _) = (None, chain.clone());
    let mut is_open = false;
    for _ in 0..DEEPEST_SCRIPT {
        let is_shell = |file: &PathBuf| SHELLS.iter().any(|shell| file.ends_with(shell));
        is_open = verdict == Verdict::Fits && last.len() > 1 && last.last().is_some_and(is_shell);
        let Some(next) =
            last.first().filter(|_| is_open).and_then(|file| executed_by(file, search))
        else {
            break;
        };
        let inner = inspect(&next, search);
        (verdict, last) = (inner.verdict, inner.chain);
        chain.extend_from_slice(&last);
        executes = Some(next);
    }
    Wrapped { chain, executes, verdict, is_open }
}

/// The last program that a shell script executes (`exec`), if it says so in plain words.
fn executed_by(script: &Path, search: Option<&OsStr>) -> Option<PathBuf> {
    const MOST: u64 = 1 << 18;
    let mut bytes = Vec::new();
    fs::File::open(script).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // A line that executes something: what, if that is in plain words.
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "exec").skip(1);
        let word = words.find(|word| !word.starts_with('-'))?.trim_matches(['"', '\'', ';']);
        if word.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(['<', '>']) {
            return None;
        }
        let plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
        // What is relative is so to who knows where.
        let known = word.chars().all(plain) && (word.starts_with('/') || !word.contains('/'));
        Some(Some(word).filter(|_| known).and_then(|word| find(OsStr::new(word), search).ok()))
    };
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.filter_map(of_line).next_back()?
}

/// What one file says.
enum FileKind {
    Verdict(Verdict),
    Interpreter(PathBuf),
}

fn file_kind(path: &Path, search: Option<&OsStr>, replaces: Replaces) -> io::Result<FileKind> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(256).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        return Ok(match interpreter(line, search) {
            Ok(path) => FileKind::Interpreter(path),
            Err(refusal) => FileKind::Verdict(Verdict::Refused(refusal)),
        });
    }
    if !start.starts_with(&elf::ELFMAG) {
        // execvp(3) gives a file without a known beginning to the shell.
        return Ok(if start.contains(&0) {
            FileKind::Verdict(Verdict::Refused(not_a_program(
                "it is neither an ELF program nor a script",
            )))
        } else {
            FileKind::Interpreter(PathBuf::from("/bin/sh"))
        });
    }
    if let Ok(Some(gain)) = privilege::gain(path) {
        return Ok(FileKind::Verdict(Verdict::Refused(privileged(path, gain))));
    }
    let refusal = inspect_elf(&Parts::open(path)?, path, replaces);
    Ok(FileKind::Verdict(refusal.map_or(Verdict::Fits, Verdict::Refused)))
}

/// The interpreter that a script's first line (after `#!`) names; for `env(1)` the program that it
/// will look up.
fn interpreter(line: &[u8], search: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(|word| OsString::from_vec(word.to_vec()));
    let path = words.next().map(PathBuf::from);
    let path = path.ok_or_else(|| not_a_program("its first line names no interpreter"))?;
    match executable(&path) {
        None => return Err(no_interpreter(path.display())),
        Some(false) => return Err(closed_interpreter(path.display())),
        Some(true) => {}
    }
    if path.file_name() != Some(OsStr::new("env")) {
        return Ok(path);
    }
    let is_own =
        |word: &OsString| word.as_bytes().starts_with(b"-") || word.as_bytes().contains(&b'=');
    let Some(name) = words.find(|word| !is_own(word)) else { return Ok(path) };
    find(&name, search).map_err(|error| match error {
        NoProgram::Missing => no_interpreter(name.display()),
        NoProgram::NotExecutable(path) => closed_interpreter(path.display()),
    })
}

fn inspect_elf<'a, R: ReadRef<'a>>(image: R, path: &Path, replaces: Replaces) -> Option<Refusal> {
    // Whatever its class says: a file that is cut off or overwritten is that before anything else.
    if image.read_bytes_at(4, 1) == Ok(&[elf::ELFCLASS32.0]) {
        return Some(match ElfFile32::<Endianness, R>::parse(image) {
            Err(_) => damaged("its headers make no sense"),
            Ok(_) => Refusal {
                kind: RefusalKind::ThirtyTwoBit,
                reason: "it is a 32-bit program and the library has 64 bits".into(),
                way: "use the 64-bit build of the program".into(),
            },
        });
    }
    let Ok(file) = Elf::parse(image) else {
        return Some(damaged("its headers make no sense"));
    };
    let endian = file.endian;
    let end_of = |segment: &elf::ProgramHeader64<Endianness>| {
        let loaded = segment.p_type(endian) == elf::PT_LOAD;
        loaded.then(|| segment.p_offset(endian).saturating_add(segment.p_filesz(endian)))
    };
    let needed = file.segments.iter().filter_map(end_of).max();
    let len = image.len().unwrap_or(0);
    if needed.is_none_or(|needed| needed > len) {
        let needed = needed.map_or("nothing".into(), |needed| format!("{needed} bytes"));
        return Some(damaged(&format!(
            "its headers tell the kernel to load {needed} and it has {len}"
        )));
    }
    let machine = file.header.e_machine(endian);
    if machine != host_machine() || !file.header.is_little_endian() {
        return Some(Refusal {
            kind: RefusalKind::OtherMachine,
            reason: format!("it is built for another machine (ELF machine number {})", machine.0),
            way: format!("use its build for {}", std::env::consts::ARCH),
        });
    }
    let mut segments = file.segments.iter();
    let loader = segments.find_map(|header| header.interpreter(endian, image).ok().flatten());
    let Some(loader) = loader else {
        return (!is_loader(path)).then(|| without_loader(&file, path));
    };
    let loader = String::from_utf8_lossy(loader).into_owned();
    if loader.contains("ld-musl") {
        return Some(Refusal {
            kind: RefusalKind::Musl,
            reason: format!(
                "its C library is musl (loader {loader}) and the library is built for glibc"
            ),
            way: "use a build for glibc".into(),
        });
    }
    if is_go(&file) {
        return Some(go(
            "it is a Go program: its heap does not come from malloc, only its C parts do",
        ));
    }
    let bundled = || (replaces == Replaces::Malloc).then(|| bundled(image)).flatten();
    sanitizer(&file).or_else(bundled)
}

/// The headers of a file. Its symbols are left where they are: a program has megabytes of them.
struct Elf<'a, R: ReadRef<'a>> {
    header: &'a elf::FileHeader64<Endianness>,
    endian: Endianness,
    image: R,
    segments: &'a [elf::ProgramHeader64<Endianness>],
    sections: SectionTable<'a, elf::FileHeader64<Endianness>, R>,
}

impl<'a, R: ReadRef<'a>> Elf<'a, R> {
    fn parse(image: R) -> object::Result<Self> {
        let header = elf::FileHeader64::<Endianness>::parse(image)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, image)?;
        let sections = header.sections(endian, image)?;
        Ok(Self { header, endian, image, segments, sections })
    }

    /// The libraries that it names.
    fn libraries(&self) -> Vec<&'a [u8]> {
        let (endian, image) = (self.endian, self.image);
        let named = || {
            let (entries, strings) = self.sections.dynamic(endian, image).ok()??;
            let strings = self.sections.strings(endian, image, strings).ok()?;
            let needed = entries.iter().filter(|entry| entry.d_tag(endian) == elf::DT_NEEDED);
            Some(needed.filter_map(|entry| strings.get(entry.d_val(endian) as u32).ok()).collect())
        };
        named().unwrap_or_default()
    }
}

fn is_go<'a, R: ReadRef<'a>>(file: &Elf<'a, R>) -> bool {
    let has = |name: &[u8]| file.sections.section_by_name(file.endian, name).is_some();
    has(b".go.buildinfo") || has(b".note.go.buildid")
}

fn go(reason: &str) -> Refusal {
    Refusal {
        kind: RefusalKind::Go,
        reason: reason.into(),
        way: "nothing that pagemill preloads can help a Go heap; GOGC and GOMEMLIMIT steer it"
            .into(),
    }
}

/// Why a file that names no loader cannot be helped.
fn without_loader<'a, R: ReadRef<'a>>(file: &Elf<'a, R>, path: &Path) -> Refusal {
    if is_library(file) {
        return Refusal {
            kind: RefusalKind::Library,
            reason: "it is a shared library, not a program".into(),
            way: "name the program that uses it".into(),
        };
    }
    if is_go(file) {
        return go("it is a static Go program, whose runtime manages its memory without malloc");
    }
    let name = path.file_name().unwrap_or_default().display();
    Refusal {
        kind: RefusalKind::Static,
        reason: "it is statically linked, so there is no loader that could preload anything".into(),
        way: format!("build {name} without -static, or install its dynamically linked package"),
    }
}

/// Whether the program at `path` names no loader and carries glibc, which reads its malloc's settings from variables:
/// the name of one of them is in it.
pub fn carries_glibc(path: &Path) -> bool {
    const SETTING: &[u8] = b"glibc.malloc.arena_max";
    let Ok(parts) = Parts::open(path) else { return false };
    let is_static = Elf::parse(&parts).is_ok_and(|file| {
        !file.segments.iter().any(|segment| segment.p_type(file.endian) == elf::PT_INTERP)
    });
    let has = |bytes: Vec<u8>| bytes.windows(SETTING.len()).any(|window| window == SETTING);
    is_static && whole::read(path, whole::TEXT).is_ok_and(has)
}

/// The libraries that the program at `path` names; none of what is no program.
pub fn needed(path: &Path) -> Vec<String> {
    let Ok(parts) = Parts::open(path) else { return Vec::new() };
    let Ok(file) = Elf::parse(&parts) else { return Vec::new() };
    let names = file.libraries().into_iter();
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// AddressSanitizer's library, if the program is linked with it: it ends a program where it is not loaded first.
fn sanitizer<'a, R: ReadRef<'a>>(file: &Elf<'a, R>) -> Option<Refusal> {
    const LIBRARIES: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];
    let mut names = file.libraries().into_iter();
    let name = names.find(|name| LIBRARIES.iter().any(|library| name.starts_with(library)))?;
    Some(Refusal {
        kind: RefusalKind::Sanitizer,
        reason: format!(
            "it is built with AddressSanitizer, whose library {} must be loaded before any other",
            String::from_utf8_lossy(name)
        ),
        way: "use a build without -fsanitize=address".into(),
    })
}

/// The sanitizer that a program is built with and that leaves no room for memory of others, if it is: its shadow takes
/// fixed addresses, and it ends where it finds anything there.
pub fn sanitizer_with_fixed_layout(path: &Path) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 2] =
        [(b"__tsan_init", "ThreadSanitizer"), (b"__msan_init", "MemorySanitizer")];
    let parts = Parts::open(path).ok()?;
    let file = ElfFile64::<Endianness, _>::parse(&parts).ok()?;
    // It calls it, or brings it.
    let found = file
        .dynamic_symbols()
        .chain(file.symbols())
        .filter_map(|symbol| symbol.name_bytes().ok())
        .find_map(|name| KNOWN.iter().find(|(known, _)| *known == name));
    found.map(|(_, sanitizer)| *sanitizer)
}

/// The allocator that only its own users call and that a program defines, by a symbol of it and its name.
fn carried<'a, R: ReadRef<'a>>(
    file: &ElfFile64<'a, Endianness, R>,
) -> Option<&'static (&'static str, &'static str)> {
    let of = |symbol: ElfSymbol64<'a, '_, Endianness, R>| allocator(defined(&symbol)?);
    let known = file.dynamic_symbols().filter_map(of).next();
    known.or_else(|| file.symbols().filter_map(|symbol| allocator(defined(&symbol)?)).next())
}

/// The name of what a symbol defines, if it defines something.
fn defined<'a, R: ReadRef<'a>>(symbol: &ElfSymbol64<'a, '_, Endianness, R>) -> Option<&'a [u8]> {
    symbol.is_definition().then(|| symbol.name_bytes().ok()).flatten()
}

/// The allocator that the program at `path` carries, by its name and a symbol that it defines.
pub fn own_allocator(path: &Path) -> Option<(&'static str, &'static str)> {
    let parts = Parts::open(path).ok()?;
    let file = ElfFile64::<Endianness, _>::parse(&parts).ok()?;
    carried(&file).map(|(symbol, name)| (*name, *symbol))
}

/// The allocator that the program carries, if it does.
fn bundled<'a, R: ReadRef<'a>>(image: R) -> Option<Refusal> {
    let file = ElfFile64::<Endianness, R>::parse(image).ok()?;
    let carries = |allocator: &str, symbol: &str| Refusal {
        kind: RefusalKind::BundledAllocator,
        reason: format!(
            "it carries its own allocator ({allocator}: it defines {symbol}), which comes first"
        ),
        way:
            "use a build that takes malloc from the C library (Firefox: --disable-jemalloc; Redis: \
                  MALLOC=libc)"
                .into(),
    };
    if let Some((symbol, allocator)) = carried(&file) {
        return Some(carries(allocator, symbol));
    }
    // Only an exported malloc comes before ours; a local one may be anything.
    let (mut malloc, mut free) = (false, false);
    for name in file.dynamic_symbols().filter_map(|symbol| defined(&symbol)) {
        malloc |= name == b"malloc";
        free |= name == b"free";
    }
    (malloc && free).then(|| carries("unknown", "malloc and free"))
}

/// The allocator whose users alone call this.
fn allocator(name: &[u8]) -> Option<&'static (&'static str, &'static str)> {
    ALLOCATORS.iter().find(|(symbol, _)| symbol.as_bytes() == name)
}

/// What gives a program its privileges, in words.
pub fn gain(gain: Gain) -> String {
    match gain {
        Gain::User(user) => format!("set-user-ID to user {user}"),
        Gain::Group(group) => format!("set-group-ID to group {group}"),
        Gain::Capabilities => "marked with file capabilities".into(),
    }
}

fn privileged(path: &Path, gained: Gain) -> Refusal {
    let bit = gain(gained);
    let (path, name) = (path.display(), path.file_name().unwrap_or_default().display());
    Refusal {
        kind: RefusalKind::Privileged,
        reason: format!(
            "it is {bit}, and the loader ignores LD_PRELOAD for programs that gain privileges"
        ),
        way: format!("run it as the user who has them, or a plain copy: cp {path} /tmp/{name}"),
    }
}

fn not_a_program(reason: impl Into<String>) -> Refusal {
    Refusal {
        kind: RefusalKind::NotAProgram,
        reason: reason.into(),
        way: "name an ELF program or a script that starts with #!".into(),
    }
}

fn damaged(how: &str) -> Refusal {
    Refusal {
        kind: RefusalKind::Damaged,
        reason: format!("it is a damaged ELF file: {how}"),
        way: "build or install it again".into(),
    }
}

fn no_interpreter(name: impl std::fmt::Display) -> Refusal {
    Refusal {
        kind: RefusalKind::NoInterpreter,
        reason: format!("its interpreter {name} is not found"),
        way: "install it, or name another one in the script's first line".into(),
    }
}

fn closed_interpreter(path: impl std::fmt::Display) -> Refusal {
    Refusal {
        kind: RefusalKind::InterpreterNotExecutable,
        reason: format!("its interpreter {path} is not an executable file"),
        way: format!("run: chmod +x {path}, or name another one in the script's first line"),
    }
}

/// Whether the file is a shared library: it has a name of its own, and nothing that says it is a program (`DF_1_PIE`).
fn is_library<'a, R: ReadRef<'a>>(file: &Elf<'a, R>) -> bool {
    let endian = file.endian;
    let Ok(Some((entries, _))) = file.sections.dynamic(endian, file.image) else { return false };
    let program = entries.iter().any(|entry| {
        entry.d_tag(endian) == elf::DT_FLAGS_1 && entry.d_val(endian) & elf::DF_1_PIE.0 != 0
    });
    !program && entries.iter().any(|entry| entry.d_tag(endian) == elf::DT_SONAME)
}

/// Why the file at `path` cannot be executed, and what to do about it.
pub fn not_executable(path: &Path) -> (&'static str, String) {
    if path.is_dir() {
        ("it is a directory", "name a program in it".to_owned())
    } else {
        ("it is not an executable file", format!("run: chmod +x {}", path.display()))
    }
}

/// Whether `path` is the dynamic loader itself, which can be told to run a program.
fn is_loader(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

/// The ELF machine number of this build.
pub fn host_machine() -> elf::Machine {
    if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 }
}

/// The words that a process was started with, by its `cmdline`; none where it has written a title over them, as servers
/// do (`redis-server *:6379`, `nginx: master process`): one word with spaces, and often zeros for what it was longer.
pub fn arguments(cmdline: &[u8]) -> Option<Vec<OsString>> {
    let text = cmdline.strip_suffix(&[0]).unwrap_or(cmdline);
    let words: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    let title = words[0].contains(&b' ') && words[1..].iter().all(|word| word.is_empty());
    let known = !title && !words[0].is_empty();
    known.then(|| words.into_iter().map(|word| OsString::from_vec(word.to_vec())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(directory: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_shell_fits() {
        let inspection = inspect(Path::new("/bin/sh"), None);
        assert_eq!(inspection.verdict, Verdict::Fits);
        assert_eq!(inspection.chain, [Path::new("/bin/sh")]);
    }

    #[test]
    fn a_script_is_as_good_as_its_interpreter_also_through_env() {
        let directory = tempfile::tempdir().unwrap();
        for first_line in [
            "#!/bin/sh\n",
            "#! /bin/sh -e\n",
            "#!/usr/bin/env sh\n",
            "#!/usr/bin/env -S A=b sh -e\n",
        ] {
            let path = script(directory.path(), "script", first_line.as_bytes(), 0o755);
            let inspection = inspect(&path, Some(OsStr::new("/bin")));
            assert_eq!(inspection.verdict, Verdict::Fits, "{first_line}");
            assert_eq!(inspection.chain, [path, PathBuf::from("/bin/sh")], "{first_line}");
        }
    }

    #[test]
    fn a_script_without_a_first_line_goes_to_the_shell() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "script", b"exit 0\n", 0o755);
        assert_eq!(inspect(&path, None).chain[1], Path::new("/bin/sh"));
    }

    #[test]
    fn scripts_that_interpret_each_other_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        let line = format!("#!{}\n", path.display());
        script(directory.path(), "script", line.as_bytes(), 0o755);
        let Verdict::Refused(refusal) = inspect(&path, None).verdict else { panic!("it fits") };
        assert_eq!(refusal.kind, RefusalKind::NotAProgram);
    }

    #[test]
    fn data_and_damaged_programs_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let whole = fs::read("/bin/sh").unwrap();
        let most = &whole[..whole.len() / 2];
        for (content, kind) in [
            (&b"\0\0data"[..], "not-a-program"),
            (&whole[..4], "damaged"),
            (&whole[..60], "damaged"),
            (most, "damaged"),
            (b"\x7fELF\x01\x01\x01\x00", "damaged"),
            (
                b"\x7fELF and then a novel that is longer than any header of an ELF file is",
                "damaged",
            ),
        ] {
            let path = script(directory.path(), "data", content, 0o755);
            let Verdict::Refused(refusal) = inspect(&path, None).verdict else { panic!("it fits") };
            assert_eq!(
                (refusal.kind.word(), refusal.exit().status()),
                (kind, 126),
                "{}",
                refusal.reason
            );
        }
    }

    #[test]
    fn a_32_bit_program_is_not_a_damaged_one() {
        let directory = tempfile::tempdir().unwrap();
        // A header of 52 bytes for i386, without segments.
        let mut image = [0; 52];
        image[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        (image[16], image[18], image[20], image[40]) = (2, 3, 1, 52);
        let path = script(directory.path(), "old", &image, 0o755);
        let Verdict::Refused(refusal) = inspect(&path, None).verdict else { panic!("it fits") };
        assert_eq!((refusal.kind.word(), refusal.exit().status()), ("32-bit", 125));
    }

    #[test]
    fn a_program_for_another_machine_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut image = fs::read("/bin/sh").unwrap();
        image[18..20].copy_from_slice(&elf::EM_RISCV.0.to_le_bytes());
        let path = script(directory.path(), "riscv", &image, 0o755);
        let Verdict::Refused(refusal) = inspect(&path, None).verdict else { panic!("it fits") };
        assert_eq!(refusal.kind, RefusalKind::OtherMachine);
    }

    /// A file whose names are counted as they are read.
    #[derive(Clone, Copy)]
    struct Counted<'a>(&'a [u8], &'a std::cell::Cell<usize>);

    impl<'a> ReadRef<'a> for Counted<'a> {
        fn len(self) -> Result<u64, ()> {
            Ok(self.0.len() as u64)
        }

        fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
            self.0.read_bytes_at(offset, size)
        }

        fn read_bytes_at_until(
            self,
            range: std::ops::Range<u64>,
            delimiter: u8,
        ) -> Result<&'a [u8], ()> {
            self.1.set(self.1.get() + 1);
            self.0.read_bytes_at_until(range, delimiter)
        }
    }

    /// `run --huge auto` looked at each symbol of a program nine times, for an allocator that did not matter to it:
    /// 220 ms of CPU for node, 27 for gcc, 20 for pagemill itself.
    #[test]
    fn symbols_are_read_once_and_not_at_all_where_nothing_is_replaced() {
        let own = std::env::current_exe().unwrap();
        let (bytes, reads) = (fs::read(&own).unwrap(), std::cell::Cell::new(0));
        let file = ElfFile64::<Endianness>::parse(&bytes[..]).unwrap();
        let symbols = file.symbols().chain(file.dynamic_symbols()).count();
        assert!(symbols > 1000, "{symbols}: too few to tell");
        // A section's symbol takes the section's name.
        for (replaces, most) in [(Replaces::Nothing, 500), (Replaces::Malloc, symbols * 2)] {
            reads.set(0);
            assert_eq!(inspect_elf(Counted(&bytes, &reads), &own, replaces), None);
            assert!(reads.get() <= most, "{replaces:?}: {} reads, {symbols} symbols", reads.get());
        }
    }

    #[test]
    fn the_search_path_is_followed_as_execvp_does() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        fs::create_dir_all(one.join("x")).unwrap();
        fs::create_dir(&two).unwrap();
        let search = std::env::join_paths([&one, &two]).unwrap();
        let search = Some(search.as_os_str());
        assert_eq!(
            find(OsStr::new("x"), search),
            Err(NoProgram::Missing),
            "a directory is no program"
        );
        let path = script(&two, "x", b"#!/bin/sh\n", 0o644);
        assert_eq!(find(OsStr::new("x"), search), Err(NoProgram::NotExecutable(path.clone())));
        script(&two, "x", b"#!/bin/sh\n", 0o755);
        assert_eq!(find(OsStr::new("x"), search), Ok(path));
        assert_eq!(find(OsStr::new("./no/such"), search), Err(NoProgram::Missing));
        assert_eq!(find(OsStr::new(""), search), Err(NoProgram::Missing));
    }

    #[test]
    fn a_title_that_a_server_wrote_over_its_arguments_is_no_command() {
        let words = |text: &str| arguments(text.as_bytes()).map(|words| words.join(" ".as_ref()));
        assert_eq!(words("sort\0-u\0a b\0"), Some("sort -u a b".into()));
        assert_eq!(words("/a b/sort\0-u\0"), Some("/a b/sort -u".into()), "a name with a space");
        assert_eq!(words("echo\0\0"), Some("echo ".into()), "an empty word is a word");
        assert_eq!(words("redis-server *:6379\0\0\0\0"), None);
        assert_eq!(words("nginx: master process /usr/sbin/nginx"), None);
        assert_eq!(words(""), None, "a kernel thread, or it has ended");
    }
}
