//! Resident memory by call stack and time of the last touch: folded stacks, and a profile for speedscope.

use pagemill_analysis::cold_stacks::{ColdStack, numbered};
use pagemill_analysis::heat::HeatView;
use pagemill_model::Nanos;
use pagemill_model::sums::sum;
use serde_json::{Value, json};

use super::format::{Content, Format};

/// The format of flamegraph.pl and its like.
pub(super) const FOLDED: Format = Format {
    name: "folded",
    about: "Resident memory by call stack and time of its last touch, as lines for flamegraph.pl and its like",
    content: Content::Resident(folded),
};

/// That of speedscope.
pub(super) const SPEEDSCOPE: Format = Format {
    name: "speedscope",
    about: "The same as a profile for speedscope",
    content: Content::Resident(|view, stacks, ends| speedscope(view, stacks, ends).to_string()),
};

/// Bytes that are resident.
pub(super) fn bytes(stacks: &[ColdStack]) -> u64 {
    sum(stacks.iter().map(|stack| stack.not_touched_after(u64::MAX)))
}

fn time(view: &HeatView, step: u64) -> String {
    Nanos(step.saturating_mul(view.step)).plain()
}

/// A line a stack and part of the recording: frames from the outermost, when the bytes were touched last, bytes.
fn folded(view: &HeatView, stacks: &[ColdStack], ends: &[u64]) -> String {
    let mut text = String::new();
    for stack in stacks {
        let mut from = 0;
        for &to in ends {
            // What is told beyond the end counts as the last part's.
            let within =
                |step| stack.not_touched_after(if step == view.steps { u64::MAX } else { step });
            let bytes = within(to).saturating_sub(within(from));
            if bytes > 0 {
                // A blank ends the stack and a semicolon a frame.
                let frames =
                    stack.frames.iter().map(|frame| frame.replace(';', ":").replace('\n', " "));
                let frames: Vec<String> = frames.collect();
                let when =
                    format!("[last touched from {} to {}]", time(view, from), time(view, to));
                text.push_str(&format!("{};{when} {bytes}\n", frames.join(";")));
            }
            from = to;
        }
    }
    text
}

/// A profile for each part of the recording: what was not touched after its end; the last is all that is resident.
fn speedscope(view: &HeatView, stacks: &[ColdStack], ends: &[u64]) -> Value {
    let (frames, samples) = numbered(stacks);
    let frames: Vec<Value> = frames.iter().map(|name| json!({ "name": name })).collect();
    let profile = |(at, &end): (usize, &u64)| {
        let last = at + 1 == ends.len();
        let until = if last { u64::MAX } else { end };
        let cold = |stack: &ColdStack| stack.not_touched_after(until);
        let with = || stacks.iter().zip(&samples).filter(|(stack, _)| cold(stack) > 0);
        let weights: Vec<u64> = with().map(|(stack, _)| cold(stack)).collect();
        let name = match last {
            true => "resident near the end".to_owned(),
            false => format!("not touched after {} of {}", time(view, end), time(view, view.steps)),
        };
        json!({
            "type": "sampled", "name": name, "unit": "bytes", "startValue": 0,
            "endValue": sum(weights.iter().copied()),
            "samples": with().map(|(_, frames)| frames).collect::<Vec<_>>(), "weights": weights,
        })
    };
    let profiles: Vec<Value> = ends.iter().enumerate().map(profile).collect();
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": pagemill_model::TOOL,
        "name": "resident memory by call stack",
        // Half of the recording, as in the findings of a report.
        "activeProfileIndex": ends.len() / 2 - usize::from(ends.len() > 1),
        "shared": { "frames": frames },
        "profiles": profiles,
    })
}

#[cfg(test)]
mod tests {
    use pagemill_analysis::cold_stacks::{ends, stacks};
    use pagemill_analysis::heat::ObjectHeat;

    use super::*;

    fn view() -> HeatView {
        let object = |name: &str, detail: &[&str], last: &[(u64, u64)]| ObjectHeat {
            name: name.into(),
            kind: "allocation".into(),
            detail: detail.iter().map(|&frame| frame.to_owned()).collect(),
            last_touched: last.to_vec(),
            ..ObjectHeat::default()
        };
        let objects = vec![
            object("load", &["load (a.c:3)", "main"], &[(1, 4), (7, 1)]),
            object("odd;one", &[], &[(3, 2)]),
        ];
        HeatView { step: 1_000_000, steps: 8, objects, ..HeatView::default() }
    }

    #[test]
    fn folded_stacks_have_a_line_for_each_part_of_time_and_add_up() {
        let (view, ends) = (view(), ends(8));
        let stacks = stacks(&view, 4096);
        let (text, bytes) = (folded(&view, &stacks, &ends), bytes(&stacks));
        let lines: Vec<(&str, u64)> = text
            .lines()
            .map(|line| {
                line.rsplit_once(' ').map(|(stack, n)| (stack, n.parse().unwrap())).unwrap()
            })
            .collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].0.starts_with("main;load (a.c:3);[last touched from 1"), "{text}");
        assert!(lines[2].0.starts_with("odd:one;["), "{text}");
        assert_eq!(lines.iter().map(|line| line.1).sum::<u64>(), bytes);
        assert_eq!(bytes, 7 * 4096);
    }

    #[test]
    fn profiles_of_speedscope_grow_with_time_and_name_their_frames() {
        let (view, ends) = (view(), ends(8));
        let profile = speedscope(&view, &stacks(&view, 4096), &ends);
        let profiles = profile["profiles"].as_array().unwrap();
        let ends: Vec<u64> = profiles.iter().map(|one| one["endValue"].as_u64().unwrap()).collect();
        assert_eq!(ends, [0, 4, 4, 6, 6, 6, 6, 7].map(|pages| pages * 4096));
        for one in profiles {
            let of = |name: &str| one[name].as_array().unwrap().len();
            assert_eq!(of("samples"), of("weights"));
        }
        let first = &profiles[1]["samples"][0];
        let names: Vec<&str> = first
            .as_array()
            .unwrap()
            .iter()
            .map(|at| {
                profile["shared"]["frames"][at.as_u64().unwrap() as usize]["name"].as_str().unwrap()
            })
            .collect();
        assert_eq!(names, ["main", "load (a.c:3)"]);
        assert_eq!(profile["activeProfileIndex"], 3);
    }
}
