//! Where the code of files can be entered: the functions that the tables for unwinding name, and all that is jumped to.
//!
//! Code of x86 is decoded forwards only, so what lies before an instruction is known from the beginning of its function
//! on. A function with a jump through a table has entries that its code does not tell; so has one that it shares
//! jumps with (the cold part of it).
//!
//! Always true: in a function that [`FileCode::function`] gives, every place that is jumped to is among
//! [`FileCode::enters`]; but a handler of an exception is not, which compilers put behind a jump or a call.

use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection as _};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, elf};

/// Code beyond that many bytes is not looked through, however often its parts are named.
const MOST: u64 = 64 << 20;

/// The code of a file.
#[derive(Debug, Default)]
pub struct FileCode {
    segments: Vec<Segment>,
    /// In order.
    functions: Vec<Function>,
    /// What is jumped to, in order.
    targets: Vec<u64>,
}

#[derive(Debug)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Function {
    range: Range<u64>,
    /// Whether it may be entered where no jump tells.
    hidden: bool,
}

impl FileCode {
    /// Of the bytes of an ELF file of x86-64.
    pub fn read(image: &[u8]) -> Option<Self> {
        let file = ElfFile64::<Endianness>::parse(image).ok()?;
        let endian = file.elf_header().endian().ok()?;
        if file.elf_header().e_machine(endian) != elf::EM_X86_64 {
            return None;
        }
        let mut left = MOST;
        let mut segments = Vec::new();
        for header in file.elf_program_headers() {
            if header.p_type(endian) != elf::PT_LOAD || header.p_flags(endian).0 & elf::PF_X.0 == 0
            {
                continue;
            }
            let Ok(bytes) = header.data(endian, image) else { continue };
            left = left.checked_sub(bytes.len() as u64)?;
            let (address, offset) = (header.p_vaddr(endian), header.p_offset(endian));
            // So that none of its addresses is beyond the last.
            address.checked_add(bytes.len() as u64)?;
            segments.push(Segment { address, offset, bytes: bytes.to_vec() });
        }
        let section = file.section_by_name(".eh_frame")?;
        let data = section.data().ok()?;
        let ranges = functions(data, section.address());
        Some(Self::of(segments, ranges))
    }

    fn of(segments: Vec<Segment>, mut ranges: Vec<Range<u64>>) -> Self {
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by_key(|range| range.start);
        let functions = ranges.into_iter().map(|range| Function { range, hidden: false }).collect();
        let mut code = Self { segments, functions, targets: Vec::new() };
        let mut across = Vec::new();
        let mut instruction = Instruction::default();
        let mut left = MOST;
        for at in 0..code.functions.len() {
            let range = code.functions[at].range.clone();
            let decoded = code.bytes(range.clone());
            // Ranges that lie in each other would be decoded again and again.
            let decoded = decoded.filter(|bytes| bytes.len() as u64 <= left);
            let Some(bytes) = decoded else {
                code.functions[at].hidden = true;
                continue;
            };
            left -= bytes.len() as u64;
            let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
            let (mut hidden, mut targets) = (false, Vec::new());
            while decoder.can_decode() {
                decoder.decode_out(&mut instruction);
                hidden |= instruction.is_invalid() || by_table(&instruction);
                if instruction.op_count() > 0 && near(instruction.op0_kind()) {
                    let target = instruction.near_branch_target();
                    targets.push(target);
                    if instruction.flow_control() != FlowControl::Call && !range.contains(&target) {
                        across.push((at, target));
                    }
                }
            }
            code.functions[at].hidden = hidden;
            code.targets.append(&mut targets);
        }
        code.targets.sort_unstable();
        code.targets.dedup();
        // Parts of one function jump to each other; another function is jumped to at its beginning.
        let linked: Vec<_> = across
            .into_iter()
            .filter_map(|(from, target)| Some((from, code.index(target)?)))
            .filter(|(from, to)| code.functions[*from].hidden || code.functions[*to].hidden)
            .collect();
        for (from, to) in linked {
            code.functions[from].hidden = true;
            code.functions[to].hidden = true;
        }
        code
    }

    fn index(&self, address: u64) -> Option<usize> {
        let at = self.functions.partition_point(|function| function.range.start <= address);
        at.checked_sub(1).filter(|at| self.functions[*at].range.contains(&address))
    }

    /// The function at an address, unless it may be entered where no jump tells.
    pub fn function(&self, address: u64) -> Option<Range<u64>> {
        let function = &self.functions[self.index(address)?];
        (!function.hidden).then(|| function.range.clone())
    }

    /// Whether anything is jumped to in the range.
    pub fn enters(&self, range: Range<u64>) -> bool {
        let at = self.targets.partition_point(|target| *target < range.start);
        self.targets.get(at).is_some_and(|target| *target < range.end)
    }

    /// The address of what stands at an offset in the file.
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let within = offset.checked_sub(segment.offset)?;
            (within < segment.bytes.len() as u64).then(|| segment.address + within)
        })
    }

    /// The bytes of code from an address on, `most` of them at most.
    pub fn following(&self, address: u64, most: usize) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let from = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            let bytes = segment.bytes.get(from..)?;
            (!bytes.is_empty()).then(|| &bytes[..bytes.len().min(most)])
        })
    }

    /// The bytes of code.
    pub fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let from = usize::try_from(range.start.checked_sub(segment.address)?).ok()?;
            let to = usize::try_from(range.end.checked_sub(segment.address)?).ok()?;
            segment.bytes.get(from..to)
        })
    }
}

fn near(kind: OpKind) -> bool {
    matches!(kind, OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

/// Whether it may jump to anywhere in its function. A jump through a word at a fixed place leaves it: a call at the
/// end.
fn by_table(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Jmp
        && instruction.flow_control() == FlowControl::IndirectBranch
        && !instruction.is_ip_rel_memory_operand()
}

/// The functions that a table for unwinding at this address names.
fn functions(data: &[u8], address: u64) -> Vec<Range<u64>> {
    let table = EhFrame::new(data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = table.entries(&bases);
    let mut found = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let whole =
            partial.parse(|table: &EhFrame<EndianSlice<'_, LittleEndian>>, bases, offset| {
                table.cie_from_offset(bases, offset)
            });
        if let Ok(entry) = whole
            && let Some(end) = entry.initial_address().checked_add(entry.len())
        {
            found.push(entry.initial_address()..end);
        }
    }
    found
}
