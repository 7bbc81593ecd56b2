//! Arms: the allocators that are compared, and whether each can run here.
//!
//! | name | allocator |
//! |---|---|
//! | `glibc` | the C library's, preloaded by name: Debian's Redis would otherwise bring jemalloc |
//! | `jemalloc` `mimalloc` `tcmalloc` | the shared libraries of the distribution |
//! | `0n` `2n` | ours without compaction |
//! | `0y-remap` `1y-remap` `2y-remap` | ours, compacting by remapping |
//! | `0y-ksm` `1y-ksm` `2y-ksm` | ours, compacting through the kernel's same-page merging |
//! | `redis-jemalloc` `activedefrag` | a Redis with its own jemalloc, without and with active defragmentation |
//! | `own` | the one that a browser brings |
//! | `mesh` | the library that `$MESH_LIB` names |

use std::path::PathBuf;

use anyhow::{Result, bail};
use pagemill_kernel::{Kind, Linux};
use pagemill_launch::allocator::{self, Distributed};
use pagemill_launch::library;

use super::embedded_redis;
use super::experiment::Program;

/// An arm by name.
struct ArmKind {
    name: &'static str,
    source: Source,
}

/// Where an arm's allocator comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A library of the distribution.
    Distributed(&'static Distributed),
    /// Our heap, in this configuration, and whether `ksmd` merges its pages.
    Ours { config: &'static str, ksm: bool },
    /// A Redis with an allocator of its own, and whether that defragments.
    Bundled { defragments: bool },
    /// The library that this variable names.
    Variable(&'static str),
    /// The program as it is.
    Own,
}

impl ArmKind {
    const fn distributed(name: &'static str, library: &'static Distributed) -> Self {
        Self { name, source: Source::Distributed(library) }
    }

    const fn ours(name: &'static str, config: &'static str, ksm: bool) -> Self {
        Self { name, source: Source::Ours { config, ksm } }
    }
}

/// All arms that are allocators.
const ARMS: [ArmKind; 16] = [
    ArmKind::distributed("glibc", &allocator::GLIBC),
    ArmKind::distributed("jemalloc", &allocator::JEMALLOC),
    ArmKind::distributed("mimalloc", &allocator::MIMALLOC),
    ArmKind::distributed("tcmalloc", &allocator::TCMALLOC),
    ArmKind::ours("0n", "0n", false),
    ArmKind::ours("2n", "2n", false),
    ArmKind::ours("0y-remap", "0y", false),
    ArmKind::ours("1y-remap", "1y", false),
    ArmKind::ours("2y-remap", "2y", false),
    ArmKind::ours("0y-ksm", "0y", true),
    ArmKind::ours("1y-ksm", "1y", true),
    ArmKind::ours("2y-ksm", "2y", true),
    ArmKind { name: "redis-jemalloc", source: Source::Bundled { defragments: false } },
    ArmKind { name: "activedefrag", source: Source::Bundled { defragments: true } },
    ArmKind { name: "mesh", source: Source::Variable("MESH_LIB") },
    ArmKind { name: "own", source: Source::Own },
];

/// Their names.
pub const NAMES: [&str; ARMS.len()] = {
    let mut names = [""; ARMS.len()];
    let mut at = 0;
    while at < ARMS.len() {
        names[at] = ARMS[at].name;
        at += 1;
    }
    names
};

/// Why an arm does not run that is root's.
pub(super) const ROOTS: &str = "switching ksmd on needs root";

/// How a program is started in an arm.
#[derive(Clone, Debug, PartialEq)]
pub enum Allocator {
    /// With this library preloaded.
    Library(PathBuf),
    /// With our library preloaded, in this configuration.
    Ours {
        /// `libpagemill_heap.so`.
        library: PathBuf,
        /// `0n` … `2y`.
        config: &'static str,
        /// Through `pagemill run --ksm`.
        ksm: bool,
    },
    /// As another binary of the same server, which brings its allocator.
    Bundled {
        /// The binary.
        server: PathBuf,
        /// Whether it defragments.
        defragments: bool,
    },
    /// As it is.
    Own,
}

/// An arm that can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its name.
    pub name: &'static str,
    /// Its allocator.
    pub allocator: Allocator,
}

/// The names that `names` stand for: `ours` is all of ours, `1y` is both of its back ends.
///
/// # Errors
/// There is no arm of a name.
pub fn expand(names: &[String]) -> Result<Vec<&'static str>> {
    let mut expanded = Vec::new();
    for name in names {
        let before = expanded.len();
        for known in &ARMS {
            let stands_for = match known.source {
                Source::Ours { config, .. } => name == "ours" || name == config,
                _ => false,
            };
            if *name == known.name || stands_for {
                expanded.push(known.name);
            }
        }
        if expanded.len() == before {
            bail!("there is no arm {name:?}; valid names: ours, {}", NAMES.join(", "));
        }
    }
    let mut seen = Vec::new();
    expanded.retain(|name| !seen.contains(name) && (seen.push(*name), true).1);
    Ok(expanded)
}

/// What was found on this machine, looked up once.
#[derive(Debug)]
pub struct Machine {
    linux: Linux,
    is_root: bool,
    bundled: Option<Result<PathBuf, String>>,
}

impl Machine {
    /// Looks around.
    pub fn detect() -> Self {
        let linux = Linux::live();
        Self { is_root: linux.is_root(), linux, bundled: None }
    }

    /// The arm of this name for this program, or why it cannot run.
    ///
    /// # Errors
    /// Why it cannot run.
    pub fn arm(&mut self, name: &'static str, program: &Program) -> Result<Arm, String> {
        let known = ARMS.iter().find(|arm| arm.name == name);
        let source = known.ok_or_else(|| format!("there is no arm {name}"))?.source;
        let browser = matches!(program, Program::Browser(_));
        // Each of a browser's processes would have to ask ksmd.
        let is_browsers = matches!(source, Source::Own | Source::Ours { ksm: false, .. });
        if browser && !is_browsers {
            return Err("browsers run with their own allocator or on our heap, remapping".into());
        }
        let allocator = match source {
            Source::Own if browser => Allocator::Own,
            Source::Own => return Err("only the browsers have this arm".into()),
            Source::Distributed(library) => Allocator::Library(library.find()?),
            Source::Variable(name) => match std::env::var_os(name).map(PathBuf::from) {
                Some(path) if path.is_file() => Allocator::Library(path),
                Some(path) => return Err(format!("{name}={} is no file", path.display())),
                None => return Err(format!("{name} is not set to a libmesh.so to compare with")),
            },
            Source::Bundled { defragments } => {
                if !matches!(program, Program::Redis(_)) {
                    return Err("only the Redis experiment has this arm".into());
                }
                let found = self.bundled.get_or_insert_with(embedded_redis::redis_with_jemalloc);
                Allocator::Bundled { server: found.clone()?, defragments }
            }
            Source::Ours { config, ksm } => self.ours(config, ksm)?,
        };
        Ok(Arm { name, allocator })
    }

    fn ours(&self, config: &'static str, ksm: bool) -> Result<Allocator, String> {
        if ksm && !self.is_root {
            return Err(ROOTS.into());
        }
        let library = library::find_heap().map_err(|error| error.to_string())?;
        let has_no_ksm = |error: pagemill_kernel::Error| error.kind() == Kind::NotFound;
        if ksm && self.linux.ksm_settings().is_err_and(has_no_ksm) {
            return Err("this kernel has no KSM (CONFIG_KSM)".into());
        }
        Ok(Allocator::Ours { library, config, ksm })
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiment;
    use super::super::input::Inputs;
    use super::super::plan::{Options, Plan};
    use super::*;

    #[test]
    fn names_expand_and_are_not_repeated() {
        let expand =
            |names: &[&str]| expand(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(expand(&["glibc", "1y", "1y-ksm"]).unwrap(), ["glibc", "1y-remap", "1y-ksm"]);
        assert_eq!(expand(&["ours"]).unwrap().len(), 8);
        let error = expand(&["hoard"]).unwrap_err().to_string();
        assert!(error.contains("hoard") && error.contains("mimalloc"), "{error}");
        assert!(expand(&["1"]).is_err());
    }

    #[test]
    fn a_name_that_is_no_arm_is_not_our_heap() {
        let redis = experiment::select(&["redis-fragmentation".into()], &[]).unwrap().remove(0);
        let error = Machine::detect().arm("hoard", &redis.program).unwrap_err();
        assert_eq!(error, "there is no arm hoard");
    }

    #[test]
    fn an_arm_that_is_root_s_says_so_whatever_else_it_lacks_and_the_plan_knows() {
        let experiments = experiment::select(&["pauses".into()], &[]).unwrap();
        let mut machine = Machine { is_root: false, linux: Linux::live(), bundled: None };
        let inputs = Inputs::new("pagemill".into(), 1).unwrap();
        for (arm, is_roots) in [("2y-ksm", true), ("own", false)] {
            let options = Options {
                quick: true,
                repetitions: None,
                arms: Some(vec![arm.to_owned()]),
                scale: 1.0,
                window: None,
                seed: 1,
                full_size: false,
            };
            let plan = Plan::new(experiments.clone(), &options, &mut machine, &inputs).unwrap();
            assert_eq!((plan.cells(), plan.is_roots()), (0, is_roots), "{:?}", plan.skipped);
        }
    }
}
