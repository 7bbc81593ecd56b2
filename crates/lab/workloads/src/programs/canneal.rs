//! Places the elements of a circuit on a grid so that its wires are short, by simulated annealing: the shape of
//! PARSEC's `canneal`.
//!
//! Each move exchanges the places of two random elements, and reads the places of all elements that these are wired to:
//! random reads over the whole netlist, which is what a TLB is worst at. A move that lengthens the wires by d is made
//! with the chance e^(-d/T); T falls by a third after every 15,000 moves, from 2,000, and 6,000 times. A share of the
//! full size has so few elements, and so few moves at each T.
//!
//! The netlist is random, as the generator of the published experiments makes it: five inputs an element, a grid as
//! wide as the root of their number. At full size 2.5 million elements and 6,000 temperatures, PARSEC's native input.
//!
//! Deviation from the original: a wire between the two elements of a move keeps its length here (there it counts as if
//! one had not moved), so that the length counted move by move is that of the result, which the check holds.

use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use pagemill_model::random::Random;

const ELEMENTS: usize = 2_500_000;
const INPUTS: usize = 5;
const TEMPERATURES: usize = 6_000;
const AT_ONE_TEMPERATURE: usize = 15_000;
const HOTTEST: f64 = 2_000.0;
const COOLING: f64 = 1.5;

/// An element; its wires are on the heap, each list by itself.
struct Element {
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    place: (i32, i32),
}

struct Netlist {
    elements: Vec<Element>,
}

fn distance(a: (i32, i32), b: (i32, i32)) -> i64 {
    i64::from(a.0.abs_diff(b.0)) + i64::from(a.1.abs_diff(b.1))
}

impl Netlist {
    fn random(count: usize, random: &mut Random) -> Self {
        let width = (count as f64).sqrt().ceil() as usize;
        let mut places: Vec<(i32, i32)> =
            (0..count).map(|at| ((at % width) as i32, (at / width) as i32)).collect();
        random.shuffle(&mut places);
        let empty = |place| Element { inputs: Vec::new(), outputs: Vec::new(), place };
        let mut elements: Vec<Element> = places.into_iter().map(empty).collect();
        for at in 0..count {
            for _ in 0..INPUTS {
                let from = random.index(count);
                elements[at].inputs.push(from as u32);
                elements[from].outputs.push(at as u32);
            }
        }
        Self { elements }
    }

    /// Length of the wires of element `of` if it were at `place` and element `other` at `there`.
    fn wires(&self, of: usize, place: (i32, i32), other: usize, there: (i32, i32)) -> i64 {
        let element = &self.elements[of];
        let ends = element.inputs.iter().chain(&element.outputs);
        let length = |&end: &u32| {
            let end = end as usize;
            let at = match end {
                _ if end == of => place,
                _ if end == other => there,
                _ => self.elements[end].place,
            };
            distance(place, at)
        };
        ends.map(length).sum()
    }

    /// Length of all wires, each counted at both ends.
    fn length(&self) -> i64 {
        let of = |at: usize| self.wires(at, self.elements[at].place, at, self.elements[at].place);
        (0..self.elements.len()).map(of).sum()
    }

    /// By how much exchanging two elements lengthens the wires.
    fn lengthening(&self, a: usize, b: usize) -> i64 {
        let (here, there) = (self.elements[a].place, self.elements[b].place);
        let now = self.wires(a, here, b, there) + self.wires(b, there, a, here);
        let then = self.wires(a, there, b, here) + self.wires(b, here, a, there);
        // A wire to a third element counts once here, and at both of its ends in all; one between the two keeps its
        // length.
        2 * (then - now)
    }
}

pub(super) fn run(params: &Params) -> Outcome {
    let count = params.scaled(ELEMENTS).max(2);
    let at_one_temperature = params.scaled(AT_ONE_TEMPERATURE);
    let moves = TEMPERATURES * at_one_temperature;
    let mut random = Random::new(params.seed);
    let mut netlist = Netlist::random(count, &mut random);
    let first = netlist.length();
    let (mut length, mut temperature, mut made) = (first, HOTTEST, 0_u64);
    let begun = Instant::now();
    for at in 1..=moves {
        let (a, b) = (random.index(count), random.index(count));
        let lengthening = if a == b { 0 } else { netlist.lengthening(a, b) };
        let taken = lengthening < 0 || {
            // The original counts each wire of the two elements once.
            let longer = (lengthening / 2) as f64;
            (-longer / temperature).exp() > random.unit()
        };
        if taken && a != b {
            let place = netlist.elements[a].place;
            netlist.elements[a].place = netlist.elements[b].place;
            netlist.elements[b].place = place;
            length += lengthening;
            made += 1;
        }
        if at % at_one_temperature == 0 {
            temperature /= COOLING;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let recounted = netlist.length();
    if length != recounted {
        return Err(format!("the wires are {recounted} long, and {length} were counted").into());
    }
    let mut places: Vec<_> = netlist.elements.iter().map(|element| element.place).collect();
    places.sort_unstable();
    places.dedup();
    if places.len() != count {
        return Err(format!("{count} elements are at {} places", places.len()).into());
    }
    Ok(Report {
        operations: moves as u64,
        seconds,
        metrics: vec![
            ("elements", count as f64),
            ("moves_made", made as f64),
            ("wires_at_first", first as f64 / 2.0),
            ("wires", length as f64 / 2.0),
        ],
        check: format!(
            "{count} elements at as many places; the length of the wires is what the moves made of it"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_become_shorter_and_their_length_is_counted_right() {
        let params = Params { scale: 0.0004, seed: 3, ..Params::default() };
        let report = run(&params).unwrap();
        let metric =
            |name: &str| report.metrics.iter().find(|(known, _)| *known == name).unwrap().1;
        assert_eq!(metric("elements"), 1000.0);
        assert!(metric("wires") < 0.9 * metric("wires_at_first"), "{report:?}");
        assert_eq!(run(&params).unwrap().metrics, report.metrics);
    }

    #[test]
    fn a_netlist_of_few_elements_has_wires_to_itself_and_they_count_nothing() {
        for seed in 0..20 {
            let report = run(&Params { scale: 1e-9, seed, ..Params::default() }).unwrap();
            assert_eq!(report.operations, 6_000, "{report:?}");
        }
        let mut random = Random::new(5);
        for _ in 0..50 {
            let mut netlist = Netlist::random(4, &mut random);
            let (before, lengthening) = (netlist.length(), netlist.lengthening(0, 1));
            let place = netlist.elements[0].place;
            netlist.elements[0].place = netlist.elements[1].place;
            netlist.elements[1].place = place;
            assert_eq!(netlist.length(), before + lengthening);
        }
    }
}
