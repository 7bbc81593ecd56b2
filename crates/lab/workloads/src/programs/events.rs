//! `events`: a network of queues, simulated event by event.
//!
//! ```text
//!  messages arrive (Poisson) ─► a station's queue ─► service (exponential) ─► another station, or out
//! ```
//!
//! The kind of program that 471.omnetpp of SPEC is: a discrete event simulator, whose messages are blocks of many
//! sizes that live for a while, wait in queues, are wrapped and unwrapped, and die somewhere else than they were
//! born. Written from the theory (Jackson, *Networks of Waiting Lines*, 1957), not from its text.
//!
//! Check: every message that came in has left or is still there, and the mean time in the network is that of
//! Jackson's theorem: (1/q) / (mu - lambda/q), with messages leaving after each service with probability q.
//! `operations` counts events.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

use pagemill_model::random::Random;

use crate::program::{Outcome, Params, Report};

/// Stations at full size.
const STATIONS: usize = 60_000;
/// Simulated time.
const UNTIL: f64 = 120.0;
/// When those messages are born whose time in the network counts: after the queues have filled, and early enough that
/// all but one in 400 have left at the end.
const COUNTED: std::ops::Range<f64> = 0.25 * UNTIL..0.5 * UNTIL;
/// Arrivals a station and unit of time.
const ARRIVALS: f64 = 0.15;
/// Services a station and unit of time.
const SERVICE: f64 = 1.0;
/// The probability of leaving after a service.
const LEAVES: f64 = 0.25;
/// Messages carry from so many bytes …
const SHORTEST: u64 = 24;
/// … to so many.
const LONGEST: u64 = 1500;

struct Message {
    born: f64,
    /// What it carries: its own bytes, or another message that it wraps.
    payload: Payload,
}

enum Payload {
    Bytes(Vec<u8>),
    Wrapped(Box<Message>),
}

enum Kind {
    Arrival,
    Served,
}

struct Event {
    at: f64,
    station: usize,
    kind: Kind,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.station.cmp(&self.station))
    }
}

struct Network {
    queues: Vec<VecDeque<Box<Message>>>,
    events: BinaryHeap<Event>,
    random: Random,
    came: u64,
    left: u64,
    /// Messages of the counted time that left, and the sum of their times in the network.
    counted: u64,
    time: f64,
}

pub(super) fn run(params: &Params) -> Outcome {
    let stations = params.scaled(STATIONS).max(100);
    let mut network = Network::new(stations, params.seed);
    let started = Instant::now();
    let events = network.run();
    let seconds = started.elapsed().as_secs_f64();
    let (mean, theory) = network.certify()?;
    Ok(Report {
        operations: events,
        seconds,
        metrics: vec![
            ("stations", stations as f64),
            ("messages", network.came as f64),
            ("mean_time", mean),
        ],
        check: format!("no message was lost; mean time {mean:.2}, by theory {theory:.2}"),
    })
}

impl Network {
    fn new(stations: usize, seed: u64) -> Self {
        let mut network = Self {
            queues: (0..stations).map(|_| VecDeque::new()).collect(),
            events: BinaryHeap::new(),
            random: Random::new(seed),
            came: 0,
            left: 0,
            counted: 0,
            time: 0.0,
        };
        for station in 0..stations {
            let at = network.random.exponential(1.0 / ARRIVALS);
            network.events.push(Event { at, station, kind: Kind::Arrival });
        }
        network
    }

    /// Returns how many events there were.
    fn run(&mut self) -> u64 {
        let mut events = 0;
        while let Some(Event { at, station, kind }) = self.events.pop() {
            if at > UNTIL {
                break;
            }
            events += 1;
            match kind {
                Kind::Arrival => {
                    let next = at + self.random.exponential(1.0 / ARRIVALS);
                    self.events.push(Event { at: next, station, kind: Kind::Arrival });
                    let bytes = SHORTEST + self.random.below(LONGEST - SHORTEST);
                    let payload = Payload::Bytes(vec![self.came as u8; bytes as usize]);
                    self.came += 1;
                    self.enter(at, station, Box::new(Message { born: at, payload }));
                }
                Kind::Served => self.served(at, station),
            }
        }
        events
    }

    /// A message joins a queue; one that is alone in it is served at once.
    fn enter(&mut self, now: f64, station: usize, message: Box<Message>) {
        self.queues[station].push_back(message);
        if self.queues[station].len() == 1 {
            self.serve(now, station);
        }
    }

    fn serve(&mut self, now: f64, station: usize) {
        let at = now + self.random.exponential(1.0 / SERVICE);
        self.events.push(Event { at, station, kind: Kind::Served });
    }

    fn served(&mut self, now: f64, station: usize) {
        let message = self.queues[station].pop_front().expect("only a message is served");
        if !self.queues[station].is_empty() {
            self.serve(now, station);
        }
        if self.random.unit() < LEAVES {
            self.left += 1;
            if COUNTED.contains(&message.born) {
                self.counted += 1;
                self.time += now - message.born;
            }
            return;
        }
        let to = self.random.index(self.queues.len());
        self.enter(now, to, rewrapped(message));
    }

    /// The mean time in the network, and what it is in theory.
    fn certify(&self) -> Result<(f64, f64), String> {
        let inside: usize = self.queues.iter().map(VecDeque::len).sum();
        if self.came != self.left + inside as u64 {
            return Err(format!("{} came, {} left, {inside} are inside", self.came, self.left));
        }
        let mean = self.time / self.counted.max(1) as f64;
        let theory = 1.0 / LEAVES / (SERVICE - ARRIVALS / LEAVES);
        let allowed = theory * (0.05 + 10.0 / (self.counted.max(1) as f64).sqrt());
        if (mean - theory).abs() > allowed {
            return Err(format!("the mean time is {mean:.3}, by theory {theory:.3}"));
        }
        Ok((mean, theory))
    }
}

/// As protocols do: a bare message goes on inside another, a wrapped one comes out and is copied.
fn rewrapped(message: Box<Message>) -> Box<Message> {
    let born = message.born;
    let payload = match message.payload {
        Payload::Bytes(_) => Payload::Wrapped(message),
        Payload::Wrapped(inner) => match inner.payload {
            Payload::Bytes(ref bytes) => Payload::Bytes(bytes.clone()),
            Payload::Wrapped(inner) => inner.payload,
        },
    };
    Box::new(Message { born, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_time_is_that_of_jacksons_theorem_and_a_lost_message_is_noticed() {
        let mut network = Network::new(2000, 5);
        network.run();
        let (mean, theory) = network.certify().unwrap();
        assert_eq!(theory, 10.0);
        assert!((mean - theory).abs() < 1.0, "{mean}");
        network.queues.iter_mut().find(|queue| !queue.is_empty()).unwrap().pop_back();
        assert!(network.certify().unwrap_err().contains("came"));
    }

    #[test]
    fn a_network_that_serves_faster_than_it_should_is_noticed() {
        let mut network = Network::new(2000, 6);
        network.run();
        network.time *= 0.7;
        assert!(network.certify().unwrap_err().contains("theory"));
    }
}
