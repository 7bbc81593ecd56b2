//! The screen as lines, for a terminal or as text.
//!
//! ```text
//!  who, for how long                         1 line
//!  what it comes to                          2 sentences, wrapped
//!  heat      address space by last touch     title, strip, largest regions
//!  memory    by kernel and heap              title, figures, over time
//!  faults    rate and tail                   title, figures, over time
//!  machine   fragmentation of free memory    1 line and more
//!  tiers     nodes and daemons               1 line each
//!  keys                                      1 line, the last
//! ```
//!
//! Always true: no line is wider than the screen, and there are no more lines than it has; where it is too low, panes
//! are left out from below, then shortened.

pub mod sentences;
pub mod theme;

use pagemill_launch::stdio::printable;
use pagemill_model::recording::{Meta, NotMeasured};
use pagemill_model::{Bytes, HeapSample, Nanos};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::state::State;
use crate::state::faults::{MINUTE, STALL};
use crate::state::heat::{Cell, Region};
use crate::state::memory::memory;
use sentences::{Sentence, percent, says, size, time};
use theme::{Age, Theme};

/// Ten seconds.
const TEN: Nanos = Nanos(10_000_000_000);

/// A pane, in the order of the screen; its key is its number, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pane {
    /// The address space by last touch.
    Heat,
    /// Memory by the kernel and by the heap.
    Memory,
    /// Page faults.
    Faults,
    /// Free memory of the machine.
    Machine,
    /// Memory tiers.
    Tiers,
}

impl Pane {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Heat, Self::Memory, Self::Faults, Self::Machine, Self::Tiers];

    fn title(self) -> &'static str {
        match self {
            Self::Heat => "heat",
            Self::Memory => "memory",
            Self::Faults => "faults",
            Self::Machine => "machine",
            Self::Tiers => "tiers",
        }
    }
}

/// What is drawn besides the state.
#[derive(Clone, Debug)]
pub struct FrameContext<'a> {
    /// The header of what is looked at.
    pub meta: &'a Meta,
    /// Columns and lines.
    pub size: (u16, u16),
    /// Colours and characters.
    pub theme: Theme,
    /// Panes that are not shown.
    pub hidden: &'a [Pane],
    /// How it stands, such as `running` or `ended`.
    pub condition: &'a str,
    /// Whether that asks for attention.
    pub over: bool,
    /// Time between two frames.
    pub interval: Nanos,
    /// What is not measured, and why.
    pub lacks: &'a [NotMeasured],
    /// Lines of the tiers.
    pub tiers: &'a [String],
    /// Part of the time in which a task of the machine waits for memory.
    pub pressure: Option<f64>,
    /// The last line.
    pub keys: &'a str,
}

/// The screen.
pub fn screen(state: &State, look: &FrameContext<'_>) -> Vec<Line<'static>> {
    let (columns, rows) = (usize::from(look.size.0.max(1)), usize::from(look.size.1.max(1)));
    let mut head = vec![header(state, look)];
    for sentence in says(state, look.meta) {
        head.extend(wrapped(&sentence, columns, look.theme));
    }
    let shown = Pane::ALL.into_iter().filter(|pane| !look.hidden.contains(pane));
    let mut panes: Vec<_> = shown.map(|pane| pane_lines(pane, state, look, columns)).collect();
    let keys = usize::from(!look.keys.is_empty());
    let room = rows.saturating_sub(keys);
    let mut used = head.len();
    // The list of regions is as long as the others leave room for.
    let all = panes.iter().fold(used, |sum, pane| sum + pane.len());
    if let Some(heat) = panes.first_mut().filter(|_| !look.hidden.contains(&Pane::Heat)) {
        let over = all.saturating_sub(room);
        heat.truncate(heat.len().saturating_sub(over).max(REGIONS_FROM + 1));
    }
    let mut lines = head;
    for pane in panes {
        // A title alone says nothing.
        if used + pane.len().min(2) > room {
            break;
        }
        let fits = pane.len().min(room - used);
        used += fits;
        lines.extend(pane.into_iter().take(fits));
    }
    lines.truncate(room);
    if keys == 1 {
        lines.resize(room, Line::default());
        lines.push(Line::styled(look.keys.to_owned(), look.theme.faint()));
    }
    lines.into_iter().map(|line| cut(line, columns)).collect()
}

fn pane_lines(
    pane: Pane,
    state: &State,
    look: &FrameContext<'_>,
    columns: usize,
) -> Vec<Line<'static>> {
    match pane {
        Pane::Heat => heat(state, look, columns),
        Pane::Memory => memory_pane(state, look, columns),
        Pane::Faults => faults(state, look, columns),
        Pane::Machine => machine(state, look, columns),
        Pane::Tiers => tiers(look),
    }
}

/// Lines as text, without what is empty at their ends.
pub fn text(lines: &[Line<'_>]) -> String {
    let one = |line: &Line<'_>| {
        let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        format!("{}\n", text.trim_end())
    };
    lines.iter().map(one).collect()
}

/// The line as far as it fits.
fn cut(line: Line<'static>, columns: usize) -> Line<'static> {
    if line.width() <= columns {
        return line;
    }
    let mut left = columns;
    let mut spans = Vec::new();
    for span in line.spans {
        let mut kept = String::new();
        for c in span.content.chars() {
            let width = c.width().unwrap_or(0);
            if width > left {
                left = 0;
                break;
            }
            left -= width;
            kept.push(c);
        }
        spans.push(Span::styled(kept, span.style));
        if left == 0 {
            break;
        }
    }
    Line::from(spans)
}

/// Columns of a sentence that are shown at most, with what is lost at the ends of lines.
const SENTENCE: usize = 240;

/// A sentence on as many lines as it needs, three at most on 80 columns, more on fewer; what does not fit is cut off.
fn wrapped(sentence: &Sentence, columns: usize, theme: Theme) -> Vec<Line<'static>> {
    let style = if sentence.alert { theme.alert() } else { theme.well() };
    let mark = if sentence.alert { "! " } else { "  " };
    let mut lines: Vec<String> = Vec::new();
    let mut line = mark.to_owned();
    for word in printable(&sentence.text).split_whitespace() {
        if line.width() > 2 && line.width() + 1 + word.width() > columns {
            lines.push(std::mem::replace(&mut line, "  ".to_owned()));
        }
        if line.width() > 2 {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    let most = SENTENCE.div_ceil(columns.max(1)).clamp(2, 8);
    if lines.len() > most {
        lines.truncate(most);
        lines[most - 1].push_str(" ...");
    }
    lines.into_iter().map(|line| Line::styled(line, style)).collect()
}

fn header(state: &State, look: &FrameContext<'_>) -> Line<'static> {
    let meta = look.meta;
    let style = if look.over { look.theme.alert() } else { Style::new() };
    Line::from(vec![
        Span::styled("pagemill live ", look.theme.title()),
        Span::raw(printable(&format!("{} ({})  ", meta.comm, meta.pid)).into_owned()),
        Span::styled(look.condition.to_owned(), style),
        Span::styled(
            format!("  {}, every {}", time(state.length()), time(look.interval)),
            look.theme.faint(),
        ),
    ])
}

/// The line that a pane begins with.
fn title(pane: Pane, theme: Theme, rest: impl IntoIterator<Item = Span<'static>>) -> Line<'static> {
    let mut spans = vec![Span::styled(format!("{:<8}", pane.title()), theme.title())];
    spans.extend(rest);
    Line::from(spans)
}

/// A line below it.
fn below(text: impl Into<String>) -> Line<'static> {
    Line::raw(format!("  {}", text.into()))
}

/// Why a pane has nothing to show: that of the first of these words that is not measured, or how to record it.
fn absent(look: &FrameContext<'_>, words: &[&str], way: &str) -> Line<'static> {
    // Who asked for memory is not how much there is.
    let lacks = look.lacks.iter().filter(|lacks| lacks.what != NotMeasured::ALLOCATIONS);
    let lacks = lacks.into_iter().find(|lacks| words.iter().any(|word| lacks.what.contains(word)));
    let why = lacks.map_or_else(|| format!("not recorded ({way})"), |lacks| lacks.why.clone());
    Line::styled(format!("  {}", printable(&why)), look.theme.faint())
}

/// When a cell was touched at the latest: what is warm, in the window of the marks.
fn age_of(cell: &Cell, state: &State) -> Age {
    let warm = state.heat.warm_since().filter(|_| cell.warm);
    match age(cell.touched.max(warm), state.now) {
        // A window is a minute long; two of them may have gone by.
        Age::Old if cell.warm => Age::Minute,
        age => age,
    }
}

fn age(touched: Option<Nanos>, now: Nanos) -> Age {
    match touched.map(|at| now.since(at).0) {
        None => Age::Never,
        Some(..2_000_000_000) => Age::Now,
        Some(..10_000_000_000) => Age::Seconds,
        Some(..60_000_000_000) => Age::Minute,
        Some(_) => Age::Old,
    }
}

/// Lines of the heat before those of regions.
const REGIONS_FROM: usize = 3;
/// Regions at most.
const REGIONS: usize = 12;

fn heat(state: &State, look: &FrameContext<'_>, columns: usize) -> Vec<Line<'static>> {
    let theme = look.theme;
    let mut legend = vec![Span::styled("touched within ", theme.faint())];
    for age in Age::ALL {
        let (symbol, style) = theme.heat(age);
        legend.push(Span::styled(symbol.to_string(), style));
        legend.push(Span::styled(format!(" {}  ", age.words()), theme.faint()));
    }
    let mut lines = vec![title(Pane::Heat, theme, legend)];
    let strips = if look.size.1 >= 24 { 2 } else { 1 };
    let width = columns.saturating_sub(4).clamp(1, 400);
    let cells = state.heat.cells(width * strips);
    if cells.is_empty() {
        lines.push(absent(look, &["heat", "mappings"], "record --with hugepages or accesses"));
        return lines;
    }
    lines.extend(cells.chunks(width).map(|row| strip(row, state, theme)));
    if state.heat.touches == 0 && state.heat.window().is_none() {
        lines.push(absent(look, &["heat"], "record --with accesses"));
    }
    let regions = state.heat.regions();
    lines.extend(
        regions.iter().take(REGIONS).map(|region| region_line(region, state, columns, theme)),
    );
    lines
}

/// A row of cells.
fn strip(row: &[Cell], state: &State, theme: Theme) -> Line<'static> {
    let mut spans = vec![Span::raw("  ")];
    let mut run: Option<(Age, String)> = None;
    for cell in row {
        let age = age_of(cell, state);
        let symbol = theme.heat(age).0;
        match &mut run {
            Some((known, text)) if *known == age => text.push(symbol),
            _ => {
                let before = run.replace((age, symbol.to_string()));
                spans.extend(before.map(|(age, text)| Span::styled(text, theme.heat(age).1)));
            }
        }
    }
    spans.extend(run.map(|(age, text)| Span::styled(text, theme.heat(age).1)));
    Line::from(spans)
}

fn region_line(region: &Region, state: &State, columns: usize, theme: Theme) -> Line<'static> {
    let warm = region.warm.filter(|warm| *warm > 0);
    let age = age_of(&Cell { touched: region.touched, warm: warm.is_some() }, state);
    let (symbol, style) = theme.heat(age);
    let seen = match (region.warm, state.heat.window(), region.touched) {
        (Some(warm), Some(window), _) => {
            let share = warm.min(region.bytes) as f64 / region.bytes.max(1) as f64;
            format!("{} touched in {}", percent(share), time(window))
        }
        (_, _, None) => "not seen touched".to_owned(),
        (_, _, Some(at)) => match age {
            // Samples do not see all, and the line is short.
            Age::Now | Age::Seconds => {
                let watched = state.began.map_or(TEN, |began| state.now.since(began).min(TEN));
                let touched = region.touched_within(TEN, state.now);
                format!("{}+ in {}", size(touched), time(watched))
            }
            _ => format!("touched {} ago", time(state.now.since(at))),
        },
    };
    let room = columns.saturating_sub(4 + 11 + 2 + 26).clamp(8, 48);
    Line::from(vec![
        Span::raw("  "),
        Span::styled(symbol.to_string(), style),
        Span::raw(format!(" {:<room$} {}  ", end_of(&region.name, room), Bytes(region.bytes))),
        Span::styled(seen, theme.faint()),
    ])
}

/// The end of a name, which tells more than its beginning.
fn end_of(name: &str, room: usize) -> String {
    let name = printable(name);
    let length = name.chars().count();
    if length <= room {
        return name.into_owned();
    }
    name.chars().skip(length - room.saturating_sub(2)).fold("..".to_owned(), |mut out, c| {
        out.push(c);
        out
    })
}

/// A line of values over the time that was looked at, with its highest one.
fn over_time(
    values: &crate::state::history::History,
    name: &str,
    highest: &str,
    columns: usize,
    theme: Theme,
) -> Option<Line<'static>> {
    let width = columns.saturating_sub(name.width() + highest.width() + 8).min(200);
    let columns = values.columns(width);
    if columns.len() < 2 {
        return None;
    }
    Some(Line::from(vec![
        Span::raw(format!("  {name} ")),
        Span::styled(theme.spark(&columns), theme.well()),
        Span::styled(format!(" max {highest}"), theme.faint()),
    ]))
}

fn memory_pane(state: &State, look: &FrameContext<'_>, columns: usize) -> Vec<Line<'static>> {
    let Some(sample) = &state.memory.last else {
        let why = absent(look, &["heap", "memory"], "record --with heap");
        return vec![title(Pane::Memory, look.theme, []), why];
    };
    let bytes = |value: Option<Bytes>| value.map_or_else(|| "-".into(), |value| size(value.0));
    let all = memory(sample).map_or_else(|| "-".into(), size);
    let mut lines = vec![title(
        Pane::Memory,
        look.theme,
        [Span::raw(format!(
            "{all} ({})   Rss {}   swap {}   {} {}",
            // What memfds hold that no page table has is in no Pss.
            if sample.unmapped.is_some_and(|held| held.0 > 0) { "Pss + memfd" } else { "Pss" },
            bytes(sample.rss),
            bytes(sample.swap),
            if look.meta.shares_cgroup() { "whole cgroup" } else { "cgroup" },
            bytes(sample.cgroup)
        ))],
    )];
    lines.push(match heap_line(sample) {
        Some(text) => below(text),
        None => below(kernel_line(state, sample)),
    });
    let highest = state.memory.history.highest().map_or_else(String::new, |most| size(most as u64));
    lines.extend(over_time(&state.memory.history, "memory", &highest, columns, look.theme));
    if state.memory.live.last().is_some() {
        let most = state.memory.live.highest().map_or_else(String::new, |most| size(most as u64));
        lines.extend(over_time(&state.memory.live, "live  ", &most, columns, look.theme));
    }
    lines
}

/// What our heap says of itself.
fn heap_line(sample: &HeapSample) -> Option<String> {
    let (Bytes(live), Bytes(footprint)) = (sample.live?, sample.footprint?);
    let free = footprint.saturating_sub(live);
    let saved = sample.saved.filter(|saved| saved.0 > 0);
    Some(format!(
        "heap {}: live {}, free {} ({}){}",
        size(footprint),
        size(live),
        size(free),
        percent(free as f64 / footprint.max(1) as f64),
        saved.map_or_else(String::new, |saved| format!(", saved by merging {}", size(saved.0)))
    ))
}

/// Where the kernel says it is.
fn kernel_line(state: &State, sample: &HeapSample) -> String {
    let pss = sample.pss.map_or(0, |bytes| bytes.0);
    let anonymous = sample.pss_anon.map(|bytes| bytes.0);
    let shared = sample.pss_shmem.map(|bytes| bytes.0);
    let part = |value: Option<u64>| value.map_or_else(|| "-".into(), size);
    let file = anonymous.zip(shared).map(|(a, b)| pss.saturating_sub(a).saturating_sub(b));
    let huge = state.heat.anonymous().map(|memory| memory.huge).filter(|huge| *huge > 0);
    format!(
        "anonymous {}, files {}, shared memory {}{}",
        part(anonymous),
        part(file),
        part(shared),
        huge.map_or_else(String::new, |huge| format!("; {} on huge pages", size(huge)))
    )
}

fn faults(state: &State, look: &FrameContext<'_>, columns: usize) -> Vec<Line<'static>> {
    let theme = look.theme;
    let Some(setup) = &look.meta.faults else {
        let why = absent(look, &["faults"], "record --with faults");
        return vec![title(Pane::Faults, theme, []), why];
    };
    let began = state.began.unwrap_or(state.now);
    let figures = |length: Nanos| {
        let recent = state.faults.recent(length, began, state.now);
        if recent.count == 0 {
            return "none".to_owned();
        }
        let at = |share: f64| recent.times.quantile(share).map_or_else(|| "-".into(), time);
        let longest = recent.longest().map_or_else(|| "-".into(), time);
        let rate = recent.count as f64 / recent.seconds;
        format!("{rate:.0}/s  p50 {}  p99 {}  max {longest}", at(0.5), at(0.99))
    };
    let mut lines = vec![title(
        Pane::Faults,
        theme,
        [
            Span::raw(format!("10 s: {}", figures(TEN))),
            Span::styled(format!("   by {}", setup.back_end), theme.faint()),
        ],
    )];
    let stalls = state.faults.stalls(MINUTE, state.now).count();
    let style = if stalls > 0 { theme.alert() } else { Style::new() };
    let mut minute = vec![
        Span::raw(format!("  1 min: {}  ", figures(MINUTE))),
        Span::styled(format!("{stalls} of {} or more", time(STALL)), style),
    ];
    if let Some(longest) = &state.faults.longest {
        let ago = state.now.since(longest.time);
        let longest = format!("  longest {} ({} ago)", time(longest.latency), time(ago));
        let taken: usize = minute.iter().map(Span::width).sum();
        // Half a word tells nothing.
        if taken + longest.width() <= columns {
            minute.push(Span::styled(longest, theme.faint()));
        }
    }
    lines.push(Line::from(minute));
    let most = state.faults.tail.highest().filter(|most| *most > 0.0);
    let most = most.map(|most| time(Nanos(most as u64)));
    let tail =
        most.and_then(|most| over_time(&state.faults.tail, "longest", &most, columns, theme));
    lines.extend(tail);
    lines
}

fn machine(state: &State, look: &FrameContext<'_>, columns: usize) -> Vec<Line<'static>> {
    let Some((index, pages)) = state.machine.index().zip(state.machine.free_pages()) else {
        let why = absent(look, &["frag", "free memory"], "record --with frag");
        return vec![title(Pane::Machine, look.theme, []), why];
    };
    let free = pages.saturating_mul(look.meta.page_size.0.max(1));
    let style = if index >= 0.5 { look.theme.alert() } else { Style::new() };
    let mut lines = vec![title(
        Pane::Machine,
        look.theme,
        [
            Span::raw(format!("{} free, ", size(free))),
            Span::styled(format!("{} in blocks too small for a huge page", percent(index)), style),
        ],
    )];
    // It is that of now, and what has ended waits no more.
    let pressure = look.pressure.filter(|_| !look.over).map_or_else(String::new, |share| {
        format!(", tasks wait for memory {:.1} % of the time", share * 100.0)
    });
    let blocks = state.machine.huge_blocks();
    lines.push(below(format!("{blocks} free huge pages{pressure}")));
    let most = state.machine.unusable.highest().filter(|most| *most > 0.0).map(percent);
    lines.extend(most.and_then(|most| {
        over_time(&state.machine.unusable, "too small", &most, columns, look.theme)
    }));
    lines
}

fn tiers(look: &FrameContext<'_>) -> Vec<Line<'static>> {
    let mut all = look.tiers.iter().map(|line| printable(line).into_owned());
    let first = all.next().unwrap_or_else(|| "not looked at".into());
    // What is looked at was then, and the tiers are this machine's now.
    let now = if look.over { "this machine now: " } else { "" };
    let mut lines = vec![title(Pane::Tiers, look.theme, [Span::raw(format!("{now}{first}"))])];
    lines.extend(all.map(below));
    lines
}

#[cfg(test)]
mod tests {
    use pagemill_model::frag::FragSample;
    use pagemill_model::{Event, Fault, FaultCounts, FaultSetup, MappingSample};
    use proptest::prelude::*;

    use super::*;

    /// A program that has something in every pane, with a name that is not for a terminal.
    fn full() -> (State, Meta) {
        let meta = Meta {
            pid: 7,
            comm: "na\u{1b}me".into(),
            page_size: Bytes(4096),
            faults: Some(FaultSetup { back_end: "bpf".into(), ..FaultSetup::default() }),
            ..Meta::default()
        };
        let mut state = State::of(&meta);
        for second in 1..40_u64 {
            let time = Nanos(second * 1_000_000_000);
            let bytes = |mib: u64| Some(Bytes(mib << 20));
            let heap = HeapSample {
                time,
                pss: bytes(100 + second),
                live: bytes(40),
                footprint: bytes(90),
                ..HeapSample::default()
            };
            let mapping = |number: u64| MappingSample {
                time,
                pid: Some(7),
                start: Some(number << 30),
                end: Some((number << 30) + (10 << 20)),
                rss: bytes(10),
                name: Some(format!("/a/long/way/to/the/file/of/this/mapping/{number}.so")),
                ..MappingSample::default()
            };
            let counts = FaultCounts {
                time,
                flags: Some(0),
                buckets: Some(vec![100, 700]),
                counts: Some(vec![1000, second]),
            };
            let frag =
                FragSample { time, free_blocks: Some(vec![second; 11]), ..FragSample::default() };
            let mut events: Vec<Event> =
                (1..20).map(|n| Event::Mapping(Box::new(mapping(n)))).collect();
            events.push(Event::Heap(Box::new(heap)));
            events.push(Event::FaultCounts(Box::new(counts)));
            events.push(Event::Frag(Box::new(frag)));
            events.iter().for_each(|event| state.event(event, &meta));
        }
        (state, meta)
    }

    fn drawn(
        state: &State,
        meta: &Meta,
        size: (u16, u16),
        hidden: &[Pane],
        unicode: bool,
    ) -> String {
        let tiers = ["one: node 0".to_owned()];
        text(&screen(
            state,
            &FrameContext {
                meta,
                size,
                theme: Theme { colour: false, unicode },
                hidden,
                condition: "running",
                over: meta.exit_status.is_some(),
                interval: Nanos(1_000_000_000),
                lacks: &[],
                tiers: &tiers,
                pressure: Some(0.01),
                keys: "q quit",
            },
        ))
    }

    /// "pagemill .." stood at 50 columns where the one command was.
    #[test]
    fn a_sentence_is_wrapped_and_its_command_is_whole() {
        let (state, meta) = full();
        for columns in [40, 50, 60, 80] {
            let screen = drawn(&state, &meta, (columns, 24), &[], false);
            let words = screen.split_whitespace().collect::<Vec<_>>().join(" ");
            let command = "pagemill run --heap compact merges such pages";
            assert!(words.contains(command) && !words.contains("..."), "{columns}: {screen}");
            let fits = screen.lines().all(|line| line.width() <= usize::from(columns));
            assert!(fits, "{columns}: {screen}");
        }
    }

    #[test]
    fn a_terminal_of_80_by_24_has_all_panes() {
        let (state, meta) = full();
        let screen = drawn(&state, &meta, (80, 24), &[], false);
        for pane in Pane::ALL {
            assert!(screen.lines().any(|line| line.starts_with(pane.title())), "{screen}");
        }
        assert!(screen.ends_with("\nq quit\n") && !screen.contains('\u{1b}'), "{screen}");
    }

    /// Beside data of then stood what the machine has free now.
    #[test]
    fn of_what_has_ended_the_tiers_are_said_to_be_those_of_now() {
        let (state, mut meta) = full();
        let lines = |meta: &Meta| {
            let screen = drawn(&state, meta, (80, 40), &[], false);
            let of =
                |begin: &str| screen.lines().find(|line| line.contains(begin)).map(str::to_owned);
            (of("tiers ").unwrap(), of("free huge pages").unwrap())
        };
        let (tiers, machine) = lines(&meta);
        assert_eq!(tiers, "tiers   one: node 0");
        assert!(machine.contains("tasks wait for memory 1.0 %"), "{machine}");
        meta.exit_status = Some(0);
        let (tiers, machine) = lines(&meta);
        assert_eq!(tiers, "tiers   this machine now: one: node 0");
        assert!(!machine.contains("tasks wait"), "{machine}");
    }

    /// A region of which 97 % were touched in two seconds was drawn as if that had been a minute ago.
    #[test]
    fn what_is_warm_is_as_old_as_the_window_in_which_it_was_touched() {
        let drawn = |began: u64| {
            let (mut state, meta) = full();
            state.heat.begin_window(Nanos(began * 1_000_000_000));
            let row = MappingSample {
                time: Nanos(39_000_000_000),
                pid: Some(7),
                start: Some(1 << 40),
                end: Some((1 << 40) + (100 << 20)),
                rss: Some(Bytes(100 << 20)),
                referenced: Some(Bytes(90 << 20)),
                name: Some("/a/warm.so".into()),
                ..MappingSample::default()
            };
            state.event(&Event::Mapping(Box::new(row)), &meta);
            let screen = drawn(&state, &meta, (80, 40), &[], true);
            let line = screen.lines().find(|line| line.contains("/a/warm.so"));
            line.unwrap_or_else(|| panic!("{screen}")).trim().chars().next()
        };
        assert_eq!([38, 34, 9].map(drawn), [Some('█'), Some('▓'), Some('▒')]);
    }

    /// Beside a process of 157 MiB stood 1.5 GiB, of 80 others in its control group.
    #[test]
    fn the_charge_of_a_cgroup_that_others_are_in_is_called_that_of_the_whole() {
        let (mut state, mut meta) = full();
        let charge = HeapSample {
            time: Nanos(39_500_000_000),
            pss: Some(Bytes(1 << 20)),
            cgroup: Some(Bytes(3 << 30)),
            ..HeapSample::default()
        };
        state.event(&Event::Heap(Box::new(charge)), &meta);
        let own = drawn(&state, &meta, (80, 24), &[], false);
        assert!(own.contains("   cgroup 3.0 GiB"), "{own}");
        let what = NotMeasured::OWN_CHARGE.into();
        meta.not_measured.push(NotMeasured { what, why: "80 others".into() });
        let shared = drawn(&state, &meta, (80, 24), &[], false);
        assert!(shared.contains("   whole cgroup 3.0 GiB"), "{shared}");
    }

    /// On 80 columns a line ended in "longes".
    #[test]
    fn what_does_not_fit_behind_the_minute_is_left_out_as_a_whole() {
        let (mut state, meta) = full();
        let fault =
            Fault { time: Nanos(39_000_000_000), latency: Nanos(3_200_000), ..Fault::default() };
        state.event(&Event::Fault(Box::new(fault)), &meta);
        let minute = |columns: u16| {
            let screen = drawn(&state, &meta, (columns, 40), &[], false);
            let line = screen.lines().find(|line| line.contains("1 min: "));
            line.unwrap_or_else(|| panic!("{screen}")).to_owned()
        };
        let wide = minute(150);
        let at = wide.find("  longest ").unwrap_or_else(|| panic!("{wide}"));
        assert!(wide.ends_with(" ago)"), "{wide}");
        for columns in at..wide.len() {
            assert_eq!(minute(columns as u16), wide[..at], "{columns}");
        }
        assert_eq!(minute(wide.len() as u16), wide);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn no_line_is_wider_and_no_screen_higher_than_there_is_room(
            columns in 1..200_u16, rows in 1..80_u16, hidden in prop::collection::vec(0..5_usize, 0..4), unicode: bool
        ) {
            let (state, meta) = full();
            let hidden: Vec<Pane> = hidden.into_iter().map(|at| Pane::ALL[at]).collect();
            for (state, meta) in [(&state, &meta), (&State::default(), &Meta::default())] {
                let screen = drawn(state, meta, (columns, rows), &hidden, unicode);
                prop_assert!(screen.lines().count() <= usize::from(rows), "{}", screen);
                for line in screen.lines() {
                    prop_assert!(line.width() <= usize::from(columns), "{:?}", line);
                    prop_assert!(unicode || line.is_ascii(), "{:?}", line);
                }
                for pane in &hidden {
                    let title = format!("{:<8}", pane.title());
                    let shown = screen.lines().any(|line| line.starts_with(&title));
                    prop_assert!(!shown, "{}", screen);
                }
            }
        }
    }
}
