//! Sockets that a process listens on: whether a server is ready to be asked (proc_pid_net(5), unix(7)).
//!
//! `/proc/PID/net/tcp` and `tcp6` list the sockets of its network namespace by inode, with their state; `unix` those of
//! that family, with a flag for those that accept connections. The links in `/proc/PID/fd` say which are its own.

use std::collections::BTreeSet;

use pagemill_model::Pid;

use crate::{Error, Linux, Result};

/// State of a TCP socket that listens (`TCP_LISTEN`), as the files have it.
const LISTENS: &str = "0A";
/// Flag of a socket of the family `unix` that accepts connections (`__SO_ACCEPTCON`), as the file has it.
const ACCEPTS: &str = "00010000";

impl Linux {
    /// Whether `pid` has a socket that it accepts connections on.
    ///
    /// # Errors
    /// The process has ended, or the caller may not look.
    pub fn listens(&self, pid: Pid) -> Result<bool> {
        let mut listening: BTreeSet<u64> = BTreeSet::new();
        for (name, state, wanted, inode) in
            [("net/tcp", 3, LISTENS, 9), ("net/tcp6", 3, LISTENS, 9), ("net/unix", 3, ACCEPTS, 6)]
        {
            // A kernel without the family has no file.
            let Ok(text) = self.read_of(pid, name) else { continue };
            let inode_of = |line: &str| -> Option<u64> {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let listens = fields.get(state) == Some(&wanted);
                fields.get(inode).filter(|_| listens)?.parse().ok()
            };
            listening.extend(text.lines().skip(1).filter_map(inode_of));
        }
        let directory = self.process_file(pid, "fd");
        let entries = std::fs::read_dir(&directory)
            .map_err(|error| Error::io("list", directory.display(), error))?;
        let own = |entry: std::fs::DirEntry| -> Option<u64> {
            let link = std::fs::read_link(entry.path()).ok()?;
            link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        Ok(entries.flatten().filter_map(own).any(|inode| listening.contains(&inode)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    /// A process of its own, whose only sockets are what it is given as standard input.
    fn with(input: Stdio) -> bool {
        let mut child = Command::new("sleep").arg("1000").stdin(input).spawn().unwrap();
        let listens = Linux::live().listens(Pid(child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        listens
    }

    #[test]
    fn a_server_is_told_from_who_is_connected_or_has_no_socket() {
        let room = tempfile::tempdir().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let unix = UnixListener::bind(room.path().join("socket")).unwrap();
        assert!(with(std::os::fd::OwnedFd::from(tcp).into()));
        assert!(with(std::os::fd::OwnedFd::from(unix).into()));
        assert!(!with(std::os::fd::OwnedFd::from(client).into()));
        assert!(!with(Stdio::null()));
    }
}
