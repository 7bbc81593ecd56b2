//! The programs of `accesses.bpf.c`: page faults of some processes, one record each.

use pagemill_model::Pid;

use super::{Bits, Counters, Object, Ring, objects};
use crate::Result;
use crate::bytes::{long, word};

/// One fault, that is, the first access to a page since it was dropped, or its first write since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// When, ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// Which byte.
    pub address: u64,
    /// Where the processor was: in the program, or in the kernel on its behalf.
    pub instruction: u64,
    /// Who.
    pub thread: Pid,
    /// The thread's process.
    pub process: Pid,
    what: u32,
}

impl Access {
    /// None of the processor's error codes for faults on a program's memory.
    const UNKNOWN_KIND: u32 = 1 << 14;

    /// A fault of (process, thread) on a processor.
    pub(crate) fn new(
        time: u64,
        address: u64,
        instruction: u64,
        (process, thread): (Pid, Pid),
        cpu: u32,
    ) -> Self {
        Self { time, address, instruction, thread, process, what: (cpu & 0x7fff) << 16 }
    }

    /// With the processor's error code.
    pub(crate) fn by(mut self, error: u64, in_kernel: bool) -> Self {
        self.what |= error as u32 & 0x3fff | u32::from(in_kernel) << 31;
        self
    }

    /// Of which it is not known what it was to do.
    pub(crate) fn of_unknown_kind(mut self, in_kernel: bool) -> Self {
        self.what |= Self::UNKNOWN_KIND | u32::from(in_kernel) << 31;
        self
    }

    /// Whether it is known what it was to do: read, write, or fetch an instruction.
    pub fn kind_is_known(&self) -> bool {
        self.what & Self::UNKNOWN_KIND == 0
    }

    /// Whether it was a write.
    pub fn write(&self) -> bool {
        self.what & 2 != 0
    }

    /// Whether it was an instruction fetch.
    pub fn execute(&self) -> bool {
        self.what & 16 != 0
    }

    /// Whether the kernel made it, in a system call.
    pub fn in_kernel(&self) -> bool {
        self.what >> 31 != 0
    }

    /// On which processor.
    pub fn cpu(&self) -> u32 {
        self.what >> 16 & 0x7fff
    }

    /// What a record of the ring says; `None` of one that is cut short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            time: long(bytes, 0)?,
            address: long(bytes, 8)?,
            instruction: long(bytes, 16)?,
            thread: Pid(word(bytes, 24)?),
            what: word(bytes, 28)?,
            process: Pid(word(bytes, 32)?),
        })
    }
}

/// The programs at work. Dropping it detaches them.
pub struct Accesses {
    _object: Object,
    processes: Bits,
    lost: Counters,
    ring: Ring,
    not_told: Option<String>,
}

impl Accesses {
    /// Loads and attaches the programs; no process is followed yet.
    ///
    /// # Errors
    /// This build has no BPF programs, or the kernel does not take them.
    pub fn load() -> Result<Self> {
        let mut object = Object::open("the BPF programs for accesses", objects::ACCESSES, &[])?;
        object.attach_tracepoint("user", "page_fault_user")?;
        object.attach_tracepoint("in_kernel", "page_fault_kernel")?;
        let not_told = object.attach_tracepoint("locks", "mmap_lock_start_locking").err();
        Ok(Self {
            not_told: not_told.map(|error| error.to_string()),
            processes: object.map("processes")?,
            lost: object.map("lost")?,
            ring: Ring(object.map("accesses")?),
            _object: object,
        })
    }

    /// Writes the faults of `process` down from now on.
    ///
    /// # Errors
    /// The map of processes is full.
    pub fn follow(&mut self, process: Pid) -> Result<()> {
        let set = self.set(process, true);
        set.map_err(|error| super::failed("follow", format_args!("process {process}"), &error))
    }

    /// No more of `process`.
    pub fn leave(&mut self, process: Pid) {
        // One that was not followed need not be left.
        let _ = self.set(process, false);
    }

    fn set(
        &mut self,
        process: Pid,
        followed: bool,
    ) -> std::result::Result<(), aya::maps::MapError> {
        let (at, bit) = (process.0 / 64, 1 << (process.0 % 64));
        let word = self.processes.get(&at, 0)?;
        self.processes.set(at, if followed { word | bit } else { word & !bit }, 0)
    }

    /// Hands each access since the last call to `each`. Those of one processor are in order.
    pub fn read(&mut self, mut each: impl FnMut(Access)) {
        self.ring.read(|bytes| {
            if let Some(access) = Access::parse(bytes) {
                each(access);
            }
        });
    }

    /// Why nothing is told of pages that the kernel takes for a futex, without an exception, if nothing is.
    pub fn not_told(&self) -> Option<&str> {
        self.not_told.as_deref()
    }

    /// Accesses that the ring had no room for, since the beginning.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn lost(&self) -> Result<u64> {
        let counts =
            self.lost.get(&0, 0).map_err(|error| super::failed("read", "the losses", &error))?;
        Ok(counts.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_size;

    #[test]
    fn first_touches_are_told_with_their_byte_and_kind() {
        let me = Pid::own();
        let followed =
            Accesses::load().and_then(|mut accesses| accesses.follow(me).map(|()| accesses));
        let mut accesses = match followed {
            Ok(accesses) => accesses,
            Err(error) => return println!("skipped: {error}"),
        };
        const PAGES: u64 = 300;
        let start = crate::memory::touch::pages(PAGES as usize).unwrap();
        let mut seen = Vec::new();
        accesses.read(|access| seen.push(access));
        for number in 0..PAGES {
            let address = start + number * page_size() as u64;
            let found = seen.iter().find(|access| access.address == address).unwrap();
            assert!(found.write() && !found.in_kernel() && !found.execute());
        }
        assert_eq!(accesses.lost().unwrap(), 0);
    }
}
