//! The kernel's own fragmentation scores, in debugfs: `extfrag/unusable_index` and
//! `extfrag/extfrag_index` (mm/vmstat.c). pagemill computes both from `/proc/buddyinfo`; these files
//! are what it is checked against.
//!
//! Where debugfs is not mounted, root can still read it through a mount that has no place in the tree
//! (fsmount(2), kernel 5.2): it vanishes with the descriptor, so nothing has to be restored.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use crate::memory::buddyinfo::zone_line;
use crate::settings::mount::detached;
use crate::{Error, Linux, Result};

const DIRECTORY: &str = "/sys/kernel/debug/extfrag";

/// One line of such a file: a zone, and for each order the score as the kernel prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scores {
    /// The memory node.
    pub node: u32,
    /// The zone's name.
    pub zone: String,
    /// One word an order, such as `0.407` or `-1.000`.
    pub printed: Vec<String>,
}

/// The two files, open.
pub struct Extfrag {
    unusable: PathBuf,
    external: PathBuf,
    /// The mount that they are reached through, if it is ours.
    _mount: Option<OwnedFd>,
}

impl Extfrag {
    /// Finds the files. Needs root.
    ///
    /// # Errors
    /// The kernel has no debugfs, or the caller is not root.
    pub fn open(linux: &Linux) -> Result<Self> {
        let mounted = linux.path(DIRECTORY);
        match std::fs::read_dir(&mounted) {
            Ok(_) => Ok(Self::in_directory(mounted, None)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !linux.is_live() {
                    return Err(Error::io("open", mounted.display(), error));
                }
                let mount =
                    detached(c"debugfs", "boot a kernel with CONFIG_DEBUG_FS=y, 5.2 or newer")?;
                let directory = format!("/proc/self/fd/{}/extfrag", mount.as_raw_fd());
                Ok(Self::in_directory(directory.into(), Some(mount)))
            }
            Err(error) => Err(Error::io("open", mounted.display(), error)),
        }
    }

    fn in_directory(directory: PathBuf, mount: Option<OwnedFd>) -> Self {
        let file = |name| directory.join(name);
        Self { unusable: file("unusable_index"), external: file("extfrag_index"), _mount: mount }
    }

    /// The unusable free space index of each zone and order.
    ///
    /// # Errors
    /// The file cannot be read, or is not of the form that is known.
    pub fn unusable(&self) -> Result<Vec<Scores>> {
        read(&self.unusable)
    }

    /// The external fragmentation index of each zone and order.
    ///
    /// # Errors
    /// As of [`Extfrag::unusable`].
    pub fn external(&self) -> Result<Vec<Scores>> {
        read(&self.external)
    }
}

fn read(path: &PathBuf) -> Result<Vec<Scores>> {
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_err(|error| Error::io("read", path.display(), error))?;
    let line = |line: &str| {
        let (node, zone, rest) = zone_line(line)?;
        Some(Scores {
            node,
            zone: zone.to_owned(),
            printed: rest.split_whitespace().map(str::to_owned).collect(),
        })
    };
    let lines = text.lines().map(line).collect::<Option<_>>();
    lines.ok_or_else(|| Error::malformed(path.display(), "a line names no zone"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, fixtures};

    #[test]
    fn the_scores_of_a_real_machine_read_as_printed() {
        let files = Extfrag::open(&fixtures::debian()).unwrap();
        let unusable = files.unusable().unwrap();
        assert_eq!(unusable.len(), 3);
        assert_eq!((unusable[0].zone.as_str(), unusable[0].printed.len()), ("DMA", 11));
        assert_eq!(unusable[0].printed[9..], ["0.066", "0.200"]);
        let external = files.external().unwrap();
        assert!(external.iter().all(|zone| zone.printed[0] == "-1.000"));
    }

    #[test]
    fn a_snapshot_without_debugfs_has_no_scores() {
        let root = tempfile::tempdir().unwrap();
        let error = Extfrag::open(&Linux::at(root.path())).err().unwrap();
        assert_eq!(error.kind(), Kind::NotFound);
    }
}
