//! The screen on a terminal: keys, frames, and the terminal put back as it was.
//!
//! ```text
//!  enter: raw mode, alternate screen ──► look, draw, keys, signals … ──► leave, also on an error or a panic
//! ```
//!
//! Keys are read as bytes, for all of them are one byte; what arrows and the like send is passed over. A terminal that
//! is gone ends the view: a library that waits for whole events on one spins for ever.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use pagemill_kernel::poll;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_launch::stdio;
use pagemill_model::Nanos;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::draw::theme::Theme;
use crate::draw::{FrameContext, Pane, screen};
use crate::feed::Feed;
use crate::state::State;

/// The shortest and the longest time between two frames.
pub const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// What the last line says.
pub const KEYS: &str = "q quit  space hold  +- interval  1-5 panes  ? help";

/// What is around the process: the machine's tiers, and how long tasks wait for memory.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Lines of the tiers.
    pub tiers: Vec<String>,
    /// Part of the time in which a task waits for memory, 0 to 1.
    pub pressure: Option<f64>,
}

/// The view, as its user has set it.
#[derive(Clone, Debug)]
pub struct View {
    /// Colours and characters.
    pub theme: Theme,
    /// Time between two frames.
    pub interval: Duration,
    /// Panes that are not shown.
    pub hidden: Vec<Pane>,
    /// Frames are not drawn.
    pub held: bool,
    /// The page that explains is shown.
    pub help: bool,
    /// Its input has ended.
    pub input_ended: bool,
}

const CTRL_C: u8 = 3;
/// Ctrl-D, with which who writes to a terminal says that no more comes (script(1) of an empty input), and what that is
/// where it was written before the terminal gave its keys one by one.
const INPUT_ENDS: [u8; 2] = [4, 0];
const CTRL_Z: u8 = 26;
const ESCAPE: u8 = 27;

/// What the user wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserAction {
    Nothing,
    Draw,
    Suspend,
    Quit,
}

impl View {
    /// As it begins.
    pub fn new(theme: Theme, interval: Duration) -> Self {
        Self { theme, interval, hidden: Vec::new(), held: false, help: false, input_ended: false }
    }

    fn key(&mut self, key: u8) -> UserAction {
        match key {
            b'q' | CTRL_C => return UserAction::Quit,
            key if INPUT_ENDS.contains(&key) => {
                self.input_ended = true;
                return UserAction::Nothing;
            }
            CTRL_Z => return UserAction::Suspend,
            ESCAPE => self.help = false,
            b'?' | b'h' => self.help = !self.help,
            b' ' | b'p' => self.held = !self.held,
            b'+' | b'=' => self.interval = (self.interval * 2).min(INTERVALS[1]),
            b'-' => self.interval = (self.interval / 2).max(INTERVALS[0]),
            b'1'..=b'5' => {
                let pane = Pane::ALL[usize::from(key - b'1')];
                match self.hidden.iter().position(|hidden| *hidden == pane) {
                    Some(at) => drop(self.hidden.remove(at)),
                    None => self.hidden.push(pane),
                }
            }
            _ => return UserAction::Nothing,
        }
        UserAction::Draw
    }

    /// What keys come to: the last wish, or the first that ends something.
    fn keys(&mut self, bytes: &[u8]) -> UserAction {
        // An arrow or the like: several bytes that begin with the escape key's.
        if let [ESCAPE, _, ..] = bytes {
            return UserAction::Nothing;
        }
        let mut last = UserAction::Nothing;
        for byte in bytes {
            match self.key(*byte) {
                UserAction::Nothing => {}
                action @ (UserAction::Quit | UserAction::Suspend) => return action,
                action @ UserAction::Draw => last = action,
            }
        }
        last
    }

    /// The frame of the state.
    pub fn lines(
        &self,
        state: &State,
        feed: &dyn Feed,
        around: &Surroundings,
        (size, keys): ((u16, u16), &str),
    ) -> Vec<Line<'static>> {
        let condition = feed.condition();
        let words = match self.held {
            true => format!("{}, held", condition.words),
            false => condition.words,
        };
        let lacks = feed.lacks();
        screen(
            state,
            &FrameContext {
                meta: feed.meta(),
                size,
                theme: self.theme,
                hidden: &self.hidden,
                condition: &words,
                over: condition.over,
                interval: Nanos::from(self.interval),
                lacks: &lacks,
                tiers: &around.tiers,
                pressure: around.pressure,
                keys,
            },
        )
    }
}

/// What the page of `?` says.
const HELP: &str = "\
q, Ctrl-C        quit; the program goes on          space, p   hold the screen
+ -              longer, shorter interval           1 to 5     panes on and off
Ctrl-Z           stop this view, fg continues it    ?, Esc     back

heat     the program's memory in the order of its addresses, an equal amount
         each cell. How much of a mapping was touched in a minute the kernel
         tells, and its cells stand warmest first; newer touches are sampled.
         A recording of accesses has all of them, each at its place.
memory   Pss: a page that n mappings show counts 1/n in each. live: what the
         program holds; free: what its heap keeps, which pagemill's says, and of
         glibc's malloc and jemalloc is read from outside.
faults   page faults of the process: rate and times of the last 10 s and 1 min.
machine  how much of all free memory is in blocks too small for a huge page.
tiers    memory nodes, and what pagemill tier does.";

/// The terminal while the view has it.
struct Screen {
    terminal: Terminal<CrosstermBackend<File>>,
}

/// Where the terminal is put back, from wherever the end comes.
static ENTERED: Mutex<Option<File>> = Mutex::new(None);

/// Puts the terminal back, once.
fn leave() {
    let entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mut file) = entered {
        // It may be gone; then there is nothing to put back.
        let _ = execute!(file, LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
        let _ = file.flush();
    }
}

impl Screen {
    fn enter() -> Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                leave();
                before(panic);
            }));
        });
        let why = "cannot use the terminal (one frame as text: pagemill live --once)";
        let mut file = file()?;
        let kept = file.try_clone().context(why)?;
        enable_raw_mode().context(why)?;
        *ENTERED.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        let entered = execute!(file, EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(file)));
        match entered {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                leave();
                Err(error).context(why)
            }
        }
    }

    fn draw(&mut self, lines: Vec<Line<'static>>) -> io::Result<()> {
        self.terminal.draw(|frame| frame.render_widget(Paragraph::new(lines), frame.area()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// The terminal, if there is one that can be drawn on.
fn file() -> Result<File> {
    let dumb = std::env::var("TERM").is_ok_and(|name| name == "dumb");
    match stdio::terminal_file() {
        Some(_) if dumb => {
            bail!(
                "this terminal (TERM=dumb) cannot be drawn on (one frame as text: pagemill live -p PID --once)"
            )
        }
        Some(file) => Ok(file),
        None => bail!(
            "there is no terminal to draw on (one frame as text of what runs: pagemill live -p PID --once)"
        ),
    }
}

/// Whether the screen can be shown here; an error says why not.
///
/// # Errors
/// There is no terminal, or it cannot be opened.
pub fn check() -> Result<()> {
    file().map(drop)
}

/// Shows the feed until its user quits, or a signal asks to. Nothing else ends it: the last frame of what has ended
/// stays.
///
/// # Errors
/// The terminal cannot be set up, or signals not be waited for.
pub fn watch(
    feed: &mut dyn Feed,
    state: &mut State,
    view: &mut View,
    signals: &Signals,
    around: &mut dyn FnMut() -> Surroundings,
) -> Result<()> {
    let mut shown = Screen::enter()?;
    let mut surroundings = around();
    let mut next = Instant::now();
    // The first frame has something to show.
    feed.refresh(state)?;
    let keyboard = keyboard()?;
    let signalled = signals.descriptor()?;
    loop {
        if !feed.condition().over {
            feed.refresh(state)?;
        }
        if Instant::now() >= next {
            if !view.held {
                feed.flush(state)?;
                surroundings = around();
                draw(&mut shown, feed, state, view, &surroundings)?;
            }
            next = Instant::now() + view.interval;
        }
        let until = if feed.condition().over { next } else { next.min(feed.due()) };
        let wait = until.saturating_duration_since(Instant::now());
        poll::sleep(&[keyboard.as_fd(), signalled.as_fd()], wait)?;
        let mut action = match pressed(&keyboard) {
            Some(keys) => view.keys(&keys),
            None => return Ok(()),
        };
        while let Some(received) = signals.wait(Duration::ZERO)? {
            match received.signal {
                signal if signal::ENDS.contains(&signal) => action = UserAction::Quit,
                signal if signal::STOPS.contains(&signal) => action = UserAction::Suspend,
                signal::RESIZED => action = action.max(UserAction::Draw),
                signal::CHILD | signal::CONTINUE => {}
                other => feed.pass_on(other),
            }
        }
        // Nobody presses a key any more.
        if view.input_ended && feed.condition().over {
            draw(&mut shown, feed, state, view, &surroundings)?;
            return Ok(());
        }
        match action {
            UserAction::Quit => return Ok(()),
            UserAction::Nothing => {}
            UserAction::Draw => {
                feed.set_interval(view.interval);
                draw(&mut shown, feed, state, view, &surroundings)?;
            }
            UserAction::Suspend => {
                drop(shown);
                signal::stop_myself()?;
                shown = Screen::enter()?;
                next = Instant::now();
            }
        }
    }
}

/// The terminal's keys, without a wait: opened anew, for whoever has the terminal too would not wait either.
fn keyboard() -> Result<File> {
    let own = io::stdin().is_terminal().then_some("/proc/self/fd/0");
    let mut places = own.into_iter().chain(["/dev/tty"]);
    let open = |path| {
        use std::os::unix::fs::OpenOptionsExt as _;
        File::options().read(true).custom_flags(poll::NO_WAIT).open(path).ok()
    };
    places.find_map(open).context("cannot read the terminal's keys")
}

/// The keys that were pressed; `None` of a terminal that is gone.
fn pressed(mut keyboard: &File) -> Option<Vec<u8>> {
    let mut bytes = [0; 64];
    match io::Read::read(&mut keyboard, &mut bytes) {
        Ok(0) => None,
        Ok(read) => Some(bytes[..read].to_vec()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Some(Vec::new())
        }
        Err(_) => None,
    }
}

fn draw(
    shown: &mut Screen,
    feed: &dyn Feed,
    state: &State,
    view: &View,
    around: &Surroundings,
) -> Result<()> {
    let size = shown.terminal.size().context("cannot tell the terminal's size")?;
    let size = (size.width, size.height);
    let lines = match view.help {
        true => HELP.lines().map(Line::raw).collect(),
        false => view.lines(state, feed, around, (size, KEYS)),
    };
    shown.draw(lines).context("cannot draw on the terminal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_last_line_says() {
        let theme = Theme { colour: false, unicode: false };
        let mut view = View::new(theme, Duration::from_secs(1));
        assert_eq!(view.keys(b"q"), UserAction::Quit);
        assert_eq!(view.keys(b"x\x03"), UserAction::Quit);
        assert_eq!(view.keys(b"\x1a"), UserAction::Suspend);
        assert_eq!(view.keys(b"c"), UserAction::Nothing);
        assert_eq!((view.keys(b"?"), view.help), (UserAction::Draw, true));
        assert_eq!((view.keys(b"\x1b"), view.help), (UserAction::Draw, false));
        // Arrows, and a key with Alt.
        for other in [&b"\x1b[A"[..], b"\x1bOq", b"\x1bq"] {
            assert_eq!(view.keys(other), UserAction::Nothing);
        }
        for (key, hidden) in [
            (b"2", &[Pane::Memory][..]),
            (b"1", &[Pane::Memory, Pane::Heat]),
            (b"2", &[Pane::Heat]),
        ] {
            view.keys(key);
            assert_eq!(view.hidden, hidden);
        }
        view.keys(&[b'+'; 20]);
        assert_eq!(view.interval, INTERVALS[1]);
        view.keys(&[b'-'; 20]);
        assert_eq!(view.interval, INTERVALS[0]);
        view.keys(b" ");
        assert!(view.held);
        for end in [4, 0] {
            let mut view = View::new(theme, Duration::from_secs(1));
            assert!(!view.input_ended);
            assert_eq!((view.keys(&[end]), view.input_ended), (UserAction::Nothing, true));
        }
    }

    #[test]
    fn the_page_that_explains_fits_a_small_terminal() {
        assert!(HELP.lines().count() <= 23 && HELP.lines().all(|line| line.len() <= 80));
        assert!(KEYS.len() <= 50);
    }
}
