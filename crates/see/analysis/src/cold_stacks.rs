//! Resident memory by who asked for it and when it was touched last: what a flame graph of cold memory is drawn from.
//!
//! A stack is a call stack for what an allocator gave, and the kind, the file and the name for all else. Its bytes are
//! those of [`ObjectHeat::last_touched`]: pages that are resident near the end of the recording, by their last touch,
//! or the last before a rest that was most of their life and lasted until near the end.
//!
//! Always true: the bytes of all stacks are those of all objects; what was *not touched after* a moment grows with it.

use std::collections::HashMap;

use crate::heat::{HeatView, ObjectHeat};
use pagemill_model::sums::sum;

/// Parts of the recording that last touches are told apart by, where there is no room for all steps.
pub const PARTS: u64 = 8;

/// Frames that are kept of a stack, the innermost.
const FRAMES: usize = 64;

/// Resident memory of one stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdStack {
    /// The outermost caller first.
    pub frames: Vec<String>,
    /// Bytes by the step of [`HeatView`] in which they were touched last, in order.
    pub last_touched: Vec<(u64, u64)>,
}

impl ColdStack {
    fn of(object: &ObjectHeat, page: u64) -> Option<Self> {
        let last_touched = object.last_touched.iter();
        let last_touched: Vec<(u64, u64)> =
            last_touched.map(|(step, pages)| (*step, pages.saturating_mul(page))).collect();
        let frames: Vec<String> = match object.kind.as_str() {
            "allocation" => {
                let called = object.detail.iter().take(FRAMES).rev().cloned().collect::<Vec<_>>();
                if called.is_empty() { vec![object.name.clone()] } else { called }
            }
            kind => {
                let mut frames = vec![format!("{kind}s")];
                frames.extend(object.detail.iter().cloned());
                frames.push(object.name.clone());
                frames
            }
        };
        (!last_touched.is_empty()).then_some(Self { frames, last_touched })
    }

    /// Bytes that were touched last in the steps before this one.
    pub fn not_touched_after(&self, step: u64) -> u64 {
        sum(self.last_touched.iter().filter(|(last, _)| *last < step).map(|(_, bytes)| *bytes))
    }
}

/// All stacks of a view whose pages are of `page` bytes.
pub fn stacks(view: &HeatView, page: u64) -> Vec<ColdStack> {
    view.objects.iter().filter_map(|object| ColdStack::of(object, page)).collect()
}

/// The names of all frames, each once, and the frames of each stack by their numbers.
pub fn numbered(stacks: &[ColdStack]) -> (Vec<&str>, Vec<Vec<usize>>) {
    let (mut numbers, mut names): (HashMap<&str, usize>, Vec<&str>) = Default::default();
    let mut number = |name| {
        *numbers.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() - 1
        })
    };
    let mut rows = Vec::new();
    for stack in stacks {
        rows.push(stack.frames.iter().map(|frame| number(frame.as_str())).collect());
    }
    (names, rows)
}

/// Where the parts of a recording end: steps, ascending, the last the end of all; no more than there are steps.
pub fn ends(steps: u64) -> Vec<u64> {
    let parts = steps.clamp(1, PARTS);
    (1..=parts)
        .map(|part| {
            u64::try_from(u128::from(steps.max(1)) * u128::from(part) / u128::from(parts))
                .unwrap_or(steps)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str, detail: &[&str], last: &[(u64, u64)]) -> ObjectHeat {
        ObjectHeat {
            name: name.into(),
            kind: kind.into(),
            detail: detail.iter().map(|&frame| frame.to_owned()).collect(),
            last_touched: last.to_vec(),
            ..ObjectHeat::default()
        }
    }

    #[test]
    fn a_stack_begins_with_its_outermost_caller_and_grows_by_time() {
        let objects = vec![
            object("allocation", "make", &["alloc::vec", "make", "main"], &[(0, 3), (6, 2)]),
            object("allocation", "allocation", &[], &[(9, 1)]),
            object("global", "table", &["/bin/one"], &[(4, 5)]),
            object("mapping", "[heap]", &[], &[]),
        ];
        let view = HeatView { step: 1, steps: 10, objects, ..HeatView::default() };
        let stacks = stacks(&view, 4096);
        assert_eq!(stacks.len(), 3, "what has no resident page has no stack");
        assert_eq!(stacks[0].frames, ["main", "make", "alloc::vec"]);
        assert_eq!(stacks[1].frames, ["allocation"]);
        assert_eq!(stacks[2].frames, ["globals", "/bin/one", "table"]);
        let cold =
            |stack: usize| [0, 1, 6, 7, 10].map(|step| stacks[stack].not_touched_after(step));
        assert_eq!(cold(0), [0, 3, 3, 5, 5].map(|pages| pages * 4096));
        assert_eq!(cold(2), [0, 0, 5, 5, 5].map(|pages| pages * 4096));
    }

    #[test]
    fn parts_end_with_the_recording_whatever_its_length() {
        assert_eq!(ends(16), [2, 4, 6, 8, 10, 12, 14, 16]);
        assert_eq!(ends(3), [1, 2, 3]);
        assert_eq!(ends(0), [1]);
        assert_eq!(ends(u64::MAX).last(), Some(&u64::MAX));
    }

    #[test]
    fn figures_of_a_made_up_summary_do_not_overflow() {
        let last = [(u64::MAX, u64::MAX), (1, u64::MAX)];
        let objects = vec![object("allocation", "a", &[], &last)];
        let view = HeatView { step: u64::MAX, steps: u64::MAX, objects, ..HeatView::default() };
        assert_eq!(stacks(&view, 4096)[0].not_touched_after(u64::MAX), u64::MAX);
    }
}
