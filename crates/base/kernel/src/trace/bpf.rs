//! BPF programs (bpf(2)): loaded from the objects that `build.rs` compiled, attached, and their maps
//! read. The loading itself (relocation by the kernel's BTF, maps, verification) is the crate aya's.
//!
//! An [`Object`] owns its programs and maps; dropping it detaches them. One file of programs has one
//! module that knows what its maps hold: [`faults`].
//!
//! Always true: an object that this build lacks, or this kernel refuses, is an [`Error`] that says why
//! and what to do, never a panic.

pub mod accesses;
pub mod faults;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, PerCpuHashMap, RingBuf};
use aya::programs::{BtfTracePoint, FEntry, FExit, PerfEvent};
use aya::{Btf, Ebpf, EbpfLoader};

use crate::{Error, Kind, Linux, Result, trace::perf_event};

mod objects {
    //! What `build.rs` compiled.
    include!(concat!(env!("OUT_DIR"), "/objects.rs"));
}

/// What helps against a refusal: root is refused by the kernel's lockdown alone.
fn advice() -> &'static str {
    let root = Linux::live().is_root();
    match root {
        true => {
            "root may not either: the kernel's lockdown, or a container, refuses this kind of program"
        }
        false => "needs root, or CAP_BPF and CAP_PERFMON",
    }
}

/// Whether this build has BPF programs; else why not.
///
/// # Errors
/// Why it has none.
pub fn built() -> std::result::Result<(), &'static str> {
    objects::FAULTS.map(|_| ())
}

/// Loaded programs and their maps.
#[derive(Debug)]
pub struct Object {
    name: &'static str,
    programs: Ebpf,
    btf: Btf,
}

/// The ways to attach a program to a place in the kernel.
macro_rules! attachment {
    ($($(#[doc = $about:literal])+ $name:ident by $kind:ty, $what:literal;)*) => {$(
        $(#[doc = $about])+
        fn $name(&mut self, program: &str, place: &str) -> Result<()> {
            let (found, btf) = self.program::<$kind>(program)?;
            let outcome = found.load(place, btf).and_then(|()| found.attach());
            outcome.map(drop).map_err(|error| {
                failed("attach", format_args!(concat!("{} to ", $what, "{}"), program, place), &error)
            })
        }
    )*};
}

impl Object {
    /// Creates the maps of `object` and relocates its programs; no program is in the kernel yet.
    /// `constants` are the values of its `const volatile` globals.
    fn open(
        name: &'static str,
        object: std::result::Result<&'static [u8], &'static str>,
        constants: &[(&'static str, &[u8])],
    ) -> Result<Self> {
        let refused = |reason: &str| Error::new(Kind::Unsupported, "load", name, reason);
        let bytes =
            object.map_err(|why| refused(why).advise("rebuild where clang is installed"))?;
        let btf = Btf::from_sys_fs().map_err(|error| {
            refused(&error.to_string())
                .advise("boot a kernel with CONFIG_DEBUG_INFO_BTF=y; see pagemill doctor")
        })?;
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&btf)).allow_unsupported_maps();
        for (constant, value) in constants {
            loader.override_global(constant, *value, true);
        }
        let programs = loader.load(bytes).map_err(|error| failed("load", name, &error))?;
        Ok(Self { name, programs, btf })
    }

    attachment! {
        /// Loads `program` and has it run at each event of `tracepoint`.
        attach_tracepoint by BtfTracePoint, "";
        /// Loads `program` and has it run when the kernel's function is entered.
        attach_entry by FEntry, "the entry of ";
        /// Loads `program` and has it run when the kernel's function returns.
        attach_exit by FExit, "the exit of ";
    }

    /// Loads `program`, to be run by events.
    fn load_for_events(&mut self, program: &str) -> Result<()> {
        let (found, _) = self.program::<PerfEvent>(program)?;
        found.load().map_err(|error| failed("load", program, &error))
    }

    /// Has the loaded `program` run at each overflow of `event`, and of the events inherited from it.
    fn attach_event(&mut self, program: &str, event: &perf_event::Event) -> Result<()> {
        let (found, _) = self.program::<PerfEvent>(program)?;
        let fd = found.fd().map_err(|error| failed("attach", program, &error))?;
        event.run(fd.as_fd())
    }

    fn program<'a, P>(&'a mut self, name: &str) -> Result<(&'a mut P, &'a Btf)>
    where
        &'a mut P: TryFrom<&'a mut aya::programs::Program>,
    {
        let found = self.programs.program_mut(name).and_then(|program| program.try_into().ok());
        let missing = || Error::new(Kind::NotFound, "find", name, "no such BPF program");
        found.map(|program| (program, &self.btf)).ok_or_else(missing)
    }

    /// Takes a map out, to be read while the programs run.
    fn map<M: TryFrom<Map>>(&mut self, name: &str) -> Result<M> {
        let found = self.programs.take_map(name).and_then(|map| map.try_into().ok());
        found.ok_or_else(|| {
            Error::new(
                Kind::NotFound,
                "find",
                format_args!("map {name} of {}", self.name),
                "no such BPF map",
            )
        })
    }
}

/// A ring of records that programs write.
pub struct Ring(RingBuf<MapData>);

impl Ring {
    /// Hands each record to `each`, oldest first, until the ring is empty.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) {
        while let Some(record) = self.0.next() {
            each(&record);
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the map's, which `self` owns for as long as the borrow lives.
        unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&self.0)) }
    }
}

type Set = HashMap<MapData, u32, u32>;
type Bits = Array<MapData, u64>;
type Histogram = PerCpuHashMap<MapData, [u32; 2], u64>;
type Counters = PerCpuArray<MapData, u64>;

/// What aya reports, with the system's error number where there is one.
fn failed(
    action: &'static str,
    object: impl std::fmt::Display,
    error: &(dyn std::error::Error + 'static),
) -> Error {
    let mut cause = Some(error);
    let mut reason = error.to_string();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && let Some(number) = io.raw_os_error()
        {
            let error = Error::io(action, object, io::Error::from_raw_os_error(number));
            return if error.kind() == Kind::Permission { error.advise(advice()) } else { error };
        }
        reason = error.to_string();
        cause = error.source();
    }
    Error::new(Kind::Unsupported, action, object, reason)
}
