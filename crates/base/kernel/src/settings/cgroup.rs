//! Memory control groups, version 1 and 2: what a group of processes is charged, kernel memory
//! included (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).
//!
//! | here | version 2 | version 1 |
//! |---|---|---|
//! | current | `memory.current` | `memory.usage_in_bytes` |
//! | kernel part | `kernel` in `memory.stat` (5.18) | `memory.kmem.usage_in_bytes` |
//! | peak | `memory.peak` (5.19) | `memory.max_usage_in_bytes` |
//! | limit | `memory.max` | `memory.limit_in_bytes` |
//!
//! A process's group is the path in `/proc/PID/cgroup` below the mount point of the hierarchy, less
//! the part of the path that the mount itself starts at (`/proc/self/mountinfo`).
//!
//! A group that is made here is locked (`flock`) for as long as its maker lives. One of ours that nobody holds was left
//! by a killed pagemill; whoever makes the next at that place removes it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagemill_model::Pid;
use rustix::fs::{FlockOperation, flock};

use crate::error::present;
use crate::{Error, Kind, Linux, Result};

/// In version 1 no limit is the largest number of pages that fits.
const NO_LIMIT: u64 = 1 << 62;

/// Which interface a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// A memory control group that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    version: Version,
    directory: PathBuf,
    mount: PathBuf,
}

/// What a group is charged, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// In total: anonymous memory, page cache, shared memory and kernel memory.
    pub current: u64,
    /// The part that the kernel uses on the group's behalf: page tables, mappings, sockets …
    pub kernel: Option<u64>,
    /// The highest value of `current` so far.
    pub peak: Option<u64>,
    /// The limit, if there is one.
    pub limit: Option<u64>,
}

/// How often a group met its limits. What this version does not count is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Times that `memory.high` throttled it.
    pub high: Option<u64>,
    /// Times that it ran into its limit.
    pub max: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kill: Option<u64>,
}

/// Where a hierarchy is mounted and which of its directories shows there.
#[derive(Debug)]
struct Mount {
    version: Version,
    at: PathBuf,
    root: String,
}

impl Linux {
    /// The memory control group of process `pid`.
    ///
    /// # Errors
    /// [`Kind::NotFound`] without a hierarchy for memory; the process has ended, or is in no group that is seen here.
    pub fn memory_cgroup(&self, pid: Pid) -> Result<Group> {
        let Mount { version, at, root } = self.memory_hierarchy()?;
        let file = self.process_file(pid, "cgroup");
        let text = self.read_of(pid, "cgroup")?;
        let path = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            match version {
                Version::V1 => controllers.split(',').any(|name| name == "memory").then_some(path),
                Version::V2 => (number == "0" && controllers.is_empty()).then_some(path),
            }
        });
        let path = path.ok_or_else(|| Error::malformed(file.display(), "no memory group in it"))?;
        let below = Path::new(path).strip_prefix(&root).map_err(|_| {
            let why = format!("{path} is outside of what is mounted at {}", at.display());
            Error::new(
                Kind::NotFound,
                "find",
                format_args!("the memory cgroup of process {pid}"),
                why,
            )
        })?;
        let mount = self.path(at);
        Ok(Group { version, directory: mount.join(below), mount })
    }

    /// The hierarchy that has the memory controller.
    fn memory_hierarchy(&self) -> Result<Mount> {
        let text = self.read("/proc/self/mountinfo")?;
        let mounts: Vec<Mount> = text.lines().filter_map(parse_mount).collect();
        let with_memory = |mount: &Mount| match mount.version {
            Version::V1 => true,
            Version::V2 => self
                .read(mount.at.join("cgroup.controllers"))
                .is_ok_and(|text| text.split_whitespace().any(|name| name == "memory")),
        };
        mounts.into_iter().find(with_memory).ok_or_else(|| {
            Error::new(Kind::NotFound, "find", "a memory cgroup", "no hierarchy with it is mounted")
                .advise("run: mount -t cgroup2 none /sys/fs/cgroup")
        })
    }
}

/// A line of mountinfo that mounts version 2, or version 1 with the memory controller.
fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, at) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let version = match (right.next()?, right.nth(1)?) {
        ("cgroup2", _) => Version::V2,
        ("cgroup", options) if options.split(',').any(|option| option == "memory") => Version::V1,
        _ => return None,
    };
    Some(Mount { version, at: PathBuf::from(at), root: root.to_owned() })
}

impl Group {
    /// Which interface it has.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its path below the mount, which begins with a slash.
    pub fn name(&self) -> String {
        let below = self.directory.strip_prefix(&self.mount).unwrap_or(&self.directory);
        format!("/{}", below.display())
    }

    /// What it is charged. The root group of version 2 has no such files: [`Kind::NotFound`].
    ///
    /// # Errors
    /// [`Kind::NotFound`] for the root group of version 2; the group is gone, or a file holds no number.
    pub fn charge(&self) -> Result<Charge> {
        Ok(match self.version {
            Version::V1 => Charge {
                current: self.number("memory.usage_in_bytes")?,
                kernel: present(self.number("memory.kmem.usage_in_bytes"))?,
                peak: present(self.number("memory.max_usage_in_bytes"))?,
                limit: present(self.number("memory.limit_in_bytes"))?
                    .filter(|&limit| limit < NO_LIMIT),
            },
            Version::V2 => Charge {
                current: self.number("memory.current")?,
                kernel: self.stat()?.get("kernel").copied(),
                peak: present(self.number("memory.peak"))?,
                limit: present(self.read("memory.max"))?.and_then(|text| text.trim().parse().ok()),
            },
        })
    }

    /// `memory.stat`, as this version words it.
    ///
    /// # Errors
    /// The group is gone.
    pub fn stat(&self) -> Result<BTreeMap<String, u64>> {
        Ok(pairs(&self.read("memory.stat")?))
    }

    /// How often it met its limits.
    ///
    /// # Errors
    /// The group is gone, or a file is not of the form that is known.
    pub fn events(&self) -> Result<Events> {
        Ok(match self.version {
            Version::V1 => Events {
                high: None,
                max: present(self.number("memory.failcnt"))?,
                oom_kill: present(self.read("memory.oom_control"))?
                    .and_then(|text| pairs(&text).get("oom_kill").copied()),
            },
            Version::V2 => {
                let events = pairs(&self.read("memory.events")?);
                let event = |name: &str| events.get(name).copied();
                Events { high: event("high"), max: event("max"), oom_kill: event("oom_kill") }
            }
        })
    }

    /// The group's own pressure file, for [`crate::process::psi`]; version 2 only.
    pub fn pressure_file(&self) -> Option<PathBuf> {
        (self.version == Version::V2).then(|| self.directory.join("memory.pressure"))
    }

    /// Moves a process with all its threads into this group. What it is charged for already stays
    /// where it is.
    ///
    /// # Errors
    /// The caller may not write to the group, or the process has ended.
    pub fn add(&self, pid: Pid) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Makes the child that `command` will start enter this group before it executes the program, so
    /// that all its memory is charged here.
    ///
    /// # Errors
    /// The caller may not write to the group.
    pub fn start_inside(&self, command: &mut Command) -> Result<()> {
        let path = self.directory.join("cgroup.procs");
        let procs = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(|error| Error::io("open", path.display(), error))?;
        let enter = move || {
            rustix::io::write(&procs, b"0")?;
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes one async-signal-safe system call and
        // neither allocates nor locks.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// Creates a group named `pagemill-NAME` for an experiment that starts from this one. Tried in turn: the
    /// top of the hierarchy, beside this group, inside it; where this group or one above it has a
    /// limit, below the lowest of these only, for what is started there is to keep it. It is removed
    /// when dropped.
    ///
    /// # Errors
    /// No place can be written: why the last could not.
    pub fn create(&self, name: &str) -> Result<Child> {
        let top = self.limits().next().map_or(self.mount.as_path(), |(limited, _)| limited);
        let beside = self.directory.parent().filter(|parent| parent.starts_with(top));
        let mut places = vec![top];
        places.extend(beside);
        places.push(&self.directory);
        places.dedup();
        let mut first = None;
        for place in places {
            match self.create_in(place, name) {
                Ok(child) => return Ok(child),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first
            .expect("there is at least one place")
            .advise("run as root, or: systemd-run --user --scope -p Delegate=yes -- pagemill …"))
    }

    /// The least limit of this group and of those above it, bytes.
    pub fn least_limit(&self) -> Option<u64> {
        self.limits().map(|(_, limit)| limit).min()
    }

    /// The directories of this group and of those above it that have a limit, the lowest first.
    fn limits(&self) -> impl Iterator<Item = (&Path, u64)> {
        let name = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        let above = self.directory.ancestors().take_while(|path| path.starts_with(&self.mount));
        above.filter_map(move |path| {
            let limit = fs::read_to_string(path.join(name)).ok()?.trim().parse().ok()?;
            (limit < NO_LIMIT).then_some((path, limit))
        })
    }

    fn create_in(&self, place: &Path, name: &str) -> Result<Child> {
        if self.version == Version::V2 {
            let control = place.join("cgroup.subtree_control");
            let on = fs::read_to_string(&control)
                .is_ok_and(|text| text.split_whitespace().any(|word| word == "memory"));
            if !on {
                fs::write(&control, "+memory")
                    .map_err(|error| Error::io("write +memory to", control.display(), error))?;
            }
        }
        remove_left(place);
        let directory = place.join(format!("{OURS}{name}"));
        let failed = |error| Error::io("create", directory.display(), error);
        let mut tries = 0;
        loop {
            match fs::create_dir(&directory) {
                // Whoever took it for left is about to remove it.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && tries > 0 => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                made => made.map_err(failed)?,
            }
            tries += 1;
            if tries > 100 {
                return Err(failed(std::io::ErrorKind::ResourceBusy.into()));
            }
            // Until it is locked another may take it for left, and remove it.
            let Ok(held) = File::open(&directory) else { continue };
            if is_locked(&held, &directory) {
                let group = Group { version: self.version, directory, mount: self.mount.clone() };
                return Ok(Child { group, _held: held });
            }
        }
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.directory.join(name);
        fs::read_to_string(&path).map_err(|error| Error::io("read", path.display(), error))
    }

    fn number(&self, name: &str) -> Result<u64> {
        let text = self.read(name)?;
        text.trim().parse().map_err(|_| {
            Error::malformed(self.directory.join(name).display(), format_args!("{text:?}"))
        })
    }

    fn write(&self, name: &str, value: &str) -> Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, value).map_err(|error| {
            Error::io("write", format_args!("{value:?} to {}", path.display()), error)
        })
    }
}

/// The directory of a group by its path, or by its name below the mount.
///
/// # Errors
/// [`Kind::NotFound`] if there is none.
pub fn find(linux: &Linux, name: &Path) -> Result<PathBuf> {
    let below = linux.path("/sys/fs/cgroup").join(name.strip_prefix("/").unwrap_or(name));
    let mut places = [name.to_owned(), below].into_iter();
    places.find(|path| path.join("cgroup.procs").exists()).ok_or_else(|| {
        let name = name.display();
        let why = format!("neither it nor /sys/fs/cgroup/{name} has cgroup.procs");
        Error::new(Kind::NotFound, "find", format_args!("cgroup {name}"), why)
    })
}

/// The processes in the group with this directory and in the groups below it.
///
/// # Errors
/// The group is gone.
pub fn processes_below(directory: &Path) -> Result<Vec<Pid>> {
    let path = directory.join("cgroup.procs");
    let text =
        fs::read_to_string(&path).map_err(|error| Error::io("read", path.display(), error))?;
    let mut pids: Vec<Pid> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().join("cgroup.procs").exists() {
            // A group may go while this looks.
            pids.extend(processes_below(&entry.path()).unwrap_or_default());
        }
    }
    Ok(pids)
}

/// Lines of `key value`.
fn pairs(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// What the names of groups begin with that are made here.
const OURS: &str = "pagemill-";

/// Locks a group, and says whether it is ours then: nobody held it, and it is still the one of this name.
fn is_locked(held: &File, directory: &Path) -> bool {
    let locked = flock(held, FlockOperation::NonBlockingLockExclusive).is_ok();
    let number = |metadata: std::io::Result<fs::Metadata>| metadata.map(|is| is.ino()).ok();
    locked && number(held.metadata()) == number(fs::metadata(directory))
}

/// Removes the empty groups of ours in `place` that nobody holds: their makers were killed.
fn remove_left(place: &Path) {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(OURS));
    for directory in ours.map(|entry| entry.path()) {
        // Held until it is gone: its maker may be about to lock it.
        let held = File::open(&directory).ok().filter(|held| is_locked(held, &directory));
        if held.is_some() {
            // One with processes in it stays.
            let _ = fs::remove_dir(&directory);
        }
    }
}

/// A group that was created here and goes when this is dropped, once no process is left in it.
#[derive(Debug)]
pub struct Child {
    group: Group,
    /// Locked.
    _held: File,
}

impl std::ops::Deref for Child {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A process that was just waited for leaves its group a moment later.
        for _ in 0..50 {
            match fs::remove_dir(&self.group.directory) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with these files in it.
    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        for (path, content) in files {
            let path = linux.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        (root, linux)
    }

    const V2: &[(&str, &str)] = &[
        (
            "/proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        ),
        ("/proc/7/cgroup", "0::/user.slice/app.scope\n"),
        ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
        ("/sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n"),
        ("/sys/fs/cgroup/user.slice/app.scope/memory.current", "1048576\n"),
        ("/sys/fs/cgroup/user.slice/app.scope/memory.peak", "2097152\n"),
        ("/sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n"),
        ("/sys/fs/cgroup/user.slice/app.scope/memory.stat", "anon 4096\nfile 8192\nkernel 16384\n"),
        (
            "/sys/fs/cgroup/user.slice/app.scope/memory.events",
            "low 0\nhigh 3\nmax 2\noom 1\noom_kill 1\n",
        ),
    ];

    #[test]
    fn a_version_2_group_is_found_and_read() {
        let (_root, linux) = tree(V2);
        let group = linux.memory_cgroup(Pid(7)).unwrap();
        assert_eq!(group.version(), Version::V2);
        assert!(group.directory().ends_with("sys/fs/cgroup/user.slice/app.scope"));
        let charge = group.charge().unwrap();
        assert_eq!(charge.current, 1 << 20);
        assert_eq!((charge.kernel, charge.peak, charge.limit), (Some(16_384), Some(2 << 20), None));
        let events = group.events().unwrap();
        assert_eq!((events.high, events.max, events.oom_kill), (Some(3), Some(2), Some(1)));
        assert!(group.pressure_file().unwrap().ends_with("memory.pressure"));
    }

    #[test]
    fn a_version_1_group_inside_a_container_is_found_below_its_mount() {
        let (_root, linux) = tree(&[
            (
                "/proc/self/mountinfo",
                "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                 35 31 0:31 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("/sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n"),
            ("/proc/7/cgroup", "8:pids:/docker/ab\n4:memory:/docker/ab/job\n0::/\n"),
            ("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4096\n"),
            ("/sys/fs/cgroup/memory/job/memory.kmem.usage_in_bytes", "1024\n"),
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/job/memory.failcnt", "5\n"),
            (
                "/sys/fs/cgroup/memory/job/memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            ),
        ]);
        let group = linux.memory_cgroup(Pid(7)).unwrap();
        assert_eq!(group.version(), Version::V1);
        assert!(group.directory().ends_with("sys/fs/cgroup/memory/job"));
        let charge = group.charge().unwrap();
        assert_eq!(
            (charge.current, charge.kernel, charge.peak, charge.limit),
            (4096, Some(1024), None, None)
        );
        assert_eq!(group.events().unwrap(), Events { high: None, max: Some(5), oom_kill: Some(2) });
        assert_eq!(group.pressure_file(), None);
    }

    #[test]
    fn a_group_outside_of_the_mount_is_an_error_that_says_so() {
        let (_root, linux) = tree(&[
            ("/proc/self/mountinfo", "35 31 0:31 /docker/ab /mnt rw - cgroup cgroup rw,memory\n"),
            ("/proc/7/cgroup", "4:memory:/other\n"),
        ]);
        let error = linux.memory_cgroup(Pid(7)).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("/other is outside"), "{error}");
    }

    #[test]
    fn without_the_memory_controller_there_is_no_group() {
        let (_root, linux) = tree(&[
            ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("/sys/fs/cgroup/cgroup.controllers", "cpu io\n"),
        ]);
        let error = linux.memory_cgroup(Pid(7)).unwrap_err();
        assert!(error.to_string().contains("no hierarchy"), "{error}");
    }

    #[test]
    fn a_child_group_of_version_2_is_made_where_the_controller_is_passed_on_and_removed_again() {
        let (_root, linux) = tree(V2);
        let child = linux.memory_cgroup(Pid(7)).unwrap().create("test").unwrap();
        let directory = child.directory().to_owned();
        assert!(directory.ends_with("sys/fs/cgroup/pagemill-test"), "{}", directory.display());
        assert!(directory.is_dir());
        drop(child);
        assert!(!directory.exists());
    }

    /// A run that was killed left its group until the next boot.
    #[test]
    fn what_a_killed_maker_left_is_removed_by_the_next_and_what_is_held_stays() {
        let (root, linux) = tree(V2);
        let group = linux.memory_cgroup(Pid(7)).unwrap();
        let place = root.path().join("sys/fs/cgroup");
        let (left, foreign) = (place.join("pagemill-1-2"), place.join("other"));
        fs::create_dir(&left).unwrap();
        fs::create_dir(&foreign).unwrap();
        let held = group.create("held").unwrap();
        assert!(!left.exists());
        let next = group.create("next").unwrap();
        assert!(held.directory().is_dir() && next.directory().is_dir() && foreign.is_dir());
    }

    #[test]
    fn a_child_group_keeps_the_limit_of_its_maker() {
        let (_root, linux) = tree(V2);
        let group = linux.memory_cgroup(Pid(7)).unwrap();
        assert_eq!(group.least_limit(), None);
        let limit = |path: &str, text: &str| {
            fs::write(linux.path("/sys/fs/cgroup").join(path).join("memory.max"), text).unwrap();
        };
        limit("user.slice", "8388608\n");
        let control = linux.path("/sys/fs/cgroup/user.slice/cgroup.subtree_control");
        fs::write(control, "memory\n").unwrap();
        let child = group.create("test").unwrap();
        assert!(child.directory().ends_with("cgroup/user.slice/pagemill-test"), "{child:?}");
        drop(child);
        limit("user.slice/app.scope", "4194304\n");
        assert_eq!(group.least_limit(), Some(4 << 20));
        let control = linux.path("/sys/fs/cgroup/user.slice/app.scope/cgroup.subtree_control");
        fs::write(control, "memory\n").unwrap();
        let child = group.create("test").unwrap();
        assert!(child.directory().ends_with("app.scope/pagemill-test"), "{child:?}");
    }

    /// On the running kernel, where that is allowed.
    #[test]
    fn a_process_started_inside_a_group_is_charged_to_it() {
        let group = Linux::live().memory_cgroup(Pid::own());
        let name = format!("test-{}", Pid::own());
        let child = match group.and_then(|group| group.create(&name)) {
            Ok(child) => child,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let mut command = Command::new("sh");
        command.args(["-c", "read wait"]).stdin(std::process::Stdio::piped());
        child.start_inside(&mut command).unwrap();
        let mut process = command.spawn().unwrap();
        assert_eq!(&Linux::live().memory_cgroup(Pid(process.id())).unwrap(), &*child);
        assert!(child.charge().unwrap().current > 0);
        drop(process.stdin.take());
        process.wait().unwrap();
        let directory = child.directory().to_owned();
        drop(child);
        assert!(!directory.exists());
    }
}
