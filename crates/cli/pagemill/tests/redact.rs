//! `--redact`: what is passed on does not say whose it is.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use support::{compiled, pagemill, ran};

/// What says whose a recording is: nowhere in what is made to be passed on.
#[test]
fn what_is_redacted_names_no_command_no_process_and_no_file_of_the_user() {
    let room = tempfile::tempdir().unwrap();
    let home = room.path().join("topsecret");
    std::fs::create_dir(&home).unwrap();
    let source = "#include <string.h>\n#include <stdlib.h>\n#include <stdio.h>\n#include <unistd.h>\nchar topsecret_global[1 << 20];\n\
        int main(int count, char **words) { char *p = malloc(1 << 20); memset(p, count, 1 << 20); \
        memset(topsecret_global, p[77], 1 << 20); usleep(400000); if (words[1][0] == 'x') getchar(); return 0; }\n";
    let Some(built) = compiled(&room, "topsecret-program", source, &["-g"]) else { return };
    let program = home.join("topsecret-program");
    std::fs::rename(built, &program).unwrap();
    let secret =
        |bytes: &[u8]| bytes.windows(9).any(|part| part.eq_ignore_ascii_case(b"topsecret"));
    let (mut shown, mut shows) = (0, 0);
    for (with, formats) in [
        ("faults,hugepages", &["pftrace"][..]),
        ("accesses", &["perfetto", "moca", "parquet", "firefox"]),
    ] {
        // Not in the recording's own name, which is the user's to choose.
        let recording = room.path().join(&with[..6]);
        let run = ran(pagemill()
            .args(["record", "--threshold", "0ns", "--with", with, "-o"])
            .arg(&recording)
            .arg("--")
            .arg(&program)
            .arg("topsecret-word"));
        if run.code() != Some(0) {
            println!("skipped: {}", run.err);
            continue;
        }
        let html = room.path().join("page.html");
        let printed =
            |options: &[&str]| ran(pagemill().arg("report").arg(&recording).args(options)).out;
        assert!(secret(printed(&[]).as_bytes()), "without --redact it is there");
        for options in [&["--redact"][..], &["--redact", "--json"]] {
            let text = printed(options);
            assert!(text.len() > 100 && !secret(text.as_bytes()), "{text}");
        }
        let run = ran(pagemill()
            .arg("report")
            .arg(&recording)
            .args(["--redact", "-f", "--html"])
            .arg(&html));
        assert_eq!(run.code(), Some(0), "{run:?}");
        assert!(!secret(&std::fs::read(&html).unwrap()), "the page");
        let rec = recording.to_str().unwrap();
        let mut calls = vec![vec!["compare", rec, rec]];
        if with.starts_with("faults") {
            calls.extend([
                vec!["plan", rec],
                vec!["plan", rec, "--explain"],
                vec!["hugepages", rec],
                vec!["live", rec, "--once"],
            ]);
        }
        for call in calls {
            let open = ran(pagemill().args(&call));
            assert_eq!(open.code(), Some(0), "{call:?}: {open:?}");
            shows += usize::from(secret(open.out.as_bytes()));
            for options in [&["--redact"][..], &["--redact", "--json"]] {
                let run = ran(pagemill().args(&call).args(options));
                assert!(
                    run.code() == Some(0) && run.out.len() > 100,
                    "{call:?} {options:?}: {run:?}"
                );
                assert!(!secret((run.out + &run.err).as_bytes()), "{call:?} {options:?}");
            }
        }
        for format in formats {
            let file = room.path().join(format);
            let run = ran(pagemill()
                .arg("export")
                .arg(&recording)
                .args(["--redact", "--format", format, "-o"])
                .arg(&file));
            assert_eq!(run.code(), Some(0), "{run:?}");
            let bytes = std::fs::read(&file).unwrap();
            assert!(!bytes.is_empty() && !secret(&bytes), "{format}");
        }
        shown += 1;
    }
    assert!(shown > 0 && shows > 0, "{shown} {shows}");
    let mut sleeping = std::process::Command::new(&program);
    // It waits in its last page until its standard input ends.
    sleeping.arg("x").stdin(std::process::Stdio::piped()).env("LD_PRELOAD", support::library());
    let mut child = sleeping.spawn().unwrap();
    let pid = child.id().to_string();
    for call in [
        &["hugepages", "-p", &pid][..],
        &["heap", &pid],
        &["live", "-p", &pid, "--once", "--interval", "100ms"],
        &["advise", "-p", &pid, "--for", "1s"],
    ] {
        for options in [&[][..], &["--redact"], &["--redact", "--json"]] {
            let run = ran(pagemill().args(call).args(options));
            assert_eq!(run.code(), Some(0), "{call:?}: {run:?}");
            assert_eq!(secret(run.out.as_bytes()), options.is_empty(), "{call:?}: {run:?}");
        }
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}
