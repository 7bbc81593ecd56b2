//! Pages in a browser: no error in its console, nothing fetched, nothing wider than a telephone, light and dark.
//!
//! Headless Chromium lays out a copy of each page that says at its end what it was like.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::{pagemill, ran, recording};
use tempfile::TempDir;

/// First in the page: what goes wrong from now on is kept.
const BEFORE: &str = "<script>//<![CDATA[
window.wrong = [];
addEventListener('error', event => wrong.push(String(event.message)));
addEventListener('unhandledrejection', event => wrong.push(String(event.reason)));
for (const level of ['error', 'warn']) console[level] = (...words) => wrong.push(words.join(' '));
//]]></script>";

/// Last in the page: it says how it is to the page that it stands in.
const AFTER: &str = "<script>//<![CDATA[
addEventListener('load', () => setTimeout(() => {
  const rgb = getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number);
  // What scrolls by itself may be wider.
  const scrolls = e => e && (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
  const wide = [...document.querySelectorAll('body *')]
    .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .filter(e => !scrolls(e.parentElement));
  parent.postMessage(JSON.stringify({
    wrong, fetched: performance.getEntriesByType('resource').map(e => e.name),
    width: innerWidth, room: document.documentElement.clientWidth, content: document.documentElement.scrollWidth,
    wide: wide.slice(0, 5).map(e => e.tagName + ' ' + e.textContent.slice(0, 60)),
    light: rgb[3] === 0 ? 255 : (rgb[0] + rgb[1] + rgb[2]) / 3,
    map: document.getElementById('map')?.height ?? null,
    bars: [...document.querySelectorAll('#flame-graph button')].map(e => e.textContent),
    when: document.getElementById('flame-when')?.textContent ?? null,
  }), '*');
}, 50));
//]]></script>";

/// Chromium's window is 500 pixels wide at the least, so the page is in a frame.
fn around(file: &str, width: u32) -> String {
    format!(
        "<!DOCTYPE html><html style='color-scheme: light dark'><body><iframe src='{file}' width='{width}' height='900' \
         style='border: 0'></iframe><pre id='said'></pre><script>addEventListener('message', event => \
         {{ document.getElementById('said').textContent = event.data; }});</script></body></html>"
    )
}

/// Widths in pixels: a desk's and a telephone's.
const WIDTHS: [u32; 2] = [1200, 400];

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|at| at.join("chromium")).find(|file| file.exists())
}

/// What the page at `page` says of itself in a window so wide.
fn laid_out(room: &Path, page: &Path, width: u32, dark: bool) -> Option<Value> {
    let Some(browser) = browser() else {
        println!("skipped: no chromium (apt-get install chromium)");
        return None;
    };
    let text = fs::read_to_string(page).unwrap();
    assert!(text.contains("<head>") && text.ends_with("</body>\n</html>\n"), "{}", page.display());
    let text = text.replacen("<head>", &format!("<head>{BEFORE}"), 1);
    let text = text.replacen("</body>\n</html>\n", &format!("{AFTER}</body>\n</html>\n"), 1);
    let (copy, frame) = (room.join("copy.html"), room.join("frame.html"));
    fs::write(&copy, text).unwrap();
    fs::write(&frame, around("copy.html", width)).unwrap();
    let profile = TempDir::new().unwrap();
    let mut command = Command::new("timeout");
    command.arg("120").arg(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args([
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg("--window-size=1300,1000");
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let shown = command.arg(format!("file://{}", frame.display())).output().unwrap();
    let dom = String::from_utf8(shown.stdout).unwrap();
    let said = dom.split_once("\"said\">").and_then(|(_, rest)| Some(rest.split_once("</pre>")?.0));
    let said = said.unwrap_or_else(|| panic!("{}: it says nothing: {dom:.2000}", page.display()));
    let plain = said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Some(serde_json::from_str(&plain).unwrap())
}

/// Each page at each width, light and dark, is whole; what the last says.
fn whole(room: &Path, page: &Path) -> Option<Value> {
    let mut last = None;
    for width in WIDTHS {
        let [light, dark] = [false, true].map(|dark| laid_out(room, page, width, dark));
        let (light, dark) = (light?, dark?);
        for said in [&light, &dark] {
            let what = format!("{}, {width} pixels: {said}", page.display());
            assert_eq!(said["wrong"], json!([]), "{what}");
            assert_eq!(said["fetched"], json!([]), "{what}");
            assert_eq!(said["width"], width, "{what}");
            assert_eq!(said["wide"], json!([]), "{what}");
            assert!(said["content"].as_u64() <= said["room"].as_u64(), "{what}");
        }
        let shade = |said: &Value| said["light"].as_f64().unwrap();
        assert!(shade(&light) > 200.0 && shade(&dark) < 60.0, "{light} {dark}");
        last = Some(light);
    }
    last
}

#[test]
fn a_report_of_accesses_is_whole_at_any_width_and_draws_what_is_cold() {
    let room = TempDir::new().unwrap();
    let (recording, page) = (room.path().join("rec"), room.path().join("report.html"));
    recording::with_cold_memory(&recording);
    let made = ran(pagemill().arg("report").arg(&recording).arg("--html").arg(&page));
    assert_eq!(made.code(), Some(0), "{}", made.err);
    let Some(said) = whole(room.path(), &page) else { return };
    assert!(said["map"].as_u64() > Some(50), "{said}");
    // In the middle of the time one of the two is cold; nobody knows the names of the callers.
    assert_eq!(said["bars"], json!(["all", "0x5000"]), "{said}");
    let when = said["when"].as_str().unwrap();
    assert!(when.starts_with("1.0 MiB not touched after 3"), "{when}");
}

#[test]
fn the_page_of_published_claims_is_whole_at_any_width() {
    let room = TempDir::new().unwrap();
    let results = room.path().join("results");
    let mut command = pagemill();
    command.args([
        "reproduce",
        "pauses",
        "--arms",
        "glibc,0y",
        "--reps",
        "1",
        "--scale",
        "0.01",
        "-o",
    ]);
    let made = ran(command.arg(&results));
    // At this size claims differ, which it ends with.
    assert!(matches!(made.code(), Some(0 | 1)), "{}", made.err);
    whole(room.path(), &results.join("report.html"));
}
