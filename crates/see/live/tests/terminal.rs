//! A panic while the screen is shown gives the terminal back, also where panics do not unwind, as in a release.

#![expect(clippy::unwrap_used, reason = "what cannot be set up fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_live::draw::theme::Theme;
use pagemill_live::feed::{Condition, Feed};
use pagemill_live::state::State;
use pagemill_live::terminal::{Surroundings, View, watch};
use pagemill_model::recording::{Meta, NotMeasured};

/// Where the test that runs on a terminal writes what it finds there.
const ROOM: &str = "PAGEMILL_TEST_ROOM";

/// A feed that panics once a frame has been drawn.
struct Panics(Meta, u32, PathBuf);

impl Feed for Panics {
    fn due(&self) -> Instant {
        Instant::now()
    }
    fn refresh(&mut self, _: &mut State) -> Result<()> {
        self.1 += 1;
        if self.1 > 2 {
            fs::write(self.2.join("within"), modes()).unwrap();
            panic!("a feed that panics");
        }
        Ok(())
    }
    fn meta(&self) -> &Meta {
        &self.0
    }
    fn lacks(&self) -> Vec<NotMeasured> {
        Vec::new()
    }
    fn condition(&self) -> Condition {
        Condition { words: "running".into(), over: false }
    }
    fn set_interval(&mut self, _: Duration) {}
}

/// The modes of the terminal.
fn modes() -> Vec<u8> {
    let terminal = fs::File::open("/dev/tty").unwrap();
    Command::new("stty").arg("-g").stdin(terminal).output().unwrap().stdout
}

/// The view, on the terminal of this process; never returns.
fn view(room: &Path) {
    // Whoever is told of a panic after the screen's own hook ends this process: nothing unwinds.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(77);
    }));
    let signals = Signals::block(signal::ENDS).unwrap();
    let mut feed = Panics(Meta::default(), 0, room.to_owned());
    let mut state = State::of(&feed.0);
    let theme = Theme::of(|_| None);
    let mut view = View::new(theme, Duration::from_millis(100));
    watch(&mut feed, &mut state, &mut view, &signals, &mut Surroundings::default).unwrap();
}

/// Ends the server of tmux.
struct Server(PathBuf);

impl Server {
    fn tmux(&self, words: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.0).args(["-f", "/dev/null"]).args(words);
        let output = tmux.env_remove("TMUX").env("LC_ALL", "C.UTF-8").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn a_panic_gives_the_terminal_back() {
    if let Some(room) = std::env::var_os(ROOM) {
        return view(Path::new(&room));
    }
    if Command::new("tmux").arg("-V").output().is_err() {
        println!("skipped: tmux, which gives a terminal, is not installed");
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let (path, myself) = (room.path().display(), std::env::current_exe().unwrap());
    let script = format!(
        "cd {path}; stty -g > before\n{ROOM}={path} {} --exact a_panic_gives_the_terminal_back --nocapture 2> said\n\
         echo $? > status; stty -g > after; touch done; exec sleep 1000\n",
        myself.display()
    );
    let file = room.path().join("script");
    fs::write(&file, script).unwrap();
    let server = Server(room.path().join("socket"));
    server.tmux(&["new-session", "-d", "-x", "80", "-y", "24", "sh", file.to_str().unwrap()]);
    let begun = Instant::now();
    while !room.path().join("done").exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "{}",
            server.tmux(&["capture-pane", "-p"])
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let read = |name: &str| fs::read_to_string(room.path().join(name)).unwrap();
    assert!(read("said").contains("a feed that panics"), "{}", read("said"));
    assert_eq!(read("status").trim(), "77");
    assert_ne!(read("within"), read("before"), "the view had the terminal");
    assert_eq!(read("after"), read("before"));
    // What was written before the shell went on is what the screen shows.
    let state = server.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
    assert_eq!(state, "0 1");
}
