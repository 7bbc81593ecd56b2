//! `process_vm_readv(2)` and `process_vm_writev(2)`: the memory of another process, without stopping
//! it. Needs the right to trace the process: same user and dumpable, or `CAP_SYS_PTRACE`; Yama may
//! ask for more (see [`crate::process::yama`]).

use pagemill_model::Pid;

use crate::{Error, Kind, Result};

/// Fills `into` from address `from` of process `pid`. Reads all of it or fails.
///
/// # Errors
/// The process has ended or may not be looked into, or a byte of the range is not mapped.
pub fn read(pid: Pid, from: u64, into: &mut [u8]) -> Result<()> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from as usize as *mut _, iov_len: into.len() };
    // SAFETY: `local` is the exclusively borrowed `into`, valid for writes of its length; `remote` is
    // only an address in the other process, which the kernel checks; both arrays have one element.
    let moved = unsafe { libc::process_vm_readv(pid.0 as libc::pid_t, &local, 1, &remote, 1, 0) };
    finish("read", pid, from, into.len(), moved)
}

/// Writes all of `bytes` to address `to` of process `pid`, or fails (part may have been written).
///
/// # Errors
/// As of [`read`]; a byte of the range may not be written.
pub fn write(pid: Pid, to: u64, bytes: &[u8]) -> Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: to as usize as *mut _, iov_len: bytes.len() };
    // SAFETY: the kernel only reads `local`, which is the borrowed `bytes`; `remote` is only an
    // address in the other process, which the kernel checks; both arrays have one element.
    let moved = unsafe { libc::process_vm_writev(pid.0 as libc::pid_t, &local, 1, &remote, 1, 0) };
    finish("write", pid, to, bytes.len(), moved)
}

fn finish(action: &'static str, pid: Pid, address: u64, asked: usize, moved: isize) -> Result<()> {
    let object = || format!("{asked} bytes at {address:#x} of process {pid}");
    match usize::try_from(moved) {
        Ok(moved) if moved == asked => Ok(()),
        Ok(moved) => Err(Error::new(
            Kind::Other,
            action,
            object(),
            format_args!("only {moved} bytes are mapped"),
        )),
        Err(_) => {
            let error = Error::last(action, object());
            Err(if error.kind() == Kind::Permission {
                error.advise(crate::error::not_permitted())
            } else {
                error
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_read_and_write_itself() {
        let me = Pid::own();
        let mut source = *b"before";
        let mut copy = [0_u8; 6];
        read(me, source.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(&copy, b"before");
        write(me, source.as_mut_ptr() as u64, b"after!").unwrap();
        read(me, source.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(&copy, b"after!");
    }

    #[test]
    fn an_unmapped_address_is_an_error_that_names_it() {
        let error = read(Pid::own(), 8, &mut [0; 8]).unwrap_err();
        assert!(error.to_string().contains("8 bytes at 0x8 of process"), "{error}");
    }

    #[test]
    fn a_process_that_is_gone_is_told_apart() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id());
        child.wait().unwrap();
        assert_eq!(read(pid, 4096, &mut [0; 8]).unwrap_err().kind(), Kind::Gone);
    }
}
