//! Recordings with any rows, read while they grow: by who follows them, and to what a screen shows of them.

use std::time::Duration;

use pagemill_live::draw::theme::Theme;
use pagemill_live::draw::{self, FrameContext};
use pagemill_live::feed::{Feed, Followed, Redacted};
use pagemill_live::json;
use pagemill_live::state::State;
use pagemill_live::terminal::Surroundings;
use pagemill_model::Nanos;

use crate::events::Recorded;
use crate::scratch::in_scratch;

/// A recording of half of the rows, looked at, and of all, looked at again. The first byte says whether names are left
/// out, the second how large the screen is.
pub fn followed(bytes: &[u8]) {
    let [how, size, bytes @ ..] = bytes else { return };
    let mut recorded = Recorded::of(bytes);
    in_scratch(|room| {
        let recording = room.join("followed");
        let later = recorded.events.split_off(recorded.events.len() / 2);
        if !recorded.write(&recording) {
            return;
        }
        let Ok(mut feed) = Followed::open(&recording, Duration::ZERO) else { return };
        let mut state = State::of(feed.meta());
        let redact = how & 1 != 0;
        if redact {
            state.redact();
        }
        look(&mut feed, &mut state, *size, redact);
        recorded.events.extend(later);
        if recorded.write(&recording) {
            look(&mut feed, &mut state, *size, redact);
        }
    });
}

/// Takes in what is new, and draws it.
fn look(feed: &mut Followed, state: &mut State, size: u8, redact: bool) {
    let _ = feed.refresh(state);
    let mut redacted;
    let feed: &mut dyn Feed = match redact {
        true => {
            redacted = Redacted::new(feed);
            &mut redacted
        }
        false => feed,
    };
    let (condition, lacks) = (feed.condition(), feed.lacks());
    let context = FrameContext {
        meta: feed.meta(),
        size: (u16::from(size), u16::from(size.rotate_left(4))),
        theme: Theme::of(|name| {
            (name == "LANG" && size.is_multiple_of(2)).then(|| "C.UTF-8".into())
        }),
        hidden: &[],
        condition: &condition.words,
        over: condition.over,
        interval: Nanos(1_000_000_000),
        lacks: &lacks,
        tiers: &[],
        pressure: Some(0.5),
        keys: "q quit",
    };
    let _ = draw::text(&draw::screen(state, &context));
    let around = Surroundings { tiers: Vec::new(), pressure: None };
    drop(json::frame(state, feed, &around));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let sizes = [0x55, 0x12, 0xfe, 0x01].into_iter().cycle();
    let seeds = crate::reports::seeds().into_iter().zip(sizes);
    seeds.map(|(seed, size)| [&seed[..1], &[size], &seed[1..]].concat()).collect()
}
