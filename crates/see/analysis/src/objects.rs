//! What lies at an address: the data structures of a program by name.
//!
//! | object | known by |
//! |---|---|
//! | global | the symbol table of the file that is mapped there; its image may end in memory without a file (.bss) |
//! | allocation | the code that asked for it; what one place asked for again and again is one object |
//! | stack | the kernel's name, or memory right above a guard that may not be touched |
//! | file, heap, anonymous | the mapping |
//!
//! What is known best wins: a global before its file, an allocation before the mapping that it lies in. The words in
//! front of an allocation, where allocators keep what they know of it, belong to it unless they are another's: it is
//! there that the C library's touches a page of the heap for the first time. Symbols are offsets from where an image
//! begins, which is the lowest mapping of its file.
//!
//! Always true: an address has one object; an allocation that was given back is none any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pagemill_model::{Allocation, Event, MappingSample, Pid};

use crate::addresses::{self, ProcessAddress, Ranges};
use crate::faults::label;

/// A variable of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// First byte, from where the image begins.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Its name.
    pub name: String,
}

/// What a file becomes when it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Bytes of address space from its first to its last.
    pub bytes: u64,
    /// Whether the first of them are code.
    pub begins_with_code: bool,
    /// Its variables, by offset, without overlap.
    pub globals: Vec<Global>,
}

/// A function and the line in it, if that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The function.
    pub function: String,
    /// File and line, such as `cg.rs:88`.
    pub line: Option<String>,
    /// Whether it is a part of the language's own library.
    pub library: bool,
}

impl Frame {
    /// Both in one.
    pub fn text(&self) -> String {
        match &self.line {
            Some(line) => format!("{} ({line})", self.function),
            None => self.function.clone(),
        }
    }
}

/// Who knows what is in files.
pub trait Symbols {
    /// The image of a file; `None` if it is none.
    fn image(&self, file: &str) -> Option<Image>;
    /// The functions at an offset of an image, inlined ones first.
    fn code(&self, file: &str, offset: u64) -> Vec<Frame>;
    /// Whether what stands before an offset of an image is a call.
    fn follows_call(&self, file: &str, offset: u64) -> bool;
}

/// What kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A variable of an image.
    Global,
    /// Memory from the allocator.
    Allocation,
    /// The stack of a thread.
    Stack,
    /// A mapping: of a file, the heap, anonymous.
    Mapping,
}

/// What is told apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A variable of a file.
    Global(String, String),
    /// By process and call stack.
    Allocation(Pid, Vec<u64>),
    /// By its first address.
    Stack(ProcessAddress),
    /// By its name.
    Mapping(String),
}

/// Where an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLocation {
    /// Number of the object.
    pub object: usize,
    /// Bytes from where it begins.
    pub offset: u64,
    /// Its bytes; 0 where that is not known.
    pub size: u64,
}

/// The address spaces as they are now.
#[derive(Debug, Default)]
pub struct Objects {
    numbers: HashMap<Identity, usize>,
    identities: Vec<Identity>,
    /// Of memory that processes share, by number, the first that mapped it: a page of it is one, whoever touches it.
    owners: Vec<Option<Pid>>,
    /// First address after, and number; by first address.
    mappings: Ranges<usize>,
    allocations: Ranges<usize>,
    /// Guards below stacks: where they end.
    guards: BTreeMap<ProcessAddress, u64>,
    /// Where images begin.
    bases: BTreeMap<ProcessAddress, usize>,
    /// The same by process, image and address.
    loaded: BTreeSet<(Pid, usize, u64)>,
    images: HashMap<String, Option<usize>>,
    /// Files and their images.
    known: Vec<(String, Image)>,
}

/// What an allocator may keep in front of an allocation, bytes.
const HEADER: u64 = 16;

/// A guard is at most this large; glibc reserves larger ranges that may not be touched for its arenas.
const GUARD: u64 = 1 << 20;

impl Objects {
    /// What tells the objects apart, by number.
    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// In whose name a page of an object is that this process touched: where processes share it, at the same address as
    /// after a fork, that is one of them.
    pub fn owner(&self, object: usize, pid: Pid) -> Pid {
        self.owners.get(object).copied().flatten().unwrap_or(pid)
    }

    fn number(&mut self, identity: Identity) -> usize {
        if let Some(number) = self.numbers.get(&identity) {
            return *number;
        }
        let number = self.identities.len();
        self.identities.push(identity.clone());
        self.owners.push(None);
        self.numbers.insert(identity, number);
        number
    }

    /// Takes in a mapping.
    pub fn mapping(&mut self, row: &MappingSample, symbols: &impl Symbols) {
        let (Some(pid), Some(start), Some(end)) = (row.pid.map(Pid::told), row.start, row.end)
        else {
            return;
        };
        let at = ProcessAddress::new(pid, start);
        let name = row.name.as_deref().unwrap_or_default();
        let permissions = row.permissions.as_deref().unwrap_or_default();
        if start >= end {
            return;
        }
        if name.is_empty() && permissions.starts_with("---") && end.saturating_sub(start) <= GUARD {
            self.guards.insert(ProcessAddress::new(pid, end), start);
        }
        let above_guard =
            name.is_empty() && permissions.starts_with("rw-") && self.guards.contains_key(&at);
        let identity = if name == "[stack]" || above_guard {
            Identity::Stack(at)
        } else {
            Identity::Mapping(label(row))
        };
        let number = self.number(identity);
        // What a fork's child has is told without permissions.
        if is_in_memory(name) && !permissions.ends_with('p') {
            self.owners[number].get_or_insert(pid);
        }
        addresses::lay(&mut self.mappings, at, (end, number));
        if name.starts_with('/') {
            self.load(pid, start, name, permissions.contains('x'), symbols);
        }
    }

    /// Takes in a mapping of a file, of `code` or not. A program may map parts of an image once more somewhere else (V8
    /// does with its own code): these are no image.
    fn load(&mut self, pid: Pid, start: u64, file: &str, code: bool, symbols: &impl Symbols) {
        let known = match self.images.get(file) {
            Some(known) => *known,
            None => {
                let image = symbols.image(file).map(|image| {
                    self.known.push((file.to_owned(), image));
                    self.known.len() - 1
                });
                self.images.insert(file.to_owned(), image);
                image
            }
        };
        let Some(number) = known else { return };
        let image = &self.known[number].1;
        let mut below = self.loaded.range((pid, number, 0)..=(pid, number, start));
        let part = below.next_back().is_some_and(|(.., base)| start - base < image.bytes);
        let mut known = self.loaded.range((pid, number, 0)..=(pid, number, u64::MAX));
        if part || known.next().is_some() && code != image.begins_with_code {
            return;
        }
        self.loaded.insert((pid, number, start));
        self.bases.insert(ProcessAddress::new(pid, start), number);
    }

    /// First byte after the allocation that begins at an address, and its object.
    pub fn allocated(&self, pid: Pid, start: u64) -> Option<(u64, usize)> {
        self.allocations.get(&ProcessAddress::new(pid, start)).copied()
    }

    /// The allocations that there are: first byte, first byte after it, object.
    pub fn allocations(&self) -> impl Iterator<Item = (ProcessAddress, u64, usize)> {
        self.allocations.iter().map(|(at, (end, object))| (*at, *end, *object))
    }

    /// Takes in what was allocated or given back.
    pub fn allocation(&mut self, row: &Allocation) {
        let (Some(pid), Some(address)) = (row.pid.map(Pid::told), row.address) else { return };
        let at = ProcessAddress::new(pid, address);
        let Some(size) = row.size else {
            self.allocations.remove(&at);
            return;
        };
        let stack = row.stack.clone().unwrap_or_default();
        let number = self.number(Identity::Allocation(pid, stack));
        self.allocations.insert(at, (address.saturating_add(size.max(1)), number));
    }

    /// The file whose image an address is in, and how far.
    pub fn image_at(&self, pid: Pid, address: u64) -> Option<(&str, u64)> {
        let (number, offset) = self.image_number(pid, address)?;
        Some((self.known[number].0.as_str(), offset))
    }

    fn image_number(&self, pid: Pid, address: u64) -> Option<(usize, u64)> {
        let (at, number) = self.bases.range(..=ProcessAddress::new(pid, address)).next_back()?;
        if at.pid != pid {
            return None;
        }
        let offset = address - at.address;
        (offset < self.known[*number].1.bytes).then_some((*number, offset))
    }

    /// What lies at an address.
    pub fn at(&mut self, pid: Pid, address: u64) -> ObjectLocation {
        if let Some(place) = find(&self.allocations, pid, address) {
            return place;
        }
        let end = ProcessAddress::new(pid, address.saturating_add(HEADER));
        let behind = self.allocations.range(ProcessAddress::new(pid, address)..=end).next();
        if let Some((at, (end, object))) = behind {
            return ObjectLocation { object: *object, offset: 0, size: end - at.address };
        }
        if let Some((number, offset)) = self.image_number(pid, address) {
            let (file, image) = &self.known[number];
            let at = image.globals.partition_point(|global| global.offset <= offset);
            if let Some(global) = at.checked_sub(1).map(|at| &image.globals[at])
                && offset - global.offset < global.size
            {
                let (from, size) = (offset - global.offset, global.size);
                let identity = Identity::Global(file.clone(), global.name.clone());
                return ObjectLocation { object: self.number(identity), offset: from, size };
            }
            let named = find(&self.mappings, pid, address);
            // What follows a file without a name of its own is the rest of its image.
            if let Some(place) = named
                && matches!(&self.identities[place.object], Identity::Mapping(name) if name.starts_with('/'))
            {
                return place;
            }
            let identity = Identity::Mapping(format!("{file}, data"));
            let size = image.bytes;
            return ObjectLocation { object: self.number(identity), offset, size };
        }
        find(&self.mappings, pid, address).unwrap_or_else(|| {
            let object = self.number(Identity::Mapping("mapped between two looks".into()));
            ObjectLocation { object, offset: 0, size: 0 }
        })
    }
}

/// Whether a mapping of this name is of a file in memory alone.
pub(crate) fn is_in_memory(name: &str) -> bool {
    let in_memory = ["/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"];
    in_memory.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a mapping of this name is of a file that is stored somewhere, and not in memory alone.
pub fn is_stored(name: &str) -> bool {
    name.starts_with('/') && !is_in_memory(name)
}

fn find(of: &Ranges<usize>, pid: Pid, address: u64) -> Option<ObjectLocation> {
    let (at, (end, object)) = of.range(..=ProcessAddress::new(pid, address)).next_back()?;
    let inside = at.pid == pid && address < *end;
    inside.then(|| ObjectLocation {
        object: *object,
        offset: address - at.address,
        size: end - at.address,
    })
}

/// Functions through which memory is asked for; whoever calls them is who wants it.
const PLUMBING: [&str; 22] = [
    "alloc::",
    "<alloc::",
    "std::",
    "<std::",
    "core::",
    "<core::",
    "hashbrown::",
    "<hashbrown::",
    "__rust",
    "__rdl_",
    "__rustc",
    "<[T]",
    "<T as ",
    "<I as ",
    "operator new",
    "void* std::",
    "malloc",
    "calloc",
    "realloc",
    "__gnu_cxx::",
    "g_malloc",
    "xmalloc",
];

/// Whose code it is: the innermost function that is neither of the language's library nor the allocator's plumbing.
pub fn wanted_by(frames: &[Frame]) -> Option<&Frame> {
    let plumbing = |frame: &Frame| {
        frame.library || PLUMBING.iter().any(|word| frame.function.starts_with(word))
    };
    frames.iter().find(|frame| !plumbing(frame)).or(frames.first())
}

/// Instructions in the kernel are one place.
pub const KERNEL: u64 = u64::MAX;

/// Objects and code by name.
#[derive(Debug)]
pub struct Names<S> {
    symbols: S,
    /// The address spaces.
    pub objects: Objects,
}

impl<S: Symbols> Names<S> {
    /// Empty address spaces.
    pub fn new(symbols: S) -> Self {
        Self { symbols, objects: Objects::default() }
    }

    /// Takes in what changes the address spaces.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Mapping(row) => self.objects.mapping(row, &self.symbols),
            Event::Allocation(row) => self.objects.allocation(row),
            _ => {}
        }
    }

    /// Name and kind of an object, and its detail: the file of a global, the call stack of an allocation.
    pub fn of(&self, identity: &Identity) -> (String, ObjectKind, Vec<String>) {
        match identity {
            Identity::Global(file, name) => (name.clone(), ObjectKind::Global, vec![file.clone()]),
            Identity::Mapping(name) => (name.clone(), ObjectKind::Mapping, Vec::new()),
            Identity::Stack(..) => ("stack".into(), ObjectKind::Stack, Vec::new()),
            Identity::Allocation(pid, stack) => {
                let frames = self.stack(*pid, stack);
                let name = wanted_by(&frames).map_or("allocation".into(), Frame::text);
                (name, ObjectKind::Allocation, frames.iter().map(Frame::text).collect())
            }
        }
    }

    /// The line of an instruction, or [`KERNEL`]'s name.
    pub fn line(&self, pid: Pid, instruction: u64) -> String {
        if instruction == KERNEL {
            return "kernel".into();
        }
        let frames = self.frames(pid, instruction, false);
        wanted_by(&frames).map_or_else(|| format!("{instruction:#x}"), Frame::text)
    }

    /// Functions at an instruction, innermost first. `after_call`: it is where a call returns to.
    fn frames(&self, pid: Pid, instruction: u64, after_call: bool) -> Vec<Frame> {
        let unnamed = |function: String| vec![Frame { function, ..Frame::default() }];
        let Some((file, offset)) = self.objects.image_at(pid, instruction) else {
            return unnamed(format!("{instruction:#x}"));
        };
        let frames = self.symbols.code(file, offset.saturating_sub(after_call.into()));
        match frames.is_empty() {
            true => unnamed(format!("{}+{offset:#x}", file.rsplit('/').next().unwrap_or(file))),
            false => frames,
        }
    }

    /// The call stack of an allocation: of what a stack held, what follows a call.
    fn stack(&self, pid: Pid, stack: &[u64]) -> Vec<Frame> {
        let real = stack.iter().enumerate().filter(|(at, address)| {
            let place = self.objects.image_at(pid, **address);
            *at == 0 || place.is_some_and(|(file, offset)| self.symbols.follows_call(file, offset))
        });
        real.flat_map(|(_, address)| self.frames(pid, *address, true)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One image of 0x5000 bytes with a variable of 0x100 at 0x4000, in its .bss.
    pub(crate) struct One;

    impl Symbols for One {
        fn image(&self, file: &str) -> Option<Image> {
            let table = Global { offset: 0x4000, size: 0x100, name: "table".into() };
            let globals = vec![table];
            (file == "/bin/one").then_some(Image { bytes: 0x5000, begins_with_code: true, globals })
        }
        fn code(&self, _: &str, offset: u64) -> Vec<Frame> {
            let frame = |function: &str| Frame { function: function.into(), ..Frame::default() };
            match offset {
                0x500..0x600 => vec![frame("alloc::vec"), frame("one::make")],
                _ => vec![frame("one::main")],
            }
        }
        fn follows_call(&self, _: &str, offset: u64) -> bool {
            offset != 0x666
        }
    }

    pub(crate) fn mapping(start: u64, end: u64, permissions: &str, name: &str) -> MappingSample {
        MappingSample {
            pid: Some(7),
            start: Some(start),
            end: Some(end),
            permissions: Some(permissions.into()),
            name: Some(name.into()),
            ..MappingSample::default()
        }
    }

    fn name(objects: &mut Objects, address: u64) -> Identity {
        let place = objects.at(Pid(7), address);
        objects.identities()[place.object].clone()
    }

    #[test]
    fn what_is_known_best_wins() {
        let mut objects = Objects::default();
        objects.mapping(&mapping(0x10000, 0x12000, "r-xp", "/bin/one"), &One);
        objects.mapping(&mapping(0x12000, 0x14000, "rw-p", "/bin/one"), &One);
        objects.mapping(&mapping(0x14000, 0x15000, "rw-p", ""), &One);
        objects.mapping(&mapping(0x20000, 0x40000, "rw-p", "[heap]"), &One);
        let table = Identity::Global("/bin/one".into(), "table".into());
        assert_eq!(name(&mut objects, 0x140ff), table, "a variable behind the end of the file");
        assert_eq!(name(&mut objects, 0x14100), Identity::Mapping("/bin/one, data".into()));
        assert_eq!(name(&mut objects, 0x12000), Identity::Mapping("/bin/one".into()));
        assert_eq!(
            name(&mut objects, 0x15000),
            Identity::Mapping("mapped between two looks".into())
        );
        let taken = |size| Allocation {
            pid: Some(7),
            address: Some(0x20010),
            size,
            stack: Some(vec![0x10500]),
            ..Allocation::default()
        };
        objects.allocation(&taken(Some(0x100)));
        assert_eq!(name(&mut objects, 0x2010f), Identity::Allocation(Pid(7), vec![0x10500]));
        assert_eq!(name(&mut objects, 0x20110), Identity::Mapping("[heap]".into()));
        let before = objects.at(Pid(7), 0x20008);
        assert_eq!(
            before,
            ObjectLocation { offset: 0, ..objects.at(Pid(7), 0x20010) },
            "what malloc keeps of it"
        );
        objects.allocation(&Allocation { address: Some(0x20118), ..taken(Some(8)) });
        let behind = objects.at(Pid(7), 0x20110);
        assert_eq!(behind, objects.at(Pid(7), 0x20118), "not the one before");
        let last = objects.at(Pid(7), 0x2010f);
        assert_eq!(
            (last.offset, last.size),
            (0xff, 0x100),
            "an allocation's own bytes are its own"
        );
        let place = objects.at(Pid(7), 0x20020);
        assert_eq!((place.offset, place.size), (0x10, 0x100));
        objects.allocation(&taken(None));
        assert_eq!(name(&mut objects, 0x20010), Identity::Mapping("[heap]".into()), "given back");
        assert_eq!(objects.image_at(Pid(7), 0x10500), Some(("/bin/one", 0x500)));
        assert_eq!(objects.image_at(Pid(8), 0x10500), None, "another process");
        assert_eq!(objects.at(Pid(8), 0x1000).size, 0, "a lower address in a later process");
    }

    /// V8 maps its code a second time, and the names of the whole program were gone.
    #[test]
    fn a_part_of_an_image_mapped_once_more_is_no_image() {
        let mut objects = Objects::default();
        objects.mapping(&mapping(0x10000, 0x12000, "r-xp", "/bin/one"), &One);
        objects.mapping(&mapping(0x90000, 0x91000, "r--p", "/bin/one"), &One);
        assert_eq!(objects.image_at(Pid(7), 0x10500), Some(("/bin/one", 0x500)));
        assert_eq!(objects.image_at(Pid(7), 0x90500), None);
        // Executed once more, it lies elsewhere.
        objects.mapping(&mapping(0x50000, 0x52000, "r-xp", "/bin/one"), &One);
        assert_eq!(objects.image_at(Pid(7), 0x50500), Some(("/bin/one", 0x500)));
    }

    #[test]
    fn memory_above_a_small_guard_is_a_stack() {
        let mut objects = Objects::default();
        objects.mapping(&mapping(0x100000, 0x101000, "---p", ""), &One);
        objects.mapping(&mapping(0x101000, 0x900000, "rw-p", ""), &One);
        objects.mapping(&mapping(0x1000000, 0x5000000, "---p", ""), &One);
        objects.mapping(&mapping(0x5000000, 0x5100000, "rw-p", ""), &One);
        assert_eq!(
            name(&mut objects, 0x8fffff),
            Identity::Stack(ProcessAddress::new(Pid(7), 0x101000))
        );
        assert_eq!(
            name(&mut objects, 0x5000000),
            Identity::Mapping("anonymous, below 2 MiB".into())
        );
    }

    #[test]
    fn who_wants_memory_is_behind_the_plumbing() {
        let frames = One.code("", 0x500);
        assert_eq!(wanted_by(&frames).map(Frame::text).as_deref(), Some("one::make"));
        assert_eq!(wanted_by(&frames[..1]).map(Frame::text).as_deref(), Some("alloc::vec"));
        assert_eq!(wanted_by(&[]), None);
    }
}
