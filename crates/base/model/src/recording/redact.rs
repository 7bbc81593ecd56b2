//! A recording without what says whose it is: for who passes it on.
//!
//! Command, process name and paths become neutral words, the same path the same word. What belongs to the system
//! (`/usr`, `/lib`, `/proc` …) stays, for everybody has it. As files are then not found by their names, nor are the
//! names of the functions and variables in them.

use std::collections::BTreeMap;

use super::Meta;
use crate::event::Event;

/// Beginnings of paths that everybody has.
const PUBLIC: [&str; 14] = [
    "/usr/",
    "/lib/",
    "/lib32/",
    "/lib64/",
    "/bin/",
    "/sbin/",
    "/dev/zero",
    "/dev/null",
    "/proc/",
    "/sys/",
    "/etc/ld.so.cache",
    "/memfd:pagemill",
    "/anon_hugepage",
    "/SYSV",
];
/// No part of `/usr` that distributions fill.
const PRIVATE: &str = "/usr/local/";

/// Words for paths, each seen before the same.
#[derive(Debug, Default)]
pub struct Redactor {
    words: BTreeMap<String, String>,
}

impl Redactor {
    /// Of a header.
    pub fn meta(&mut self, meta: &mut Meta) {
        meta.command = meta.command.first().map(|_| "(redacted)".to_owned()).into_iter().collect();
        meta.attached_command.clear();
        if !meta.comm.is_empty() {
            meta.comm = "program".into();
        }
        let (faults, accesses) = (meta.faults.iter_mut(), meta.accesses.iter_mut());
        let setups = faults.map(|setup| &mut setup.not_used);
        let setups =
            setups.chain(accesses.flat_map(|setup| [&mut setup.not_used, &mut setup.untraced]));
        let texts = setups.flatten().chain(&mut meta.capabilities);
        texts.for_each(|text| *text = self.text(text));
        for what in &mut meta.not_measured {
            what.what = self.text(&what.what);
            what.why = self.text(&what.why);
        }
    }

    /// Of an event.
    pub fn event(&mut self, event: &mut Event) {
        match event {
            Event::Mapping(row) => {
                if let Some(name) = &mut row.name {
                    *name = self.name(name);
                }
            }
            event => event.change_texts(|text| self.text(text)),
        }
    }

    /// The name of a mapping. One in brackets is the kernel's, but for what the program has named itself.
    fn name(&mut self, name: &str) -> String {
        match name.strip_prefix("[anon") {
            Some(rest) if rest.starts_with([':', '_']) => "[anon:redacted]".into(),
            _ if name.starts_with('[') || name.is_empty() => name.to_owned(),
            _ => self.path(name),
        }
    }

    /// A path, or anything else that is private as a whole.
    fn path(&mut self, path: &str) -> String {
        let public =
            PUBLIC.iter().any(|start| path.starts_with(start)) && !path.starts_with(PRIVATE);
        if public && !path.contains("..") {
            return path.to_owned();
        }
        let ending = if path.contains(".so") { ".so" } else { "" };
        let next = self.words.len() + 1;
        let word = self.words.entry(path.to_owned());
        word.or_insert_with(|| format!("/redacted/{next}{ending}")).clone()
    }

    /// A text with paths in it.
    pub fn text(&mut self, text: &str) -> String {
        let ends = |c: char| c.is_whitespace() || "\"'`(),;=:".contains(c);
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('/') {
            let begins = rest[..at].rfind(ends).map_or(0, |before| {
                before + rest[before..].chars().next().map_or(1, char::len_utf8)
            });
            let length = rest[begins..].find(ends).unwrap_or(rest.len() - begins);
            redacted.push_str(&rest[..begins]);
            let word = &rest[begins..begins + length];
            redacted.push_str(&if word.starts_with('/') {
                self.path(word)
            } else {
                word.to_owned()
            });
            rest = &rest[begins + length..];
        }
        redacted + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_words_and_what_everybody_has_stays() {
        let mut redactor = Redactor::default();
        assert_eq!(redactor.name("/home/me/x/secret"), "/redacted/1");
        assert_eq!(redactor.name("/opt/acme/libsecret.so.1"), "/redacted/2.so");
        assert_eq!(redactor.name("/home/me/x/secret"), "/redacted/1");
        for kept in ["/usr/lib/x86_64-linux-gnu/libc.so.6", "[heap]", "", "/dev/zero (deleted)"] {
            assert_eq!(redactor.name(kept), kept);
        }
        assert_eq!(redactor.name("/usr/local/bin/secret"), "/redacted/3");
        assert_eq!(redactor.name("/usr/../home/secret"), "/redacted/4");
        assert_eq!(redactor.name("/dev/shm/secret"), "/redacted/5");
        assert_eq!(redactor.name("/libsecret/x"), "/redacted/6");
        assert_eq!(redactor.name("[anon:secret]"), "[anon:redacted]");
        assert_eq!(
            redactor.text("cannot open \"/home/me/x/secret\" (ü/home/x), see /proc/sys/vm and a/b"),
            "cannot open \"/redacted/1\" (ü/home/x), see /proc/sys/vm and a/b"
        );
    }
}
