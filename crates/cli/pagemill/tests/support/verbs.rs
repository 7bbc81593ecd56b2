//! The verbs that there are, by the command line's own description, and a program for those that look at one.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Stdio};

use super::{pagemill, pagemill_with};

/// Each verb by its name (`frag show`), with its man page.
pub fn verbs() -> BTreeMap<String, String> {
    let room = tempfile::tempdir().unwrap();
    let made = pagemill_with(&["generate", "man", "-o", room.path().to_str().unwrap()]);
    assert_eq!(made.code(), Some(0), "{made:?}");
    let mut verbs = BTreeMap::new();
    for page in fs::read_dir(room.path()).unwrap().flatten() {
        let name = page.file_name().into_string().unwrap();
        if let Some(verb) = name.strip_suffix(".1").unwrap().strip_prefix("pagemill-") {
            verbs.insert(verb.replace('-', " "), fs::read_to_string(page.path()).unwrap());
        }
    }
    assert!(verbs.len() > 20, "{:?}", verbs.keys());
    verbs
}

/// Of them, those that answer in JSON.
pub fn verbs_with_json() -> Vec<String> {
    let with_json = |(verb, page): (String, String)| page.contains("\\-\\-json").then_some(verb);
    let verbs: Vec<String> = verbs().into_iter().filter_map(with_json).collect();
    assert!(verbs.len() > 12, "{verbs:?}");
    verbs
}

/// A program on the heap, until it is dropped.
pub struct Sleeping(Child);

impl Sleeping {
    pub fn on_heap() -> Self {
        let mut command = pagemill();
        command.args(["run", "--mesh", "1y", "--", "sh", "-c", "echo; read line"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        Self(child)
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}
