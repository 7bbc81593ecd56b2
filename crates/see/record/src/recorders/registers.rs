//! What registers hold after an instruction, or held before it, as far as that follows from what is known of them.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownValue {
    /// Nothing.
    Unknown,
    /// Its lower 32 bits.
    Low(u32),
    /// All of it.
    Whole(u64),
}

/// What is known of the registers, by their numbers in instructions (ax cx dx bx sp bp si di r8 to r15).
pub type State = [KnownValue; 16];

impl KnownValue {
    fn of(value: Option<u64>) -> Self {
        value.map_or(Self::Unknown, Self::Whole)
    }

    /// The one of two that tells more.
    pub fn better(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, other) | (Self::Low(_), other @ Self::Whole(_)) => other,
            (held, _) => held,
        }
    }
}

/// The number of a general register, whole or a part.
fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    (register.is_gpr() && full >= Register::RAX && full <= Register::R15)
        .then(|| full as usize - Register::RAX as usize)
}

/// What a register holds; flat segments begin at 0.
pub fn value(state: &State, register: Register) -> Option<u64> {
    if matches!(
        register,
        Register::None | Register::CS | Register::DS | Register::ES | Register::SS
    ) {
        return Some(0);
    }
    let whole = match state[number(register)?] {
        KnownValue::Whole(value) => value,
        KnownValue::Low(value) if register.size() <= 4 => value.into(),
        _ => return None,
    };
    Some(match register {
        Register::AH | Register::CH | Register::DH | Register::BH => whole >> 8 & 0xff,
        _ => whole & mask(register.size()),
    })
}

fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

/// The value of an operand that is a register or a constant, in the width of the first one.
fn operand(instruction: &Instruction, at: u32, state: &State) -> Option<u64> {
    match instruction.op_kind(at) {
        OpKind::Register => {
            let register = instruction.op_register(at);
            number(register)?;
            value(state, register)
        }
        OpKind::Memory => None,
        _ => instruction.try_immediate(at).ok(),
    }
}

/// The address that `lea` computes.
fn place(instruction: &Instruction, state: &State) -> Option<u64> {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    // The displacement holds the address itself.
    let base_value = if base.is_ip() { 0 } else { value(state, base)? };
    let index_value = value(state, index)?;
    let address = instruction
        .memory_displacement64()
        .wrapping_add(base_value)
        .wrapping_add(index_value.wrapping_mul(instruction.memory_index_scale().into()));
    Some(if base.size() == 4 || index.size() == 4 { address & 0xffff_ffff } else { address })
}

/// What was written to is unknown from here.
fn forget(factory: &mut InstructionInfoFactory, instruction: &Instruction, state: &mut State) {
    for used in factory.info(instruction).used_registers() {
        let reads = matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        );
        if let (false, Some(number)) = (reads, number(used.register())) {
            state[number] = KnownValue::Unknown;
        }
    }
}

/// Whether its second operand is the register that it writes.
fn is_twice(instruction: &Instruction, register: Register) -> bool {
    instruction.op1_kind() == OpKind::Register && instruction.op1_register() == register
}

/// The register that an instruction computes as a whole, if that is what its first operand is.
fn result(instruction: &Instruction) -> Option<(Register, usize)> {
    let register = (instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register)
        .then(|| instruction.op0_register())?;
    // Writing to 32 bits clears the others; writing to fewer leaves them.
    Some((register, number(register).filter(|_| register.size() >= 4)?))
}

/// By how much it moves the stack pointer, if that is a constant.
fn stack_step(instruction: &Instruction) -> Option<u64> {
    let both = [Mnemonic::Push, Mnemonic::Pop].contains(&instruction.mnemonic());
    let pops_itself =
        instruction.mnemonic() == Mnemonic::Pop && instruction.op0_register() == Register::RSP;
    (both && !pops_itself).then(|| instruction.stack_pointer_increment() as i64 as u64)
}

/// The stack pointer, moved by so much.
fn stack_moved(state: &State, step: u64) -> KnownValue {
    KnownValue::of(value(state, Register::RSP).map(|pointer| pointer.wrapping_add(step)))
}

const STACK: usize = 4;

/// The registers after an instruction, from those before.
pub fn apply(factory: &mut InstructionInfoFactory, instruction: &Instruction, state: &mut State) {
    let old = *state;
    forget(factory, instruction, state);
    if let Some(step) = stack_step(instruction) {
        state[STACK] = stack_moved(&old, step);
        return;
    }
    let Some((register, number)) = result(instruction) else { return };
    let first = || value(&old, register);
    let second = || operand(instruction, 1, &old);
    let computed = match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movzx => second(),
        Mnemonic::Movsx | Mnemonic::Movsxd if instruction.op1_kind() == OpKind::Register => {
            let unused = 64 - 8 * instruction.op1_register().size();
            second().map(|value| ((value << unused) as i64 >> unused) as u64)
        }
        Mnemonic::Shl => {
            let count = if register.size() == 8 { 63 } else { 31 };
            first().zip(second()).map(|(a, b)| a << (b & count))
        }
        Mnemonic::Lea => place(instruction, &old),
        Mnemonic::Add => first().zip(second()).map(|(a, b)| a.wrapping_add(b)),
        Mnemonic::Sub | Mnemonic::Xor if is_twice(instruction, register) => Some(0),
        Mnemonic::Sub => first().zip(second()).map(|(a, b)| a.wrapping_sub(b)),
        Mnemonic::Xor => first().zip(second()).map(|(a, b)| a ^ b),
        Mnemonic::And => first().zip(second()).map(|(a, b)| a & b),
        Mnemonic::Or => first().zip(second()).map(|(a, b)| a | b),
        Mnemonic::Inc => first().map(|a| a.wrapping_add(1)),
        Mnemonic::Dec => first().map(|a| a.wrapping_sub(1)),
        // Whatever else: written to, it is unknown already.
        _ => return,
    };
    state[number] = KnownValue::of(computed.map(|value| value & mask(register.size())));
}

/// The registers before an instruction, from those after.
pub fn take_back(
    factory: &mut InstructionInfoFactory,
    instruction: &Instruction,
    state: &mut State,
) {
    let after = *state;
    forget(factory, instruction, state);
    if let Some(step) = stack_step(instruction) {
        state[STACK] = stack_moved(&after, step.wrapping_neg());
        return;
    }
    let Some((register, number)) = result(instruction) else { return };
    let now = value(&after, register);
    // An operand that is another register holds what it held.
    let second = || {
        if is_twice(instruction, register) { None } else { operand(instruction, 1, &after) }
    };
    let taken = match instruction.mnemonic() {
        Mnemonic::Add => now.zip(second()).map(|(a, b)| a.wrapping_sub(b)),
        Mnemonic::Sub => now.zip(second()).map(|(a, b)| a.wrapping_add(b)),
        Mnemonic::Xor => now.zip(second()).map(|(a, b)| a ^ b),
        Mnemonic::Inc => now.map(|a| a.wrapping_sub(1)),
        Mnemonic::Dec => now.map(|a| a.wrapping_add(1)),
        Mnemonic::Lea => {
            let (base, index) = (instruction.memory_base(), instruction.memory_index());
            let plain = match (base == register, index == register) {
                (true, false) => true,
                (false, true) => instruction.memory_index_scale() == 1,
                _ => false,
            };
            // With 0 in its place the rest of the sum is left.
            let mut rest = after;
            rest[number] = KnownValue::Whole(0);
            let rest = if plain { place(instruction, &rest) } else { None };
            now.zip(rest).map(|(a, b)| a.wrapping_sub(b))
        }
        _ => return,
    };
    state[number] = match taken {
        // The upper half of a register that only 32 bits were written of is lost.
        Some(value) if register.size() == 4 => KnownValue::Low(value as u32),
        taken => KnownValue::of(taken),
    };
}
