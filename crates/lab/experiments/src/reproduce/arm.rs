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

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::embedded_redis;
use super::experiment::Program;
use pagemill_launch::library;

/// All arms that are allocators.
pub const NAMES: [&str; 16] = [
    "glibc",
    "jemalloc",
    "mimalloc",
    "tcmalloc",
    "0n",
    "2n",
    "0y-remap",
    "1y-remap",
    "2y-remap",
    "0y-ksm",
    "1y-ksm",
    "2y-ksm",
    "redis-jemalloc",
    "activedefrag",
    "mesh",
    "own",
];

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
        for known in NAMES {
            let ours = known.starts_with(|first: char| first.is_ascii_digit());
            let back_end =
                known.strip_prefix(name.as_str()).is_some_and(|end| end.starts_with('-'));
            if *name == known || (name == "ours" && ours) || (ours && back_end) {
                expanded.push(known);
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
    root: bool,
    run_has_ksm: bool,
    bundled: Option<Result<PathBuf, String>>,
}

impl Machine {
    /// Looks around. `executable` is this binary.
    pub fn detect(executable: &Path) -> Self {
        let help = std::process::Command::new(executable).args(["run", "--help"]).output();
        let run_has_ksm = help.is_ok_and(|output| {
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("--ksm")
        });
        let uid = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let root = uid
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .and_then(|ids| ids.split_whitespace().nth(1))
            == Some("0");
        Self { root, run_has_ksm, bundled: None }
    }

    /// The arm of this name for this program, or why it cannot run.
    ///
    /// # Errors
    /// Why it cannot run.
    pub fn arm(&mut self, name: &'static str, program: &Program) -> Result<Arm, String> {
        let browser = matches!(program, Program::Browser(_));
        if browser && !(name == "own" || ours(name)) {
            return Err("browsers run with their own allocator or on our heap, remapping".into());
        }
        let allocator = match name {
            "own" if browser => Allocator::Own,
            "own" => return Err("only the browsers have this arm".into()),
            "glibc" => distributed("the C library", "libc6", &["libc.so.6"])?,
            "jemalloc" => distributed("jemalloc", "libjemalloc2", &["libjemalloc.so.2"])?,
            "mimalloc" => {
                let files = ["libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so.3"];
                distributed("mimalloc", "libmimalloc2.0", &files)?
            }
            "tcmalloc" => {
                distributed("tcmalloc", "libtcmalloc-minimal4", &["libtcmalloc_minimal.so.4"])?
            }
            "mesh" => match std::env::var_os("MESH_LIB").map(PathBuf::from) {
                Some(path) if path.is_file() => Allocator::Library(path),
                Some(path) => return Err(format!("MESH_LIB={} is no file", path.display())),
                None => return Err("MESH_LIB is not set to a libmesh.so to compare with".into()),
            },
            "redis-jemalloc" | "activedefrag" => {
                if !matches!(program, Program::Redis(_)) {
                    return Err("only the Redis experiment has this arm".into());
                }
                let found = self.bundled.get_or_insert_with(embedded_redis::redis_with_jemalloc);
                let server = found.clone()?;
                Allocator::Bundled { server, defragments: name == "activedefrag" }
            }
            ours => self.ours(ours)?,
        };
        Ok(Arm { name, allocator })
    }

    fn ours(&self, name: &'static str) -> Result<Allocator, String> {
        let ksm = name.ends_with("-ksm");
        if ksm && !self.root {
            return Err(ROOTS.into());
        }
        let library = library::find_heap().map_err(|error| error.to_string())?;
        let bytes = std::fs::read(&library)
            .map_err(|error| format!("cannot read {}: {error}", library.display()))?;
        let symbol = b"pagemill_stats";
        if !bytes.windows(symbol.len()).any(|window| window == symbol) {
            return Err(format!("{} has no heap in it", library.display()));
        }
        if ksm && !self.run_has_ksm {
            return Err("this build's run verb has no --ksm".into());
        }
        if ksm && !Path::new("/sys/kernel/mm/ksm/run").exists() {
            return Err("this kernel has no KSM (CONFIG_KSM)".into());
        }
        Ok(Allocator::Ours { library, config: &name[..2], ksm })
    }
}

/// Whether it is our heap that does without `ksmd`, which a browser's processes would each have to ask.
fn ours(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_digit()) && !name.ends_with("-ksm")
}

fn distributed(what: &str, package: &str, files: &[&str]) -> Result<Allocator, String> {
    library::distributed(what, package, files).map(Allocator::Library)
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
    fn an_arm_that_is_root_s_says_so_whatever_else_it_lacks_and_the_plan_knows() {
        let experiments = experiment::select(&["pauses".into()], &[]).unwrap();
        let mut machine = Machine { root: false, run_has_ksm: true, bundled: None };
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

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let error = distributed("hoard", "libhoard", &["libhoard.so"]).unwrap_err();
        assert_eq!(error, "hoard not found as libhoard.so (run: apt-get install libhoard)");
    }
}
