//! What is in the files of a program: its variables, functions and lines, read from ELF and DWARF after the fact.
//!
//! A file is looked at when its name first comes up, whole, and what was found in it is kept. Variables come from the
//! symbol table, or the dynamic one where the file is stripped. A function and its line come from DWARF (functions that
//! were inlined there, too), else the function from the symbols. A stripped file's debug information is looked for in
//! files of its own, as debuggers do: by build ID below `/usr/lib/debug`, or by the name in `.gnu_debuglink` (gdb's
//! manual, "Separate Debug Files"), with what `dwz` has moved to a file that several share.
//!
//! Always true: offsets are from where the image begins, which is the page of its lowest segment; a file that is
//! gone, or is no ELF file of 64 bits, has no image, and what lies there keeps the name of its mapping.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, RunTimeEndian, SectionId};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind, elf};
use pagemill_analysis::objects::{Frame, Global, Image, Symbols};
use pagemill_model::{page::BASE, whole};

type Bytes = EndianArcSlice<RunTimeEndian>;

type Elf<'a> = ElfFile64<'a, Endianness>;

/// What is known of files by now.
pub struct Files {
    known: RefCell<HashMap<String, Option<File>>>,
    /// Where debug information in files of its own is.
    debug: PathBuf,
}

impl Default for Files {
    fn default() -> Self {
        Self { known: RefCell::default(), debug: "/usr/lib/debug".into() }
    }
}

struct File {
    image: Image,
    /// Address of the image's first byte in the file's own terms.
    first: u64,
    /// Functions by address: first, bytes, name.
    functions: Vec<(u64, u64, String)>,
    lines: Option<addr2line::Context<Bytes>>,
    /// What was loaded to run: address and bytes.
    code: Vec<(u64, Vec<u8>)>,
    known: RefCell<HashMap<u64, Vec<Frame>>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.known.borrow().keys()).finish()
    }
}

/// Where the sources of languages' own libraries stand.
const LIBRARIES: [&str; 3] = ["/rustc/", "/rustlib/src/", "/include/c++/"];

impl Files {
    /// What a file says, if it can be read.
    fn file<T>(&self, name: &str, what: impl FnOnce(&File) -> T) -> Option<T> {
        if !self.known.borrow().contains_key(name) {
            let path = Path::new(name);
            let found = whole::elf(path).and_then(|image| File::read(path, &image, &self.debug));
            self.known.borrow_mut().insert(name.to_owned(), found);
        }
        self.known.borrow().get(name)?.as_ref().map(what)
    }
}

impl Symbols for Files {
    fn image(&self, file: &str) -> Option<Image> {
        self.file(file, |file| file.image.clone())
    }

    fn code(&self, file: &str, offset: u64) -> Vec<Frame> {
        self.file(file, |file| file.frames(offset)).unwrap_or_default()
    }

    fn follows_call(&self, file: &str, offset: u64) -> bool {
        self.file(file, |file| file.follows_call(offset)).unwrap_or(false)
    }
}

fn demangled(name: &str) -> String {
    addr2line::demangle_auto(Cow::Borrowed(name), None).into_owned()
}

/// The file with the debug information of another that has none.
fn separate(path: &Path, file: &Elf<'_>, debug: &Path) -> Option<Vec<u8>> {
    if let Ok(Some(id)) = file.build_id()
        && let Some(found) = by_build_id(id, debug)
    {
        return Some(found);
    }
    let (name, sum) = file.gnu_debuglink().ok()??;
    let name = Path::new(OsStr::from_bytes(name)).file_name()?;
    let beside = path.parent()?;
    let below = debug.join(beside.strip_prefix("/").unwrap_or(beside));
    let places = [beside.join(name), beside.join(".debug").join(name), below.join(name)];
    places
        .iter()
        .filter(|place| *place != path)
        .find_map(|place| whole::elf(place).filter(|bytes| crc32fast::hash(bytes) == sum))
}

/// The file of debug information that has this build ID.
fn by_build_id(id: &[u8], debug: &Path) -> Option<Vec<u8>> {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    let place = debug.join(format!(".build-id/{first}/{rest}.debug"));
    whole::elf(&place).filter(|bytes| {
        Elf::parse(&**bytes).is_ok_and(|file| file.build_id().ok().flatten() == Some(id))
    })
}

/// The DWARF of a file, with the file that it shares parts with.
fn dwarf(path: &Path, file: &Elf<'_>, debug: &Path) -> Option<Dwarf<Bytes>> {
    let order = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let load = |file: &Elf<'_>| {
        Dwarf::load(|id: SectionId| -> Result<Bytes, gimli::Error> {
            let section = file.section_by_name(id.name());
            let data = section.and_then(|section| {
                // A section that claims to be longer than any file is none.
                let small = section.compressed_data().ok()?.uncompressed_size <= whole::DATA;
                small.then(|| section.uncompressed_data().ok())?
            });
            Ok(EndianArcSlice::new(Arc::from(&*data.unwrap_or_default()), order))
        })
    };
    file.section_by_name(".debug_info")?;
    let mut dwarf = load(file).ok()?;
    if let Ok(Some((name, id))) = file.gnu_debugaltlink() {
        let named = || whole::elf(&path.parent()?.join(OsStr::from_bytes(name)));
        let shared = by_build_id(id, debug).or_else(named);
        if let Some(shared) = shared.as_deref().and_then(|bytes| Elf::parse(bytes).ok()) {
            dwarf.set_sup(load(&shared).ok()?);
        }
    }
    Some(dwarf)
}

/// The last two parts of a path: enough to find a file by, short enough for a table.
fn short(path: &str) -> &str {
    let cut = path.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    &path[cut..]
}

impl File {
    fn read(path: &Path, bytes: &[u8], debug: &Path) -> Option<Self> {
        let file = Elf::parse(bytes).ok()?;
        let endian = file.elf_header().endian().ok()?;
        let loaded: Vec<_> = file
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(endian) == elf::PT_LOAD)
            .collect();
        let first = loaded.iter().map(|header| header.p_vaddr(endian)).min()? / BASE * BASE;
        let end = loaded
            .iter()
            .filter_map(|header| header.p_vaddr(endian).checked_add(header.p_memsz(endian)))
            .max()?
            .checked_next_multiple_of(BASE)?;
        let code = loaded
            .iter()
            .filter(|header| header.p_flags(endian).0 & elf::PF_X.0 != 0)
            .filter_map(|header| {
                Some((header.p_vaddr(endian), header.data(endian, bytes).ok()?.to_vec()))
            })
            .collect();
        let (mut globals, mut functions) = (Vec::new(), Vec::new());
        let has_lines = file.section_by_name(".debug_info").is_some();
        let apart = (!has_lines).then(|| separate(path, &file, debug)).flatten();
        let apart = apart.as_deref().and_then(|bytes| Elf::parse(bytes).ok());
        let further = apart.iter().flat_map(|apart| apart.symbols());
        for symbol in file.symbols().chain(file.dynamic_symbols()).chain(further) {
            let (Ok(name), address, size) = (symbol.name(), symbol.address(), symbol.size()) else {
                continue;
            };
            if !symbol.is_definition() || size == 0 || !(first..end).contains(&address) {
                continue;
            }
            match symbol.kind() {
                SymbolKind::Data => globals.push((address - first, size, name)),
                SymbolKind::Text => functions.push((address, size, name.to_owned())),
                _ => {}
            }
        }
        globals.sort_by_key(|(offset, size, _)| (*offset, std::cmp::Reverse(*size)));
        functions.sort_by_key(|(address, ..)| *address);
        functions.dedup_by_key(|(address, ..)| *address);
        let mut after = 0;
        globals.retain(|(offset, size, _)| {
            let free = *offset >= after;
            after = if free { offset.saturating_add(*size) } else { after };
            free
        });
        let globals = globals
            .into_iter()
            .map(|(offset, size, name)| Global { offset, size, name: demangled(name) })
            .collect();
        let lines = dwarf(path, apart.as_ref().unwrap_or(&file), debug)
            .and_then(|dwarf| addr2line::Context::from_dwarf(dwarf).ok());
        let lowest = loaded.iter().min_by_key(|header| header.p_vaddr(endian))?;
        let begins_with_code = lowest.p_flags(endian).0 & elf::PF_X.0 != 0;
        let image = Image { bytes: end - first, begins_with_code, globals };
        Some(Self { image, first, functions, lines, code, known: RefCell::default() })
    }

    fn frames(&self, offset: u64) -> Vec<Frame> {
        if let Some(known) = self.known.borrow().get(&offset) {
            return known.clone();
        }
        let frames = self.find(self.first.saturating_add(offset));
        self.known.borrow_mut().insert(offset, frames.clone());
        frames
    }

    fn find(&self, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        let found =
            self.lines.as_ref().and_then(|lines| lines.find_frames(address).skip_all_loads().ok());
        if let Some(mut found) = found {
            while let Ok(Some(frame)) = found.next() {
                let function = frame
                    .function
                    .as_ref()
                    .and_then(|function| function.demangle().ok().map(|name| name.into_owned()));
                let file = frame.location.as_ref().and_then(|location| location.file);
                let library =
                    file.is_some_and(|file| LIBRARIES.iter().any(|part| file.contains(part)));
                let line = frame.location.as_ref().and_then(|location| {
                    Some(format!("{}:{}", short(location.file?), location.line?))
                });
                if let Some(function) = function {
                    frames.push(Frame { function: without_hash(function), line, library });
                }
            }
        }
        if frames.is_empty() {
            let at = self.functions.partition_point(|(first, ..)| *first <= address);
            if let Some((first, size, name)) = at.checked_sub(1).map(|at| &self.functions[at])
                && address < first.saturating_add(*size)
            {
                let function = without_hash(demangled(name));
                frames.push(Frame { function, ..Frame::default() });
            }
        }
        frames
    }

    /// Whether the instruction before is a call: near, or through a register or memory.
    fn follows_call(&self, offset: u64) -> bool {
        let address = self.first.saturating_add(offset);
        let before = self.code.iter().find_map(|(first, bytes)| {
            let end = usize::try_from(address.checked_sub(*first)?).ok()?;
            bytes.get(end.saturating_sub(7)..end)
        });
        let Some(before) = before else { return false };
        let call = |back: usize| {
            let from = before.len().checked_sub(back).map(|at| &before[at..]);
            match from {
                Some([0xe8, ..]) => back == 5,
                Some([0xff, second, ..]) => second >> 3 & 7 == 2,
                Some([0x41, 0xff, second, ..]) => second >> 3 & 7 == 2,
                _ => false,
            }
        };
        (2..=7).any(call)
    }
}

/// Rust's names end in a hash that says nothing to a reader.
fn without_hash(mut name: String) -> String {
    if let Some(at) = name.rfind("::h")
        && name.len() - at == 19
        && name[at + 3..].bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        name.truncate(at);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_finds_its_own_functions() {
        let files = Files::default();
        let path = std::env::current_exe().unwrap();
        let path = path.to_str().unwrap();
        let image = files.image(path).unwrap();
        assert!(image.bytes > 0 && !image.globals.is_empty());
        let pairs = image.globals.windows(2);
        assert!(pairs.clone().all(|two| two[0].offset + two[0].size <= two[1].offset), "overlap");
        let own = |file: &File| {
            // Its closures are named after it: they are longer.
            let named = |name: &str| name.contains("this_program_finds_its_own_functions");
            let functions = file.functions.iter().filter(|(.., name)| named(name));
            let (address, ..) = functions.min_by_key(|(.., name)| name.len()).unwrap();
            address - file.first
        };
        let offset = files.file(path, own).unwrap();
        let frames = files.code(path, offset);
        let own = frames.last().unwrap();
        assert!(own.function.contains("this_program_finds_its_own_functions"), "{own:?}");
    }

    /// A program that is stripped, the place of `work` in it, and its debug information in a file of its own.
    fn stripped(room: &Path, link: &[&str]) -> Option<(PathBuf, u64, PathBuf)> {
        let run = |program: &str, words: &[&str]| {
            let status = std::process::Command::new(program).current_dir(room).args(words).status();
            status.ok().filter(|status| status.success())
        };
        let source = "__attribute__((noinline)) int work(int n) {\n  return n * 7;\n}\n\
                      int main(int c, char **v) { return work(c); }\n";
        std::fs::write(room.join("work.c"), source).unwrap();
        run("cc", &["-g", "-O1", "-Wl,--build-id", "-o", "whole", "work.c"])?;
        run(
            "objcopy",
            &["--only-keep-debug", "--compress-debug-sections", "whole", "whole.debug"],
        )?;
        run("objcopy", &[&["--strip-all"], link, &["whole", "bare"]].concat())?;
        let bytes = std::fs::read(room.join("whole")).unwrap();
        let whole = Elf::parse(&*bytes).unwrap();
        let work = whole.symbols().find(|symbol| symbol.name() == Ok("work")).unwrap();
        std::fs::remove_file(room.join("whole")).unwrap();
        Some((room.join("bare"), work.address(), room.join("whole.debug")))
    }

    fn work_is_found(files: &Files, program: &Path, address: u64) -> bool {
        let name = program.to_str().unwrap();
        let offset = files.file(name, |file| address - file.first).unwrap();
        let frames = files.code(name, offset);
        let found = frames.first().is_some_and(|frame| frame.function == "work");
        // Its first instruction may be of the line of its name or of its body: compilers and linkers differ.
        let is_there = |line: &str| ["work.c:1", "work.c:2"].iter().any(|end| line.ends_with(end));
        found && frames[0].line.as_deref().is_some_and(is_there)
    }

    #[test]
    fn debug_information_in_a_file_of_its_own_is_found_by_name() {
        let room = tempfile::tempdir().unwrap();
        let link = ["--add-gnu-debuglink=whole.debug", "--remove-section=.note.gnu.build-id"];
        let Some((program, work, debug)) = stripped(room.path(), &link) else {
            return eprintln!("skipped: no cc or objcopy");
        };
        let files = || Files { debug: room.path().join("debug"), ..Files::default() };
        assert!(work_is_found(&files(), &program, work), "beside the program");
        let below = room.path().join("debug").join(room.path().strip_prefix("/").unwrap());
        std::fs::create_dir_all(&below).unwrap();
        std::fs::rename(&debug, below.join("whole.debug")).unwrap();
        assert!(work_is_found(&files(), &program, work), "below the debug directory");
        // That of another build is none.
        let mut bytes = std::fs::read(below.join("whole.debug")).unwrap();
        bytes.push(0);
        std::fs::write(below.join("whole.debug"), bytes).unwrap();
        assert!(!work_is_found(&files(), &program, work));
    }

    #[test]
    fn debug_information_in_a_file_of_its_own_is_found_by_build_id() {
        let room = tempfile::tempdir().unwrap();
        let Some((program, work, debug)) = stripped(room.path(), &[]) else {
            return eprintln!("skipped: no cc or objcopy");
        };
        let bytes = std::fs::read(&program).unwrap();
        let id = Elf::parse(&*bytes).unwrap().build_id().unwrap().unwrap().to_vec();
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let files = || Files { debug: room.path().join("debug"), ..Files::default() };
        assert!(!work_is_found(&files(), &program, work), "before it is there");
        let place = room.path().join("debug/.build-id").join(&hex[..2]);
        std::fs::create_dir_all(&place).unwrap();
        let place = place.join(format!("{}.debug", &hex[2..]));
        std::fs::rename(&debug, &place).unwrap();
        assert!(work_is_found(&files(), &program, work));
        std::fs::write(&place, &bytes[..bytes.len() / 2]).unwrap();
        assert!(!work_is_found(&files(), &program, work), "cut off");
    }

    #[test]
    fn what_is_no_program_has_no_image() {
        let files = Files::default();
        assert_eq!(files.image("/no/such/file"), None);
        assert_eq!(files.image("/proc/self/status"), None);
        assert!(
            files.code("/no/such/file", 7).is_empty() && !files.follows_call("/no/such/file", 7)
        );
    }

    #[test]
    fn calls_of_every_form_are_told_from_other_code() {
        let file = |code: &[u8]| File {
            image: Image::default(),
            first: 0x1000,
            functions: Vec::new(),
            lines: None,
            code: vec![(0x1000, code.to_vec())],
            known: RefCell::default(),
        };
        for call in [
            &[0xe8, 1, 2, 3, 4][..],
            &[0xff, 0xd0],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x50, 0x18],
        ] {
            assert!(file(call).follows_call(call.len() as u64), "{call:x?}");
        }
        for other in [&[0x90; 8][..], &[0x48, 0x89, 0xc3, 0x90, 0x90], &[]] {
            assert!(!file(other).follows_call(other.len() as u64), "{other:x?}");
        }
        assert!(!file(&[0xe8, 1, 2, 3, 4]).follows_call(4));
    }

    #[test]
    fn names_are_short() {
        assert_eq!(short("/a/b/src/nas/cg.rs"), "nas/cg.rs");
        assert_eq!(short("cg.rs"), "cg.rs");
        assert_eq!(without_hash("a::b::h0123456789abcdef".into()), "a::b");
        assert_eq!(without_hash("a::b::hello".into()), "a::b::hello");
    }
}
