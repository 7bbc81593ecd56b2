//! A recording, as it grows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_model::EventKind;
use pagemill_model::recording::{Follower, Meta, NotMeasured};
use pagemill_record::recorders::RECORDERS;

use super::{Condition, Feed};
use crate::state::State;

/// What panes show, as they ask for it where it is lacking.
fn everything() -> String {
    let of_panes = RECORDERS.iter().filter_map(|kind| kind.pane);
    of_panes.collect::<Vec<_>>().join(", ")
}

/// A recording in the making, or a finished one.
#[derive(Debug)]
pub struct Followed {
    follower: Follower,
    interval: Duration,
    due: Instant,
    /// When it last had something new.
    news: Instant,
    /// Whether it had anything yet.
    any: bool,
    over: bool,
}

impl Followed {
    /// Opens the recording at `path` and looks at it so often.
    ///
    /// # Errors
    /// There is no recording at `path`.
    pub fn open(path: &Path, interval: Duration) -> Result<Self> {
        let mut follower = Follower::open(path)?;
        let touched = EventKind::Touched.dataset();
        // Pages of intervals tell what millions of accesses would.
        if follower.meta().datasets.iter().any(|dataset| dataset == touched) {
            follower.skip(EventKind::Access.dataset());
        }
        follower.skip(EventKind::Allocation.dataset());
        let now = Instant::now();
        Ok(Self { follower, interval, due: now, news: now, any: false, over: false })
    }
}

impl Feed for Followed {
    fn due(&self) -> Instant {
        self.due
    }

    fn refresh(&mut self, state: &mut State) -> Result<()> {
        if Instant::now() < self.due {
            return Ok(());
        }
        let meta = self.follower.meta().clone();
        if self.follower.poll(&mut |event| state.event(event, &meta))? {
            (self.news, self.any) = (Instant::now(), true);
        }
        // Its last parts were there before it said so.
        self.over = self.follower.is_finished();
        self.due = Instant::now() + self.interval;
        Ok(())
    }

    fn meta(&self) -> &Meta {
        self.follower.meta()
    }

    fn lacks(&self) -> Vec<NotMeasured> {
        if !self.any && !self.over {
            let why = "nothing is written yet: the first rows come within seconds".to_owned();
            return vec![NotMeasured { what: everything(), why }];
        }
        self.follower.meta().not_measured.clone()
    }

    fn condition(&self) -> Condition {
        if self.over {
            return Condition { words: "ended: a finished recording".into(), over: true };
        }
        let words = match self.news.elapsed().as_secs() {
            0..3 => "is being recorded".to_owned(),
            seconds => format!("is being recorded, nothing new for {seconds} s"),
        };
        Condition { words, over: false }
    }

    fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        self.due = self.due.min(Instant::now() + interval);
    }
}
