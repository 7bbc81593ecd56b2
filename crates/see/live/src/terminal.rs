//! The screen on a terminal: keys, frames, and the terminal put back as it was.
//!
//! ```text
//!  enter: raw mode, alternate screen ──► look, draw, keys, signals … ──► leave, also on an error or a panic
//! ```

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use pagemill_kernel::signal::{self, Signals};
use pagemill_launch::stdio;
use pagemill_model::Nanos;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::draw::theme::Theme;
use crate::draw::{Look, Pane, screen};
use crate::feed::Feed;
use crate::state::State;

/// Signals are looked for at least so often.
const PATIENCE: Duration = Duration::from_millis(100);
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
}

/// What the user wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Suspend,
    Draw,
    Nothing,
}

impl View {
    /// As it begins.
    pub fn new(theme: Theme, interval: Duration) -> Self {
        Self { theme, interval, hidden: Vec::new(), held: false, help: false }
    }

    fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Wish::Quit,
            KeyCode::Char('z') if control => return Wish::Suspend,
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc if !self.help => return Wish::Quit,
            KeyCode::Esc => self.help = false,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char(' ' | 'p') => self.held = !self.held,
            KeyCode::Char('+' | '=') => self.interval = (self.interval * 2).min(INTERVALS[1]),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(INTERVALS[0]),
            KeyCode::Char(number @ '1'..='5') => {
                let pane = Pane::ALL[number as usize - '1' as usize];
                match self.hidden.iter().position(|hidden| *hidden == pane) {
                    Some(at) => drop(self.hidden.remove(at)),
                    None => self.hidden.push(pane),
                }
            }
            _ => return Wish::Nothing,
        }
        Wish::Draw
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
            &Look {
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
q, Esc, Ctrl-C   quit; the program goes on          space, p   hold the screen
+ -              longer, shorter interval           1 to 5     panes on and off
Ctrl-Z           stop this view, fg continues it    ?          back

heat     the program's memory in the order of its addresses, an equal amount
         each cell. How much of a mapping was touched in a minute the kernel
         tells, and its cells stand warmest first; newer touches are sampled.
         A recording of accesses has all of them, each at its place.
memory   Pss: a page that n mappings show counts 1/n in each. live: what the
         program holds; free: what its heap keeps, which only pagemill's says
         (pagemill run --heap compact -- CMD).
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
                "this terminal (TERM=dumb) cannot be drawn on (one frame as text: pagemill live --once)"
            )
        }
        Some(file) => Ok(file),
        None => bail!("there is no terminal to draw on (one frame as text: pagemill live --once)"),
    }
}

/// Whether the screen can be shown here; an error says why not.
pub fn check() -> Result<()> {
    file().map(drop)
}

/// Shows the feed until its user quits, or a signal asks to. Nothing else ends it: the last frame of what has ended
/// stays.
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
    feed.look(state)?;
    loop {
        if !feed.condition().over {
            feed.look(state)?;
        }
        if Instant::now() >= next {
            if !view.held {
                surroundings = around();
                draw(&mut shown, feed, state, view, &surroundings)?;
            }
            next = Instant::now() + view.interval;
        }
        let until = if feed.condition().over { next } else { next.min(feed.due()) };
        let wait = until.saturating_duration_since(Instant::now()).min(PATIENCE);
        let mut wish = Wish::Nothing;
        if event::poll(wait).context("cannot read keys")? {
            wish = match event::read().context("cannot read keys")? {
                Event::Key(key) => view.key(key),
                Event::Resize(..) => Wish::Draw,
                _ => Wish::Nothing,
            };
        }
        if let Some(received) = signals.wait(Duration::ZERO)? {
            match received.signal {
                signal if signal::ENDS.contains(&signal) => wish = Wish::Quit,
                signal if signal::STOPS.contains(&signal) => wish = Wish::Suspend,
                signal::CHILD => {}
                other => feed.pass_on(other),
            }
        }
        match wish {
            Wish::Quit => return Ok(()),
            Wish::Nothing => {}
            Wish::Draw => {
                feed.set_interval(view.interval);
                draw(&mut shown, feed, state, view, &surroundings)?;
            }
            Wish::Suspend => {
                drop(shown);
                signal::stop_myself()?;
                shown = Screen::enter()?;
                next = Instant::now();
            }
        }
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

    fn press(view: &mut View, code: KeyCode, modifiers: KeyModifiers) -> Wish {
        view.key(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn keys_do_what_the_last_line_says() {
        let theme = Theme { colour: false, unicode: false };
        let mut view = View::new(theme, Duration::from_secs(1));
        let none = KeyModifiers::NONE;
        assert_eq!(press(&mut view, KeyCode::Char('q'), none), Wish::Quit);
        assert_eq!(press(&mut view, KeyCode::Char('c'), KeyModifiers::CONTROL), Wish::Quit);
        assert_eq!(press(&mut view, KeyCode::Char('c'), none), Wish::Nothing);
        assert_eq!(press(&mut view, KeyCode::Char('?'), none), Wish::Draw);
        // It leaves the page first.
        assert_eq!(press(&mut view, KeyCode::Esc, none), Wish::Draw);
        assert_eq!(press(&mut view, KeyCode::Esc, none), Wish::Quit);
        for (key, hidden) in
            [('2', &[Pane::Memory][..]), ('1', &[Pane::Memory, Pane::Heat]), ('2', &[Pane::Heat])]
        {
            press(&mut view, KeyCode::Char(key), none);
            assert_eq!(view.hidden, hidden);
        }
        for _ in 0..20 {
            press(&mut view, KeyCode::Char('+'), none);
        }
        assert_eq!(view.interval, INTERVALS[1]);
        for _ in 0..20 {
            press(&mut view, KeyCode::Char('-'), none);
        }
        assert_eq!(view.interval, INTERVALS[0]);
        press(&mut view, KeyCode::Char(' '), none);
        assert!(view.held);
    }

    #[test]
    fn the_page_that_explains_fits_a_small_terminal() {
        assert!(HELP.lines().count() <= 23 && HELP.lines().all(|line| line.len() <= 80));
        assert!(KEYS.len() <= 50);
    }
}
