//! How far a long piece of work is: one line on a terminal's standard error, which is gone in the end.
//!
//! It tells for how long the work has been going on and, where its length is known, how much is done, how fast, and
//! how long the rest takes at that rate. Where standard error is no terminal there is no line (`indicatif` sees to
//! that, and to the terminal's width), or, of work that asks for it, a plain one now and then; no line has colours.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::stdio::printable;

/// Lines a second, at most.
const RATE: u8 = 5;
/// Between two lines for who has no terminal.
const MINUTE: Duration = Duration::from_secs(60);
const STEPS: &str = "{prefix}: {elapsed} {msg}";
const UNITS: &str =
    "{prefix}: {elapsed} {human_pos} of {human_len} ({percent} %), {per_sec}, {eta} left {msg}";

/// The line of a piece of work, until it is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    log: Option<Log>,
}

/// Where who has no terminal is told, too.
#[derive(Debug)]
struct Log {
    name: String,
    /// Time between two lines, at the least.
    every: Duration,
    began: Instant,
    said: Option<Instant>,
}

impl Log {
    /// The line for a step, if it is time for one.
    fn line(&mut self, step: &str, now: Instant) -> Option<String> {
        let due = self.said.is_none_or(|said| now.duration_since(said) >= self.every);
        due.then(|| {
            self.said = Some(now);
            format!("{}, {} on: {step}", self.name, minutes(now.duration_since(self.began)))
        })
    }
}

impl Progress {
    fn drawn(target: ProgressDrawTarget, name: &str, length: Option<u64>) -> Self {
        let template = if length.is_some() { UNITS } else { STEPS };
        // The test draws both.
        let style = ProgressStyle::with_template(template);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(length, target)
            .with_style(style)
            .with_prefix(printable(name).into_owned());
        Self { bar, log: None }
    }

    /// Of work whose length is not known.
    pub fn new(name: &str) -> Self {
        Self::drawn(ProgressDrawTarget::stderr_with_hz(RATE), name, None)
    }

    /// Of work of so many units.
    pub fn of(name: &str, units: u64) -> Self {
        Self::drawn(ProgressDrawTarget::stderr_with_hz(RATE), name, Some(units))
    }

    /// The same, and a line a minute where there is no terminal: for work that takes many.
    pub fn logged(name: &str) -> Self {
        Self::new(name).with_log(name, MINUTE, Some(Instant::now()))
    }

    /// The same, and a line at once and then one in so long at the most where there is no terminal: for work that
    /// takes minutes, and whose user asks how long.
    pub fn periodic(name: &str, every: Duration) -> Self {
        Self::new(name).with_log(name, every, None)
    }

    fn with_log(mut self, name: &str, every: Duration, said: Option<Instant>) -> Self {
        let log = Log { name: name.to_owned(), every, began: Instant::now(), said };
        self.log = self.bar.is_hidden().then_some(log);
        self
    }

    /// Whether nobody sees the line, so that nothing needs to be said.
    pub fn is_hidden(&self) -> bool {
        self.bar.is_hidden() && self.log.is_none()
    }

    /// What is being done.
    pub fn say(&mut self, step: &str) {
        self.bar.set_message(printable(step).into_owned());
        if let Some(line) = self.log.as_mut().and_then(|log| log.line(step, Instant::now())) {
            eprintln!("{line}");
        }
    }

    /// A line that stays.
    pub fn note(&mut self, text: &str) {
        self.bar.suspend(|| notice!("{}", printable(text)));
    }

    /// So many units are done.
    pub fn at(&mut self, units: u64) {
        self.bar.set_position(units);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A time as people say it.
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            200
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(length: Option<u64>, act: impl FnOnce(&mut Progress)) -> (String, String) {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let mut line = Progress::drawn(target, "study", length);
        act(&mut line);
        line.bar.force_draw();
        let seen = screen.0.lock().unwrap().trim().to_owned();
        drop(line);
        let left = screen.0.lock().unwrap().trim().to_owned();
        (seen, left)
    }

    #[test]
    fn a_line_tells_what_is_done_and_is_gone_in_the_end() {
        let (seen, left) = shown(None, |line| line.say("step 2\x1b[2J"));
        assert_eq!((&*seen, &*left), ("study: 0s step 2\\u001b[2J", ""));
        let (seen, left) = shown(Some(4000), |line| line.at(1000));
        assert!(seen.starts_with("study: 0s 1,000 of 4,000 (25 %), "), "{seen}");
        assert!(seen.ends_with(" left") && seen.contains("/s, "), "{seen}");
        assert_eq!(left, "");
    }

    #[test]
    fn who_has_no_terminal_is_told_at_once_and_then_now_and_then() {
        let (began, every) = (Instant::now(), Duration::from_secs(10));
        let mut log = Log { name: "study".into(), every, began, said: None };
        let mut at = |seconds| log.line("step", began + Duration::from_secs(seconds));
        assert_eq!(at(0).as_deref(), Some("study, 0 s on: step"));
        assert_eq!((at(3), at(9)), (None, None));
        assert_eq!(at(11).as_deref(), Some("study, 11 s on: step"));
        assert_eq!(at(20), None);
        assert!(at(75).unwrap().contains("1 min 15 s on"));
    }

    #[test]
    fn times_read_well() {
        assert_eq!(minutes(Duration::from_secs(59)), "59 s");
        assert_eq!(minutes(Duration::from_secs(185)), "3 min 05 s");
        assert_eq!(minutes(Duration::from_secs(7260)), "2 h 01 min");
    }
}
