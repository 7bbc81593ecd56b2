//! `pagemill generate`, from the outside.

#[cfg(test)]
mod support;

use support::pagemill_with;

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
fn the_manual_has_a_page_for_each_verb_and_none_for_hidden_ones() {
    let text = pagemill_with(&["generate", "man"]).out;
    let pages: Vec<&str> = text.lines().filter(|line| line.starts_with(".TH ")).collect();
    for verb in ["pagemill-doctor", "pagemill-run"] {
        assert!(pages.iter().any(|page| page.contains(verb)), "{verb} in {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("generate")), "{pages:?}");
}

#[test]
fn an_unknown_target_lists_the_known_ones() {
    let run = pagemill_with(&["generate", "tcsh"]);
    assert_eq!(run.code(), Some(2));
    assert!(run.err.contains("man") && run.err.contains("fish"), "{run:?}");
}
