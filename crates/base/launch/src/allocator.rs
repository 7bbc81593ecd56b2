//! Which malloc a program has: the program's own, or that of the first library that the loader finds one in.

use std::path::{Path, PathBuf};

use pagemill_kernel::Linux;
use pagemill_model::Pid;
use pagemill_model::event::HeapSample;

use crate::{library, program};

/// An allocator that distributions have as a library, to be compared with.
#[derive(Debug)]
pub struct Distributed {
    /// Its name.
    pub name: &'static str,
    /// What it does where it is preloaded.
    pub does: &'static str,
    /// Debian's package.
    pub package: &'static str,
    /// Names that its library has had.
    pub files: &'static [&'static str],
}

/// jemalloc.
pub const JEMALLOC: Distributed = Distributed {
    name: "jemalloc",
    does: "jemalloc in place of the command's malloc",
    package: "libjemalloc2",
    files: &["libjemalloc.so.2"],
};

/// mimalloc.
pub const MIMALLOC: Distributed = Distributed {
    name: "mimalloc",
    does: "mimalloc in place of the command's malloc",
    package: "libmimalloc2.0",
    files: &["libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so.3"],
};

/// tcmalloc.
pub const TCMALLOC: Distributed = Distributed {
    name: "tcmalloc",
    does: "tcmalloc in place of the command's malloc",
    package: "libtcmalloc-minimal4",
    files: &["libtcmalloc_minimal.so.4"],
};

/// The C library's: a program that brings another one has it only if it is preloaded.
pub const GLIBC: Distributed = Distributed {
    name: "the C library",
    does: "the C library's in place of the command's malloc",
    package: "libc6",
    files: &["libc.so.6"],
};

impl Distributed {
    /// Its library.
    ///
    /// # Errors
    /// It is not installed: with the package that has it.
    pub fn find(&self) -> Result<PathBuf, String> {
        library::distributed(self.name, self.package, self.files)
    }
}

/// A malloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// The C library's.
    Glibc,
    /// jemalloc.
    Jemalloc,
    /// mimalloc.
    Mimalloc,
    /// Our heap.
    Pagemill,
    /// Another one, by its name.
    Other(&'static str),
}

/// Libraries by how their names begin, in the order in which one of them comes before another: what is preloaded first,
/// the C library last.
const LIBRARIES: [(&str, Allocator); 9] = [
    ("libpagemill_heap", Allocator::Pagemill),
    ("libjemalloc", Allocator::Jemalloc),
    ("libmimalloc", Allocator::Mimalloc),
    ("libtcmalloc", Allocator::Other(TCMALLOC.name)),
    ("libsnmalloc", Allocator::Other("snmalloc")),
    ("libscudo", Allocator::Other("scudo")),
    ("ld-musl", Allocator::Other("musl's malloc")),
    ("libc.so.6", Allocator::Glibc),
    ("libc-2.", Allocator::Glibc),
];

impl Allocator {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Glibc => HeapSample::GLIBC,
            Self::Jemalloc => JEMALLOC.name,
            Self::Mimalloc => MIMALLOC.name,
            Self::Pagemill => "pagemill's heap",
            Self::Other(name) => name,
        }
    }

    /// The one that is called so, among those that are asked what they keep free.
    pub fn asked(name: &str) -> Option<Self> {
        [Self::Glibc, Self::Jemalloc].into_iter().find(|allocator| allocator.name() == name)
    }

    fn named(name: &'static str) -> Self {
        match name {
            name if name == JEMALLOC.name => Self::Jemalloc,
            name if name == MIMALLOC.name => Self::Mimalloc,
            name => Self::Other(name),
        }
    }

    /// The one that the program in this file carries, or that a library has which the file names.
    pub fn of_file(path: &Path) -> Option<Self> {
        if let Some((name, _)) = program::own_allocator(path) {
            return Some(Self::named(name));
        }
        Self::of_libraries(&program::needed(path))
    }

    /// The one of these libraries that comes first.
    fn of_libraries(names: &[String]) -> Option<Self> {
        // A compiler maps archives that are called so.
        let has =
            |start: &str| names.iter().any(|name| name.starts_with(start) && name.contains(".so"));
        LIBRARIES.iter().find(|(start, _)| has(start)).map(|(_, allocator)| *allocator)
    }

    /// The one of a running process; none if its files may not be looked at, or none of them has one.
    pub fn of(linux: &Linux, pid: Pid) -> Option<Self> {
        let own = program::own_allocator(&linux.process_file(pid, "exe"));
        if let Some((name, _)) = own {
            return Some(Self::named(name));
        }
        let maps = linux.maps(pid).ok()?;
        let files = maps.iter().filter_map(|map| map.file()?.rsplit('/').next());
        Self::of_libraries(&files.map(str::to_owned).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_preloaded_comes_before_the_c_library() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Allocator::of_libraries(&names)
        };
        assert_eq!(of(&["libm.so.6", "libc.so.6", "libjemalloc.so.2"]), Some(Allocator::Jemalloc));
        let all = of(&["libjemalloc.so.2", "libpagemill_heap.so", "libc-2.31.so"]);
        assert_eq!(all, Some(Allocator::Pagemill));
        assert_eq!(of(&["libc.so.6"]), Some(Allocator::Glibc));
        assert_eq!(of(&["libcrypto.so.3", "libc++.so.1"]), None);
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let hoard = Distributed {
            name: "hoard",
            does: "",
            package: "libhoard",
            files: &["libhoard.so", "libhoard.so.2"],
        };
        let error = hoard.find().unwrap_err();
        assert_eq!(
            error,
            "hoard not found as libhoard.so or libhoard.so.2 (run: apt-get install libhoard)"
        );
    }

    #[test]
    fn this_program_has_glibc_s() {
        assert_eq!(Allocator::of(&Linux::live(), Pid::own()), Some(Allocator::Glibc));
        assert_eq!(Allocator::of_file(&std::env::current_exe().unwrap()), Some(Allocator::Glibc));
    }
}
