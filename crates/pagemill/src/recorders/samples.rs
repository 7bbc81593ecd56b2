//! `--with accesses --backend sample`: a sample of the accesses, as the processor tells of them, or, where it
//! cannot, by the clock: the instruction that was about to run is decoded, and its registers say which
//! bytes it will access.
//!
//! Samples by the clock are of instructions in proportion to the time they take, so those that wait for memory
//! are seen more often. An instruction that accesses thread-local data through a segment, or whose code cannot be
//! read any more, has no address and is counted.

use std::time::Duration;

use anyhow::Result;
use iced_x86::{InstructionInfoFactory, Register};
use pagemill_kernel::Linux;
use pagemill_kernel::access_samples::{Registers, Sample, Sampled, Samples};
use pagemill_model::access::{Access, AccessSetup};
use pagemill_model::fault::Flags;
use pagemill_model::recording::{NotMeasured, Writer};
use pagemill_model::{Event, Nanos, perf_data};

use super::Recorder;
use super::code::{Code, instruction, writes};
use super::mappings::Layout;

/// Time between two looks at the rings.
const LOOK: Duration = Duration::from_millis(20);

/// Samples of a process, its threads and what it starts.
pub struct AccessSamples {
    samples: Samples,
    layout: Layout,
    code: Code,
    factory: InstructionInfoFactory,
    rows: u64,
    without_address: u64,
}

impl AccessSamples {
    /// Will sample `pid`; a program that is held, from its first instruction on.
    pub fn attach(linux: &Linux, pid: u32, period: Nanos, held: bool) -> Result<Self> {
        let threads = linux.threads(pid)?;
        Ok(Self {
            samples: Samples::follow(linux, &threads, period.0, held)?,
            layout: Layout::new(linux.clone()),
            code: Code::default(),
            factory: InstructionInfoFactory::new(),
            rows: 0,
            without_address: 0,
        })
    }

    /// The accesses that a sample is of: address, flags, latency, data source.
    fn accesses(&mut self, sample: &Sample) -> Vec<Access> {
        let base = Access {
            time: Nanos(sample.time),
            pid: Some(sample.process.into()),
            tid: Some(sample.thread.into()),
            cpu: Some(sample.cpu.into()),
            instruction: Some(sample.instruction),
            ..Access::default()
        };
        match sample.what {
            Sampled::Access { address: 0, .. } => Vec::new(),
            Sampled::Access { address, latency, data_source } => vec![Access {
                address: Some(address),
                flags: perf_data::kind(data_source),
                latency: Some(latency).filter(|cycles| *cycles != 0),
                data_source: Some(data_source),
                ..base
            }],
            Sampled::Instruction(registers) => {
                let code = self.code.bytes(sample.process, sample.instruction);
                decoded(&mut self.factory, &code, sample.instruction, &registers)
                    .into_iter()
                    .map(|(address, write)| Access {
                        address: Some(address),
                        flags: Some(if write { Flags::WRITE } else { 0 }),
                        ..base.clone()
                    })
                    .collect()
            }
        }
    }
}

/// The bytes that an instruction will access with these registers: where, and whether it writes.
fn decoded(
    factory: &mut InstructionInfoFactory,
    code: &[u8],
    at: u64,
    registers: &Registers,
) -> Vec<(u64, bool)> {
    let Some(instruction) = instruction(code, at) else { return Vec::new() };
    let value = |register: Register| -> Option<u64> {
        let full = match register {
            Register::None | Register::CS | Register::DS | Register::ES | Register::SS => {
                return Some(0);
            }
            register => register.full_register(),
        };
        let index = match full {
            Register::RAX => 0,
            Register::RBX => 1,
            Register::RCX => 2,
            Register::RDX => 3,
            Register::RSI => 4,
            Register::RDI => 5,
            Register::RBP => 6,
            Register::RSP => 7,
            full if full >= Register::R8 && full <= Register::R15 => {
                10 + (full as usize - Register::R8 as usize)
            }
            _ => return None,
        };
        let whole = registers[index];
        Some(if register.size() == 4 { whole & 0xffff_ffff } else { whole })
    };
    let info = factory.info(&instruction);
    let used = info.used_memory().iter();
    used.filter_map(|memory| {
        let write = writes(memory.access())?;
        Some((memory.virtual_address(0, |register, _, _| value(register))?, write))
    })
    .collect()
}

impl Recorder for AccessSamples {
    fn interval(&self) -> Duration {
        LOOK
    }

    fn look(&mut self, writer: &mut Writer) -> Result<()> {
        let mut samples = Vec::new();
        self.samples.read(|sample| samples.push(sample));
        // Each processor has a ring of its own.
        samples.sort_unstable_by_key(|sample| sample.time);
        for sample in &samples {
            let accesses = self.accesses(sample);
            self.without_address += u64::from(accesses.is_empty());
            for access in accesses {
                let address = access.address.unwrap_or(0);
                self.layout.explain(sample.process, address, access.time, writer)?;
                writer.event(&Event::Access(Box::new(access)))?;
                self.rows += 1;
            }
        }
        writer.meta_mut().accesses = Some(AccessSetup {
            back_end: self.samples.source().name().into(),
            not_used: self.samples.not_used().to_vec(),
            lost: self.samples.lost(),
            without_address: Some(self.without_address),
            ..AccessSetup::default()
        });
        Ok(())
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        self.look(writer)?;
        let meta = writer.meta_mut();
        meta.capabilities.push("perf_event_open".into());
        meta.not_measured.push(NotMeasured {
            what: "pages that were not sampled".into(),
            why: "samples are a part of the accesses (the default back end sees all pages)".into(),
        });
        Ok(())
    }

    fn amount(&self) -> String {
        format!("{} sampled accesses", self.rows)
    }

    fn is_empty(&self) -> bool {
        self.rows == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &[u8]) -> Vec<(u64, bool)> {
        let mut registers: Registers = [0; 18];
        // bx, di, sp, r8.
        (registers[1], registers[5], registers[7], registers[10]) = (0x1000, 0x20, 0x9000, 0x7);
        decoded(&mut InstructionInfoFactory::new(), code, 0x40_0000, &registers)
    }

    #[test]
    fn loads_and_stores_have_the_addresses_that_their_registers_say() {
        // mov eax, [rbx+rdi*4+8]; mov [rbx], r8; add qword [rbx], 1; push rbx; mov rax, [rip+0x10]
        assert_eq!(of(&[0x8b, 0x44, 0xbb, 0x08]), [(0x1088, false)]);
        assert_eq!(of(&[0x4c, 0x89, 0x03]), [(0x1000, true)]);
        assert_eq!(of(&[0x48, 0x83, 0x03, 0x01]), [(0x1000, true)]);
        assert_eq!(of(&[0x53]), [(0x8ff8, true)]);
        assert_eq!(of(&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0]), [(0x40_0017, false)]);
    }

    #[test]
    fn what_accesses_nothing_or_by_a_segment_has_no_address() {
        // add eax, ebx; lea rax, [rbx]; mov rax, fs:[0]; bytes that are no instruction; unread code
        assert_eq!(of(&[0x01, 0xd8]), []);
        assert_eq!(of(&[0x48, 0x8d, 0x03]), []);
        assert_eq!(of(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0]), []);
        assert_eq!(of(&[0x06, 0x06]), []);
        assert_eq!(of(&[0; 15]), []);
    }
}
