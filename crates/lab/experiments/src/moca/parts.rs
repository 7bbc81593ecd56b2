//! A finished part of the experiment, as it is kept in a results directory.
//!
//! ```text
//!  DIR/moca/bt-1.json         BT with 1 thread under each back end
//!  DIR/moca/bt-checked.json   its pages held against the emulator's
//!  DIR/moca/sweep.json        IS by the two intervals
//! ```

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Checked, EXACT, FAULTS, KERNELS, NAMES, Name, Outcome, Row, SAMPLE, Step};

/// Classes that a run may be of.
pub(super) const CLASSES: [&str; 4] = ["S", "W", "A", "B"];

/// All back ends.
pub(super) const BACK_ENDS: [&str; 4] = [FAULTS, NAMES, EXACT, SAMPLE];

/// What came of a part.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct Part {
    pub(super) rows: Vec<Row>,
    pub(super) checked: Vec<Checked>,
    pub(super) sweep: Vec<Step>,
    /// Where each back end had its events from.
    pub(super) events_by: Vec<(String, String)>,
}

impl Outcome {
    pub(super) fn add(&mut self, part: Part) {
        self.rows.extend(part.rows);
        self.checked.extend(part.checked);
        self.sweep.extend(part.sweep);
        for (back_end, by) in part.events_by {
            let known = self.events_by.iter().any(|(known, _)| **known == *back_end);
            let name = BACK_ENDS.into_iter().find(|name| *name == back_end);
            self.events_by.extend(name.filter(|_| !known).map(|name| (name, by)));
        }
    }

    pub(super) fn ended(mut self) -> Self {
        self.interrupted = true;
        self
    }
}

fn among<'de, D: Deserializer<'de>>(names: &[Name], from: D) -> Result<Name, D::Error> {
    let text = String::deserialize(from)?;
    let name = names.iter().find(|name| **name == text);
    name.copied().ok_or_else(|| D::Error::custom(format!("there is no {text:?} here")))
}

pub(super) fn kernel<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
    among(&KERNELS, from)
}

pub(super) fn class<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
    among(&CLASSES, from)
}

pub(super) fn back_end<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
    among(&BACK_ENDS, from)
}

#[cfg(test)]
mod tests {
    use super::super::{Options, Traced};
    use super::*;

    fn part(kernel: Name) -> Part {
        let row = Row {
            kernel,
            class: "A",
            threads: 2,
            back_end: NAMES,
            native: vec![1.5],
            traced: vec![Traced { events: 7, ..Traced::default() }],
            missing: Some("why".to_owned()),
        };
        Part {
            rows: vec![row],
            checked: vec![Checked { kernel, ..Checked::default() }],
            sweep: Vec::new(),
            events_by: vec![(NAMES.to_owned(), "bpf".to_owned())],
        }
    }

    #[test]
    fn a_part_is_found_again_by_a_run_with_the_same_options_only() {
        let room = tempfile::tempdir().unwrap();
        let checkpoints = Options::new(false, None).checkpoints(room.path()).unwrap();
        checkpoints.write("bt-2", &part("bt")).unwrap();
        assert_eq!(checkpoints.read::<Part>("bt-2"), Some(part("bt")));
        let quick = Options::new(true, None).checkpoints(room.path()).unwrap();
        assert_eq!(quick.read::<Part>("bt-2"), None);
    }

    #[test]
    fn parts_add_up_and_a_back_end_is_named_once() {
        let mut outcome = Outcome::new(Options::new(false, None));
        outcome.add(part("bt"));
        outcome.add(part("cg"));
        assert_eq!((outcome.rows.len(), outcome.checked.len()), (2, 2));
        assert_eq!(outcome.events_by, [(NAMES, "bpf".to_owned())]);
        assert!(outcome.ended().interrupted);
    }

    #[test]
    fn kernels_are_chosen_by_name_and_the_nearest_is_suggested() {
        let mut options = Options::new(false, None);
        assert_eq!(options.parts().len(), 11);
        options.only(Some(&["sp".to_owned(), "bt".to_owned()])).unwrap();
        assert_eq!(options.parts(), ["bt", "sp"]);
        options.only(Some(&["sweep".to_owned()])).unwrap();
        assert_eq!(options.parts(), ["sweep"]);
        let error = options.only(Some(&["btt".to_owned()])).unwrap_err().to_string();
        assert!(error.contains("did you mean \"bt\""), "{error}");
    }
}
