//! Which access to memory a sample of the clock stands for: that of the interrupted instruction, else the nearest of
//! the straight-line code around it, which has just run or is about to.
//!
//! A tight loop is interrupted at the same place again and again, mostly behind what is slow; if that place accesses
//! nothing, none of the loop's accesses would ever be seen. A *block* is code that runs from its beginning to its
//! end: nothing jumps into it, nothing but its last instruction leaves it.
//!
//! ```text
//!          mov [rdi+rax], al    behind 2: address from registers with what ran since taken back
//!          div rcx              behind 1
//!   ip ->  add rbx, 64          the registers are those before it
//!          mov rdx, [rbx]       ahead 1: address from registers with what will run applied
//!          jne                  the block ends
//! ```
//!
//! Always true: an address is told only if it follows from the registers. What changed a register by a constant or by
//! another known register is taken back or applied exactly; after anything else the register is unknown. One that the
//! access itself, or something after it, overwrote is computed anew from the block's beginning on: rdx follows from eax
//! in `movslq %eax, %rdx; mov (%rbp,%rdx,8), %rdx`. The sample of an access that needs an unknown register is dropped
//! and counted, never given to another access, and whether a jump is taken is never guessed. Held against each step of
//! real programs, as the processor ran them.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};
use pagemill_kernel::trace::access_samples::Registers;

use super::code::writes;
use super::registers::{KnownValue, State, apply, take_back, value};

/// Which bytes, and whether they are written.
type Accesses = Vec<(u64, bool)>;

/// How many instructions away an access may be.
pub const REACH: usize = 32;

/// Where these registers stand in a sample.
const IN_SAMPLE: [usize; 16] = [0, 2, 3, 1, 7, 6, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17];

/// The registers of a sample.
pub fn state(registers: &Registers) -> State {
    IN_SAMPLE.map(|at| KnownValue::Whole(registers[at]))
}

/// The code around an instruction, as far as its block goes.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The instruction itself and what runs after it.
    pub ahead: Vec<Instruction>,
    /// What ran before it, the last one first; `None` if that is not known.
    pub behind: Option<Vec<Instruction>>,
}

/// The access that a sample is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearestAccess {
    /// The instruction that accesses.
    pub instruction: u64,
    /// How many instructions before the interrupted one.
    pub behind: usize,
    /// How many after it.
    pub ahead: usize,
    /// Which bytes, and whether it writes.
    pub accesses: Accesses,
}

/// Why a sample is of no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The block accesses no memory near the instruction.
    None,
    /// Nothing ahead accesses memory, and which code ran before is not known.
    Block,
    /// The registers that say which bytes have changed since, or will have.
    Changed,
    /// Which bytes depends on a segment's base or a vector.
    Segment,
    /// The code could not be read or decoded.
    Unread,
}

/// The instructions from these bytes on to the end of the block.
pub fn ahead(bytes: &[u8], at: u64) -> Vec<Instruction> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Vec::new();
    }
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    let mut all = Vec::new();
    while all.len() < REACH && decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        all.push(instruction);
        if instruction.flow_control() != FlowControl::Next {
            break;
        }
    }
    all
}

/// The instructions of the block before `at`, the last first, of a function whose code up to `at` and a little more
/// this is; `enters` says whether anything jumps to an address of a range. `None`: the code is not in step.
pub fn behind(
    function: &[u8],
    begins: u64,
    at: u64,
    enters: impl Fn(std::ops::Range<u64>) -> bool,
) -> Option<Vec<Instruction>> {
    let mut decoder = Decoder::with_ip(64, function, begins, DecoderOptions::NONE);
    let mut block: Vec<Instruction> = Vec::new();
    loop {
        let next = decoder.ip();
        if enters(next..next.saturating_add(1)) {
            block.clear();
        }
        if next == at {
            block.reverse();
            block.truncate(REACH);
            return Some(block);
        }
        if next > at || !decoder.can_decode() {
            return None;
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        // Something may jump behind a prefix of it.
        let split = enters(next.saturating_add(1)..instruction.next_ip());
        if instruction.flow_control() == FlowControl::Next && !split {
            block.push(instruction);
        } else {
            block.clear();
        }
    }
}

impl Site {
    /// The access that a sample with these registers is of.
    ///
    /// # Errors
    /// Why none can be told.
    pub fn access(
        &self,
        factory: &mut InstructionInfoFactory,
        registers: &Registers,
    ) -> Result<NearestAccess, Dropped> {
        let Some(interrupted) = self.ahead.first() else { return Err(Dropped::Unread) };
        let (mut before, mut after) = (state(registers), state(registers));
        if let Some(accesses) = accesses(factory, interrupted, &after) {
            let accesses = accesses.ok_or(Dropped::Segment)?;
            return Ok(NearestAccess {
                instruction: interrupted.ip(),
                behind: 0,
                ahead: 0,
                accesses,
            });
        }
        let ran = self.behind.as_deref().unwrap_or_default();
        for distance in 1..=REACH {
            // What has just run is the likelier reason of two that are as near.
            if let Some(instruction) = ran.get(distance - 1) {
                take_back(factory, instruction, &mut before);
                if let Some(accesses) = accesses(factory, instruction, &before) {
                    let accesses = accesses
                        .or_else(|| computed_anew(factory, &ran[distance - 1..], before))
                        .ok_or_else(|| why(factory, instruction))?;
                    let instruction = instruction.ip();
                    return Ok(NearestAccess { instruction, behind: distance, ahead: 0, accesses });
                }
            }
            if let Some(instruction) = self.ahead.get(distance) {
                apply(factory, &self.ahead[distance - 1], &mut after);
                if let Some(accesses) = accesses(factory, instruction, &after) {
                    let accesses = accesses.ok_or_else(|| why(factory, instruction))?;
                    let instruction = instruction.ip();
                    return Ok(NearestAccess { instruction, behind: 0, ahead: distance, accesses });
                }
            }
        }
        Err(if self.behind.is_some() { Dropped::None } else { Dropped::Block })
    }
}

/// The bytes that the first of `ran` accessed (the last that ran comes first), if its registers follow from what is
/// known of them at the block's beginning; `before` is what is known of them at the access.
fn computed_anew(
    factory: &mut InstructionInfoFactory,
    ran: &[Instruction],
    before: State,
) -> Option<Accesses> {
    let (access, earlier) = ran.split_first()?;
    // What taking back leaves known before each instruction, the access's first.
    let mut known = vec![before];
    for instruction in earlier {
        let mut state = *known.last()?;
        take_back(factory, instruction, &mut state);
        known.push(state);
    }
    let mut state = known.pop()?;
    for (instruction, known) in earlier.iter().zip(known).rev() {
        apply(factory, instruction, &mut state);
        for (held, other) in state.iter_mut().zip(known) {
            *held = held.better(other);
        }
    }
    accesses(factory, access, &state)?
}

/// Why the bytes of an instruction are unknown: with all registers known they may be still.
fn why(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Dropped {
    match accesses(factory, instruction, &[KnownValue::Whole(0); 16]) {
        Some(None) => Dropped::Segment,
        _ => Dropped::Changed,
    }
}

/// The bytes that an instruction accesses if the registers before it are these, and whether it writes. `None`: it
/// accesses none; within: they cannot be told.
pub fn accesses(
    factory: &mut InstructionInfoFactory,
    instruction: &Instruction,
    state: &State,
) -> Option<Option<Accesses>> {
    let info = factory.info(instruction);
    let used = info.used_memory().iter();
    let mut kinds = used.filter_map(|memory| Some((memory, writes(memory.access())?))).peekable();
    kinds.peek()?;
    let known = kinds.map(|(memory, write)| {
        let address = memory.virtual_address(0, |register, _, _| value(state, register))?;
        Some((address, write))
    });
    Some(known.collect())
}

#[cfg(test)]
mod tests {
    use pagemill_model::Pid;

    use super::super::surroundings::Surroundings;
    use super::*;
    use pagemill_kernel::process::ptrace::{self, Setup, Stop};
    use pagemill_kernel::{Linux, process::process_vm};
    use proptest::prelude::*;
    use std::ffi::CString;
    use std::time::Duration;

    const AT: u64 = 0x40_0000;

    /// bx, di, sp and r8 hold something.
    fn sampled() -> Registers {
        let mut registers: Registers = [0; 18];
        (registers[1], registers[5], registers[7], registers[10]) = (0x1000, 0x20, 0x9000, 0x7);
        registers
    }

    /// What a sample before `ahead` is of, if `before` ran before it.
    fn of(before: &[u8], ahead_of: &[u8]) -> Result<(usize, usize, Accesses), Dropped> {
        between(before, ahead_of, &sampled())
    }

    fn between(
        before: &[u8],
        ahead_of: &[u8],
        registers: &Registers,
    ) -> Result<(usize, usize, Accesses), Dropped> {
        let code = [before, ahead_of].concat();
        let at = AT + before.len() as u64;
        let behind = behind(&code, AT, at, |_| false);
        let site = Site { ahead: ahead(ahead_of, at), behind };
        let found = site.access(&mut InstructionInfoFactory::new(), registers)?;
        Ok((found.behind, found.ahead, found.accesses))
    }

    #[test]
    fn an_access_of_the_interrupted_instruction_has_the_address_that_its_registers_say() {
        // mov eax, [rbx+rdi*4+8]; mov [rbx], r8; add qword [rbx], 1; push rbx; mov rax, [rip+0x10]
        assert_eq!(of(&[], &[0x8b, 0x44, 0xbb, 0x08]), Ok((0, 0, vec![(0x1088, false)])));
        assert_eq!(of(&[], &[0x4c, 0x89, 0x03]), Ok((0, 0, vec![(0x1000, true)])));
        assert_eq!(of(&[], &[0x48, 0x83, 0x03, 0x01]), Ok((0, 0, vec![(0x1000, true)])));
        assert_eq!(of(&[], &[0x53]), Ok((0, 0, vec![(0x8ff8, true)])));
        let relative = [0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
        assert_eq!(of(&[], &relative), Ok((0, 0, vec![(0x40_0017, false)])));
        // xlatb: rbx and al, whatever else ax holds.
        assert_eq!(of(&[], &[0xd7]), Ok((0, 0, vec![(0x1000, false)])));
    }

    #[test]
    fn the_nearest_access_is_told_and_what_ran_goes_first_of_two_as_near() {
        let (store, load) = ([0x4c, 0x89, 0x03], [0x8b, 0x07]); // mov [rbx], r8; mov eax, [rdi]
        let (div, jump) = ([0x48, 0xf7, 0xf1], [0x75, 0xf0]); // div rcx; jne
        let told = |behind: &[&[u8]], ahead: &[&[u8]]| of(&behind.concat(), &ahead.concat());
        assert_eq!(told(&[&store, &div], &[&div, &jump]), Ok((2, 0, vec![(0x1000, true)])));
        assert_eq!(told(&[&store], &[&div, &load]), Ok((1, 0, vec![(0x1000, true)])));
        assert_eq!(told(&[&store, &div], &[&div, &load]), Ok((0, 1, vec![(0x20, false)])));
        // No further than the block goes.
        assert_eq!(told(&[&store, &jump, &div], &[&div, &jump, &load]), Err(Dropped::None));
        assert_eq!(told(&[], &[&[0x90], &[0xe8, 0, 0, 0, 0]]), Ok((0, 1, vec![(0x8ff8, true)])));
    }

    #[test]
    fn what_changed_a_register_is_taken_back_or_the_sample_dropped() {
        let told = |behind: &[&[u8]], ahead: &[&[u8]]| of(&behind.concat(), &ahead.concat());
        let (store, jump) = ([0x4c, 0x89, 0x03], [0x75, 0xf0]); // mov [rbx], r8; jne
        // add rbx, 64; inc rbx; lea rbx, [rbx+rdi-8]: exact. imul rbx, rbx, 3; mov ebx, eax: not.
        for (code, address) in [
            (&[0x48, 0x83, 0xc3, 0x40][..], 0xfc0),
            (&[0x48, 0xff, 0xc3], 0xfff),
            (&[0x48, 0x8d, 0x5c, 0x3b, 0xf8], 0xfe8),
        ] {
            assert_eq!(told(&[&store, code], &[&jump]), Ok((2, 0, vec![(address, true)])));
        }
        for code in [&[0x48, 0x6b, 0xdb, 0x03][..], &[0x89, 0xc3], &[0x48, 0x01, 0xdb]] {
            assert_eq!(told(&[&store, code], &[&jump]), Err(Dropped::Changed), "{code:x?}");
        }
        // Ahead: add rbx, 64; mov rbx, [...] is an access itself; imul: unknown.
        assert_eq!(told(&[], &[&[0x48, 0x83, 0xc3, 0x40], &store]).unwrap().2, [(0x1040, true)]);
        assert_eq!(told(&[], &[&[0x48, 0x6b, 0xdb, 0x03], &store]), Err(Dropped::Changed));
        // A load that overwrites its own address: mov rbx, [rbx].
        assert_eq!(told(&[&[0x48, 0x8b, 0x1b]], &[&jump]), Err(Dropped::Changed));
        // push rbx; pop rbx: the stack's pointer is followed.
        assert_eq!(told(&[&[0x53]], &[&jump]), Ok((1, 0, vec![(0x9000, true)])));
    }

    #[test]
    fn what_accesses_nothing_or_by_a_segment_has_no_address() {
        // add eax, ebx; lea rax, [rbx]; mov rax, fs:[0]; bytes that are no instruction; unread code
        assert_eq!(of(&[], &[0x01, 0xd8]), Err(Dropped::None));
        assert_eq!(of(&[], &[0x48, 0x8d, 0x03]), Err(Dropped::None));
        let segment = [0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
        assert_eq!(of(&[], &segment), Err(Dropped::Segment));
        assert_eq!(of(&segment, &[0x90]), Err(Dropped::Segment));
        assert_eq!(of(&[], &[0x06, 0x06]), Err(Dropped::Unread));
        assert_eq!(of(&[], &[0; 15]), Err(Dropped::Unread));
        let site = Site { ahead: ahead(&[0x90], AT), behind: None };
        let unknown = site.access(&mut InstructionInfoFactory::new(), &sampled());
        assert_eq!(unknown, Err(Dropped::Block));
    }

    #[test]
    fn a_block_begins_where_something_jumps_to() {
        let code = [0x90, 0x90, 0xf0, 0x90, 0x90];
        let count = |enters: u64| {
            behind(&code, AT, AT + 2, |range| range.contains(&(AT + enters))).map(|all| all.len())
        };
        assert_eq!((count(5), count(1), count(2)), (Some(2), Some(1), Some(0)));
        // lock nop is no instruction, and 1 byte into `mov r8, [rbx]` is another one.
        assert_eq!(behind(&code, AT, AT + 5, |_| false), None);
        let split = [0x4c, 0x8b, 0x03, 0x90];
        let behind = |enters: bool| {
            behind(&split, AT, AT + 4, |range| enters && range.contains(&(AT + 1))).unwrap().len()
        };
        assert_eq!((behind(false), behind(true)), (2, 1));
    }

    /// for (int i...) sum += loaded[i], as gcc -O1 has it: the load overwrites its own index.
    #[test]
    fn a_load_over_its_own_index_is_told_wherever_its_loop_is_interrupted() {
        // movslq %eax, %rdx; mov (%rbp,%rdx,8), %rdx; add %rdx, %rsi; add $1, %eax; cmp $0x10000, %eax; jne
        let parts: [&[u8]; 6] = [
            &[0x48, 0x63, 0xd0],
            &[0x48, 0x8b, 0x54, 0xd5, 0x00],
            &[0x48, 0x01, 0xd6],
            &[0x83, 0xc0, 0x01],
            &[0x3d, 0, 0, 1, 0],
            &[0x75, 0xe7],
        ];
        for index in [5_i32, -5] {
            let element = vec![(0x7f00_0000_u64.wrapping_add_signed(8 * i64::from(index)), false)];
            for (at, distance) in
                [(0, (0, 1)), (1, (0, 0)), (2, (1, 0)), (3, (2, 0)), (4, (3, 0)), (5, (4, 0))]
            {
                let mut registers = [0; 18];
                registers[0] = u64::from((index + i32::from(at > 3)) as u32);
                registers[3] = if at == 1 { i64::from(index) as u64 } else { 0xdead };
                registers[6] = 0x7f00_0000;
                assert_eq!(
                    between(&parts[..at].concat(), &parts[at..].concat(), &registers),
                    Ok((distance.0, distance.1, element.clone())),
                    "{at}"
                );
            }
        }
        // mov (%rbx), %rbx; test: what a list's pointer was does not follow.
        assert_eq!(of(&[0x48, 0x8b, 0x1b], &[0x48, 0x85, 0xdb]), Err(Dropped::Changed));
        // movslq %eax, %rdx; mov (%rbp,%rdx,8), %rdx; mov %ecx, %eax: nor what the index was.
        let lost = [parts[0], parts[1], &[0x89, 0xc8]].concat();
        assert_eq!(of(&lost, &[0x75, 0xe7]), Err(Dropped::Changed));
    }

    /// Random code of register arithmetic and accesses: bytes, and what it does, told independently of the decoder.
    #[derive(Clone, Debug)]
    enum Step {
        /// op 0 to 4: add, sub, xor, and, or r, r
        Two(usize, u8, u8),
        /// mov r, r
        Move(u8, u8),
        /// add r, constant
        Add(u8, i8),
        /// mov r32, r32
        Narrow(u8, u8),
        /// add r32, constant
        AddNarrow(u8, i8),
        /// movsxd r, r32
        Sign(u8, u8),
        /// shl r, constant
        Shift(u8, u8),
        /// mov r, [base + constant]
        Load(u8, u8, i8),
        /// lea r, [base + index + constant]
        Lea(u8, u8, u8, i8),
        /// imul r, r
        Times(u8, u8),
        /// mov [base + constant], r
        Store(u8, u8, i8),
    }

    /// Not the stack's, whose encodings differ.
    const USABLE: [u8; 6] = [0, 1, 2, 3, 6, 7];

    impl Step {
        fn code(&self) -> Vec<u8> {
            let both = |to: u8, from: u8| 0xc0 | from << 3 | to;
            match *self {
                Self::Two(op, to, from) => {
                    vec![0x48, [0x01, 0x29, 0x31, 0x21, 0x09][op], both(to, from)]
                }
                Self::Move(to, from) => vec![0x48, 0x89, both(to, from)],
                Self::Add(to, value) => vec![0x48, 0x83, 0xc0 | to, value as u8],
                Self::Narrow(to, from) => vec![0x89, both(to, from)],
                Self::AddNarrow(to, value) => vec![0x83, 0xc0 | to, value as u8],
                Self::Sign(to, from) => vec![0x48, 0x63, both(from, to)],
                Self::Shift(to, by) => vec![0x48, 0xc1, 0xe0 | to, by],
                Self::Load(to, base, value) => {
                    vec![0x48, 0x8b, 0x40 | to << 3 | base, value as u8]
                }
                Self::Lea(to, base, index, value) => {
                    vec![0x48, 0x8d, 0x44 | to << 3, index << 3 | base, value as u8]
                }
                Self::Times(to, from) => vec![0x48, 0x0f, 0xaf, both(from, to)],
                Self::Store(from, base, value) => {
                    vec![0x48, 0x89, 0x40 | from << 3 | base, value as u8]
                }
            }
        }

        /// Runs it; the address that it accesses, and whether it stores.
        fn run(&self, r: &mut [u64; 16]) -> Option<(u64, bool)> {
            let of = |at: u8| r[at as usize];
            let more = |value: i8| value as i64 as u64;
            let mut accessed = None;
            let (to, result) = match *self {
                Self::Two(op, to, from) => {
                    let (a, b) = (of(to), of(from));
                    (to, [a.wrapping_add(b), a.wrapping_sub(b), a ^ b, a & b, a | b][op])
                }
                Self::Move(to, from) => (to, of(from)),
                Self::Add(to, value) => (to, of(to).wrapping_add(more(value))),
                Self::Narrow(to, from) => (to, of(from) & 0xffff_ffff),
                Self::AddNarrow(to, value) => (to, of(to).wrapping_add(more(value)) & 0xffff_ffff),
                Self::Sign(to, from) => (to, of(from) as i32 as u64),
                Self::Shift(to, by) => (to, of(to) << by),
                Self::Load(to, base, value) => {
                    let address = of(base).wrapping_add(more(value));
                    accessed = Some((address, false));
                    // Anything that is there.
                    (to, !address.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                }
                Self::Lea(to, base, index, value) => {
                    (to, of(base).wrapping_add(of(index)).wrapping_add(more(value)))
                }
                Self::Times(to, from) => (to, of(to).wrapping_mul(of(from))),
                Self::Store(_, base, value) => {
                    return Some((of(base).wrapping_add(more(value)), true));
                }
            };
            r[to as usize] = result;
            accessed
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let register = || prop::sample::select(&USABLE[..]);
        let step = prop_oneof![
            (0..5_usize, register(), register()).prop_map(|(op, a, b)| Step::Two(op, a, b)),
            (register(), register()).prop_map(|(a, b)| Step::Move(a, b)),
            (register(), any::<i8>()).prop_map(|(a, v)| Step::Add(a, v)),
            (register(), register()).prop_map(|(a, b)| Step::Narrow(a, b)),
            (register(), any::<i8>()).prop_map(|(a, v)| Step::AddNarrow(a, v)),
            (register(), register()).prop_map(|(a, b)| Step::Sign(a, b)),
            (register(), 0..64_u8).prop_map(|(a, by)| Step::Shift(a, by)),
            (register(), register(), any::<i8>()).prop_map(|(a, b, v)| Step::Load(a, b, v)),
            (register(), register(), register(), any::<i8>())
                .prop_map(|(a, b, c, v)| Step::Lea(a, b, c, v)),
            (register(), register()).prop_map(|(a, b)| Step::Times(a, b)),
            (register(), register(), any::<i8>()).prop_map(|(a, b, v)| Step::Store(a, b, v)),
        ];
        prop::collection::vec(step, 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn an_address_that_is_told_is_the_one_that_an_interpreter_of_the_code_finds(
            steps in steps(),
            first in prop::array::uniform16(any::<u64>()),
        ) {
            // Registers before each step, its address, and where it stands.
            let (mut registers, mut at) = (first, AT);
            let mut run = Vec::new();
            for step in &steps {
                let before = registers;
                run.push((at, before, step.run(&mut registers)));
                at += step.code().len() as u64;
            }
            let code: Vec<u8> = steps.iter().flat_map(Step::code).chain([0xc3]).collect();
            for (place, (at, before, _)) in run.iter().enumerate() {
                let mut sample: Registers = [0; 18];
                for (number, value) in before.iter().enumerate() {
                    sample[IN_SAMPLE[number]] = *value;
                }
                let site = Site {
                    ahead: ahead(&code[(at - AT) as usize..], *at),
                    behind: behind(&code, AT, *at, |_| false),
                };
                prop_assert_eq!(site.behind.as_ref().map(Vec::len), Some(place));
                let nearest = run
                    .iter()
                    .enumerate()
                    .filter(|(_, step)| step.2.is_some())
                    .map(|(other, _)| other.abs_diff(place))
                    .min();
                if let Ok(found) = site.access(&mut InstructionInfoFactory::new(), &sample) {
                    let of = place + found.ahead - found.behind;
                    if let Some((at, _, address)) = run.get(of) {
                        prop_assert_eq!(found.instruction, *at);
                        prop_assert_eq!(found.accesses, vec![address.unwrap()]);
                        prop_assert_eq!(found.ahead.max(found.behind), nearest.unwrap());
                    }
                } else {
                    // The interrupted instruction's own address is always known.
                    prop_assert!(nearest != Some(0));
                }
            }
        }
    }

    /// The registers of a stopped thread as a sample has them.
    fn stopped_at(thread: Pid) -> (u64, Registers) {
        let r = ptrace::registers(thread).unwrap();
        let sample = [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.rip, r.eflags, r.r8, r.r9,
            r.r10, r.r11, r.r12, r.r13, r.r14, r.r15,
        ];
        (r.rip, sample)
    }

    /// How often each direction was told of a run of steps.
    #[derive(Debug, Default)]
    struct Expected {
        interrupted: u64,
        behind: u64,
        ahead: u64,
        dropped: u64,
    }

    /// Steps a program, and holds what would be told at each step against what the processor did.
    fn stepped(words: &[&str], rounds: usize, steps: usize) -> Expected {
        let words: Vec<_> = words.iter().map(|word| CString::new(*word).unwrap()).collect();
        let path = [c"PATH=/usr/bin:/bin".into()];
        let program = ptrace::launch(&words[0], &words, &path, &Setup::default()).unwrap();
        let pid = program.pid;
        ptrace::seize(pid, ptrace::FOLLOW).unwrap();
        program.go().unwrap();
        while ptrace::wait_for(pid, Duration::from_secs(60)).unwrap() != Stop::Exec {
            ptrace::resume(pid, 0).unwrap();
        }
        let mut surroundings = Surroundings::new(Linux::default());
        let mut factory = InstructionInfoFactory::new();
        let mut told = Expected::default();
        for _ in 0..rounds {
            // What ran: where, and what it accessed.
            let mut ran: Vec<(u64, Option<Accesses>)> = Vec::new();
            let mut promised: Vec<(usize, NearestAccess)> = Vec::new();
            let mut last: Option<Registers> = None;
            // The first step may be one out of the kernel.
            ptrace::step(pid).unwrap();
            if ptrace::wait_for(pid, Duration::from_secs(60)).unwrap().is_end() {
                return told;
            }
            for _ in 0..steps {
                let (at, sample) = stopped_at(pid);
                let mut code = [0; 15];
                let readable = process_vm::read(pid, at, &mut code).is_ok();
                let instruction = ahead(if readable { &code } else { &[] }, at).first().copied();
                // A repeated string instruction is one instruction in as many steps as it has bytes; and a step out of
                // the kernel, or that something else interrupted, has not moved.
                let string = instruction.is_some_and(|all| all.is_string_instruction());
                let mut still = sample;
                // The processor's flags say that it steps.
                still[9] = 0;
                let repeated =
                    ran.last().is_some_and(|last| last.0 == at) && (string || last == Some(still));
                last = Some(still);
                if !repeated {
                    let accessed = instruction.and_then(|instruction| {
                        accesses(&mut factory, &instruction, &state(&sample)).flatten()
                    });
                    ran.push((at, accessed));
                    match surroundings.of(pid, at, false).access(&mut factory, &sample) {
                        Ok(found) if found.ahead > 0 => {
                            told.ahead += 1;
                            promised.push((ran.len() - 1 + found.ahead, found));
                        }
                        Ok(found) => {
                            *if found.behind > 0 {
                                &mut told.behind
                            } else {
                                &mut told.interrupted
                            } += 1;
                            // The first steps of a round do not know what ran before them.
                            if let Some(of) = (ran.len() - 1).checked_sub(found.behind) {
                                assert_eq!(ran[of].0, found.instruction, "at {at:#x}: {found:?}");
                                assert_eq!(ran[of].1.as_ref(), Some(&found.accesses), "{found:?}");
                            }
                        }
                        Err(_) => told.dropped += 1,
                    }
                }
                ptrace::step(pid).unwrap();
                match ptrace::wait_for(pid, Duration::from_secs(60)).unwrap() {
                    Stop::Signal(5) => {}
                    Stop::Exited(_) | Stop::Killed(_) => return told,
                    // Into the kernel and out again, or a signal: not of interest.
                    _ => {}
                }
            }
            for (place, found) in promised {
                if let Some((at, accessed)) = ran.get(place) {
                    let near = &ran[place - found.ahead..=place];
                    assert_eq!(*at, found.instruction, "{found:x?} {near:x?}");
                    assert_eq!(accessed.as_ref(), Some(&found.accesses), "{found:x?}");
                }
            }
            ptrace::resume(pid, 0).unwrap();
            std::thread::sleep(Duration::from_millis(3));
            ptrace::interrupt(pid).unwrap();
            if ptrace::wait_for(pid, Duration::from_secs(60)).unwrap().is_end() {
                return told;
            }
        }
        std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        while !ptrace::wait_for(pid, Duration::from_secs(60)).is_ok_and(Stop::is_end) {
            // Its exit is a stop too.
            let _ = ptrace::resume(pid, 0);
        }
        told
    }

    #[test]
    fn what_is_told_at_each_step_of_real_programs_is_what_the_processor_did() {
        let spin = "i=0; while :; do i=$((i + 1)); case $i in *7) j=${i#1};; *) j=x$i;; esac; done";
        let sort = "my %h; while (1) { my @a = map { ($_ * 7919) % 1009 } 1..500; \
                    $h{$_} .= 'x' for sort { $a <=> $b } @a; %h = () if keys %h > 900 }";
        for (words, rounds) in
            [(vec!["/bin/sh", "-c", spin], 12), (vec!["/usr/bin/perl", "-e", sort], 12)]
        {
            if !std::path::Path::new(words[0]).exists() {
                println!("skipped: no {}", words[0]);
                continue;
            }
            let told = stepped(&words, rounds, 2000);
            println!("{}: {told:?}", words[0]);
            assert!(told.behind > 100 && told.ahead > 100, "{}: {told:?}", words[0]);
        }
    }
}
