//! `pagemill generate`, from the outside.

#[cfg(test)]
mod support;

use support::{pagemill, pagemill_with, ran};

#[test]
fn each_file_knows_the_verbs_and_their_flags() {
    for target in ["man", "bash", "zsh", "fish"] {
        let run = pagemill_with(&["generate", target]);
        assert_eq!(run.code(), Some(0), "{run:?}");
        // A manual page writes a hyphen as \\-.
        let text = run.out.replace('\\', "");
        for word in ["doctor", "run", "mesh", "ksm", "json"] {
            assert!(text.contains(word), "{word} in {target}");
        }
    }
}

#[test]
fn the_manual_has_a_page_for_each_verb() {
    let text = pagemill_with(&["generate", "man"]).out;
    let pages: Vec<&str> = text.lines().filter(|line| line.starts_with(".TH ")).collect();
    for verb in ["pagemill-doctor", "pagemill-run", "pagemill-generate"] {
        assert!(pages.iter().any(|page| page.contains(verb)), "{verb} in {pages:?}");
    }
}

/// Pages cited others that nothing wrote.
#[test]
fn every_page_that_a_manual_page_cites_is_written() {
    let room = tempfile::tempdir().unwrap();
    let run = pagemill_with(&["generate", "man", "-o", room.path().to_str().unwrap()]);
    assert_eq!(run.code(), Some(0), "{run:?}");
    let mut cited = 0;
    for page in std::fs::read_dir(room.path()).unwrap().flatten() {
        let text = std::fs::read_to_string(page.path()).unwrap().replace('\\', "");
        for word in text.split(|c: char| !c.is_alphanumeric() && !"-()".contains(c)) {
            let Some(name) = word.strip_suffix("(1)").filter(|name| name.starts_with("pagemill"))
            else {
                continue;
            };
            let named = room.path().join(format!("{name}.1"));
            assert!(named.exists(), "{} cites {word}", page.path().display());
            cited += 1;
        }
    }
    assert!(cited > 20, "{cited}");
}

/// Pages of the reference are never edited by hand, so none can be stale.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_committed_reference_is_what_the_command_line_and_the_rows_say() {
    use std::collections::{BTreeMap, BTreeSet};
    use std::{fs, path::Path};
    let pages = |directory: &Path| -> BTreeMap<String, String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        };
        entries.map(read).filter(|(_, page)| page.starts_with("<!-- Made by: ")).collect()
    };
    let room = tempfile::tempdir().unwrap();
    let run = pagemill_with(&["generate", "reference", "-o", room.path().to_str().unwrap()]);
    assert_eq!(run.code(), Some(0), "{run:?}");
    let made = pages(room.path());
    assert!(made.len() > 15, "{:?}", made.keys());
    let committed = pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference"));
    let names = made.keys().chain(committed.keys());
    let stale: BTreeSet<&String> =
        names.filter(|name| made.get(*name) != committed.get(*name)).collect();
    assert!(
        stale.is_empty(),
        "docs/reference is not what is made now: {stale:?} (run: ./pagemill generate reference -o docs/reference; \
         remove what is no verb any more)"
    );
}

#[test]
fn the_version_comes_from_one_place() {
    let version = concat!("pagemill ", env!("CARGO_PKG_VERSION"));
    assert_eq!(pagemill_with(&["--version"]).out.trim(), version);
    let manual = pagemill_with(&["generate", "man"]).out;
    assert!(manual.contains(&format!("\"{version}\"")), "{:?}", manual.lines().nth(2));
    let room = tempfile::tempdir().unwrap();
    let to = room.path().join("made");
    let run =
        pagemill_with(&["generate", "recording", "--events", "10", "-o", to.to_str().unwrap()]);
    assert_eq!(run.code(), Some(0), "{run:?}");
    let meta = std::fs::read_to_string(to.join("meta.json")).unwrap();
    let meta: serde_json::Value = serde_json::from_str(&meta).unwrap();
    assert_eq!(meta["tool"], version);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for wing in std::fs::read_dir(root.join("crates")).unwrap().flatten() {
        for member in std::fs::read_dir(wing.path()).unwrap().flatten() {
            let manifest = std::fs::read_to_string(member.path().join("Cargo.toml")).unwrap();
            assert!(manifest.contains("version.workspace = true"), "{}", member.path().display());
        }
    }
    let changes = std::fs::read_to_string(root.join("CHANGELOG.md")).unwrap();
    let heading = format!("## {}", env!("CARGO_PKG_VERSION"));
    assert!(changes.lines().any(|line| line == heading), "CHANGELOG.md has no {heading}");
    // YAML can take it from nowhere: an image is tagged with the version of what is in it.
    let daemons =
        std::fs::read_to_string(root.join("packaging/kubernetes/daemonset.yaml")).unwrap();
    let images = daemons.lines().filter_map(|line| line.trim().strip_prefix("image: "));
    let tags: Vec<&str> = images.filter_map(|image| image.rsplit(':').next()).collect();
    assert_eq!(tags, [env!("CARGO_PKG_VERSION")], "packaging/kubernetes/daemonset.yaml");
}

#[test]
fn an_unknown_target_lists_the_known_ones() {
    let run = pagemill_with(&["generate", "tcsh"]);
    assert_eq!(run.code(), Some(2));
    assert!(run.err.contains("man") && run.err.contains("fish"), "{run:?}");
}

/// A directory with half of the pages stayed, and the error named a file that nobody knows.
#[test]
fn pages_that_cannot_all_be_written_leave_no_directory() {
    let room = tempfile::tempdir().unwrap();
    let pages = room.path().join("pages");
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 8; exec \"$@\"", "sh"]).arg(pagemill().get_program());
    let run = ran(limited.args(["generate", "man", "-o"]).arg(&pages));
    assert_eq!(run.code(), Some(2), "{run:?}");
    assert!(run.err.contains("/pages/") && !run.err.contains("/.pagemill-"), "{}", run.err);
    assert!(!pages.exists());
}
