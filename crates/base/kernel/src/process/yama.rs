//! Yama's `ptrace_scope`: who may look into the memory of a process of the same user
//! (Documentation/admin-guide/LSM/Yama.rst).

use crate::{Kind, Linux, Result};

/// Who may trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtraceScope {
    /// 0, or no Yama: processes of the same user may.
    SameUser,
    /// 1: only ancestors, or whom the process has named.
    Ancestors,
    /// 2: only with `CAP_SYS_PTRACE`.
    Admin,
    /// 3: nobody.
    Nobody,
}

impl Linux {
    /// The rule in force.
    ///
    /// # Errors
    /// The file is there and cannot be read, or holds no number.
    pub fn ptrace_scope(&self) -> Result<PtraceScope> {
        match self.read_number("/proc/sys/kernel/yama/ptrace_scope") {
            Ok(0) => Ok(PtraceScope::SameUser),
            Ok(1) => Ok(PtraceScope::Ancestors),
            Ok(2) => Ok(PtraceScope::Admin),
            Ok(_) => Ok(PtraceScope::Nobody),
            Err(error) if error.kind() == Kind::NotFound => Ok(PtraceScope::SameUser),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_and_its_absence_is_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        assert_eq!(linux.ptrace_scope().unwrap(), PtraceScope::SameUser);
        let file = linux.path("/proc/sys/kernel/yama/ptrace_scope");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        for (value, scope) in [
            ("0\n", PtraceScope::SameUser),
            ("1\n", PtraceScope::Ancestors),
            ("2\n", PtraceScope::Admin),
            ("3\n", PtraceScope::Nobody),
        ] {
            std::fs::write(&file, value).unwrap();
            assert_eq!(linux.ptrace_scope().unwrap(), scope);
        }
    }
}
