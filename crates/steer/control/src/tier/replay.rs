//! Deciding over a recording again, and what differs from what was decided then.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use pagemill_launch::meant::meant;
use pagemill_model::{Event, Policy as _, Source as _, TierDecision};
use pagemill_policy::tier::compose;
use pagemill_policy::tier::live::Live;
use serde::Serialize;

/// What a replay came to.
#[derive(Debug, Default, Serialize)]
pub struct Replay {
    /// The policy.
    pub policy: String,
    /// Views that were decided over.
    pub views: u64,
    /// Decisions that were recorded.
    pub decisions: u64,
    /// Those that come out again.
    pub same: u64,
    /// Moves that were recorded.
    pub moves: u64,
    /// The first quantum that was decided differently.
    pub first_difference: Option<u64>,
}

impl Replay {
    /// In words.
    pub fn text(&self) -> String {
        let mut text = String::new();
        text.push_str(&format!(
            "{}: {} of {} decisions over {} views are the same; {} moves were decided\n",
            self.policy, self.same, self.decisions, self.views, self.moves
        ));
        if let Some(quantum) = self.first_difference {
            text.push_str(&format!("the first that differs is that of quantum {quantum}\n"));
        }
        text
    }
}

/// The policy of this name.
///
/// # Errors
/// There is none.
pub fn policy(name: &str) -> Result<Live> {
    let valid = || {
        let names = compose::names();
        let meant = meant(name, names.iter().map(AsRef::as_ref));
        format!("there is no policy {name:?}{meant}; valid: {}", names.join(", "))
    };
    Live::named(name).with_context(valid)
}

/// Decides over a recording again, by its policy or by the one of this name.
///
/// # Errors
/// It is damaged or holds no decisions, or there is no such policy.
pub fn replay(path: &Path, name: Option<&str>) -> Result<Replay> {
    let mut reader = pagemill_launch::context::recording(path, false)?;
    let mut live = name.map(policy).transpose()?;
    let mut waiting: Option<TierDecision> = None;
    let mut views = Vec::new();
    let mut replayed = Replay::default();
    while let Some(event) = reader.next_event()? {
        match event {
            Event::TierView(view) => {
                replayed.views += 1;
                match &mut live {
                    Some(live) => waiting = Some(live.decide(&view)),
                    // Which policy it was is in its first decision.
                    None => views.push(*view),
                }
            }
            Event::TierDecision(recorded) => {
                if live.is_none() {
                    let name = recorded.policy.clone().unwrap_or_default();
                    let mut found = policy(&name).context("the recording's policy")?;
                    waiting = views.drain(..).map(|view| found.decide(&view)).last();
                    live = Some(found);
                }
                replayed.decisions += 1;
                replayed.moves += recorded.page.as_ref().map_or(0, Vec::len) as u64;
                let again = waiting.take().map(|decision| TierDecision {
                    // Another policy has another name.
                    policy: recorded.policy.clone(),
                    why: if name.is_some() { recorded.why.clone() } else { decision.why.clone() },
                    ..decision
                });
                if again.as_ref() == Some(&*recorded) {
                    replayed.same += 1;
                } else if replayed.first_difference.is_none() {
                    replayed.first_difference = recorded.quantum.or(Some(replayed.decisions - 1));
                }
            }
            _ => {}
        }
    }
    let Some(live) = live else {
        bail!(
            "{} holds no decisions of a placement policy (pagemill tier --record writes them)",
            path.display()
        );
    };
    replayed.policy = live.name().to_owned();
    Ok(replayed)
}
