//! Instructions of running programs, read from their memory when they are first met.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess};
use pagemill_kernel::process::process_vm;
use pagemill_model::Pid;

/// Bytes of the longest instruction.
pub const LONGEST: usize = 15;

/// What is known of code.
pub struct Code {
    bytes: HashMap<(Pid, u64), [u8; LONGEST]>,
    factory: InstructionInfoFactory,
}

impl Default for Code {
    fn default() -> Self {
        Self { bytes: HashMap::new(), factory: InstructionInfoFactory::new() }
    }
}

impl Code {
    /// The bytes at an address of a process; zeros if they cannot be read any more.
    pub fn bytes(&mut self, process: Pid, at: u64) -> [u8; LONGEST] {
        *self.bytes.entry((process, at)).or_insert_with(|| {
            let mut bytes = [0; LONGEST];
            // Its last bytes may lie beyond the last page of the code.
            let whole = (1..=LONGEST)
                .rev()
                .find(|&length| process_vm::read(process, at, &mut bytes[..length]).is_ok());
            whole.map_or([0; LONGEST], |_| bytes)
        })
    }

    /// Whether the instruction at an address writes to memory: `None` if it does both in different places, or
    /// neither, or is not known.
    pub fn writes(&mut self, process: Pid, at: u64) -> Option<bool> {
        let bytes = self.bytes(process, at);
        let instruction = instruction(&bytes, at)?;
        let used = self.factory.info(&instruction).used_memory();
        let mut kinds = used.iter().filter_map(|memory| writes(memory.access()));
        let first = kinds.next()?;
        kinds.all(|other| other == first).then_some(first)
    }
}

/// The instruction of these bytes; `None` if they are none, or were not read.
pub fn instruction(bytes: &[u8], at: u64) -> Option<Instruction> {
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Whether an access to memory writes; one that reads and writes does. `None`: it is no access.
pub fn writes(access: OpAccess) -> Option<bool> {
    match access {
        OpAccess::Read | OpAccess::CondRead => Some(false),
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
            Some(true)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_of_this_program_is_known_to_read_or_to_write() {
        // mov eax, [rbx]; add [rbx], rax; movsb; ret, and room for whole reads.
        static CODE: [u8; 32] = {
            let mut code = [0x90; 32];
            (code[0], code[1]) = (0x8b, 0x03);
            (code[2], code[3], code[4]) = (0x48, 0x01, 0x03);
            code[5] = 0xa4;
            code
        };
        let at = CODE.as_ptr() as u64;
        let mut code = Code::default();
        let me = Pid::own();
        if code.bytes(me, at) == [0; LONGEST] {
            return println!("skipped: a process may not read itself here");
        }
        assert_eq!(code.writes(me, at), Some(false));
        assert_eq!(code.writes(me, at + 2), Some(true));
        assert_eq!(code.writes(me, at + 5), None);
        assert_eq!(code.writes(me, at + 6), None);
        assert_eq!(code.writes(me, 8), None);
    }
}
