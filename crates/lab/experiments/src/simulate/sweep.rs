//! Throughput by the size of the fast tier, and how much of it a program needs.

use anyhow::{Context as _, Result};
use pagemill_launch::progress::Progress;
use pagemill_model::Bytes;
use pagemill_sim::machine::Machine;
use pagemill_sim::sweep::Sweep;
use pagemill_sim::workload::{GIB, Workload};
use serde::Serialize;

use super::placement::{Conditions, size};

/// Sizes of the fast tier to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Up to all of the workload.
    All,
    /// `fast=FROM..TO`.
    Between {
        /// The least, bytes.
        from: u64,
        /// The greatest.
        to: u64,
    },
}

/// Doublings up to all of a workload, where no sizes are named.
const DOUBLINGS: i32 = 8;

impl std::str::FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let valid = "valid: fast=FROM..TO such as fast=1G..64G, from 1M to 64T";
        if text == "all" {
            return Ok(Self::All);
        }
        let range = text.strip_prefix("fast=").or_else(|| text.strip_prefix("default="));
        let (from, to) = range.and_then(|range| range.split_once("..")).ok_or(valid)?;
        let size = |text: &str| match text.parse::<Bytes>() {
            Ok(Bytes(size)) if (1 << 20..=1 << 46).contains(&size) => Ok(size),
            Ok(_) | Err(_) => Err(format!("{text} is no size here; {valid}")),
        };
        let (from, to) = (size(from)?, size(to.trim_start_matches('='))?);
        if from > to {
            return Err(format!("the greater size comes last; {valid}"));
        }
        Ok(Self::Between { from, to })
    }
}

impl Sizes {
    /// Doubling up to the last, which is included, for a workload of so many bytes: more than its size changes nothing.
    fn of(self, bytes: f64) -> Vec<f64> {
        let (from, to) = match self {
            Self::All => (bytes / 2_f64.powi(DOUBLINGS), bytes),
            Self::Between { from, to } => (from as f64, to as f64),
        };
        let doubled = std::iter::successors(Some(from), |size| Some(size * 2.0));
        let mut sizes: Vec<f64> = doubled.take_while(|size| *size < to.min(bytes)).collect();
        sizes.push(to.min(bytes));
        sizes
    }
}

/// Parts of the speed that are asked about.
const PARTS: [f64; 4] = [0.8, 0.9, 0.95, 0.99];

/// How fast a program is by the size of the fast tier; the members of its JSON.
#[derive(Debug, Serialize)]
pub struct Curve {
    workload: &'static str,
    antagonist: f64,
    seed: u64,
    modelled: bool,
    unit: &'static str,
    bytes: f64,
    /// Units a second with all memory on the fast tier.
    all_units_per_s: f64,
    needs: Vec<Need>,
    points: Vec<Point>,
}

/// Fast memory that so large a part of the speed needs.
#[derive(Debug, Serialize)]
struct Need {
    part: f64,
    fast_bytes: f64,
}

#[derive(Debug, Serialize)]
struct Point {
    fast_bytes: f64,
    /// Share of reads on the fast tier.
    share: f64,
    units_per_s: f64,
    /// Of the units a second with all memory fast.
    part: f64,
    policies: Vec<Placed>,
}

/// What a policy makes of it.
#[derive(Debug, Serialize)]
struct Placed {
    policy: String,
    units_per_s: f64,
    part: f64,
    share: f64,
}

/// Sweeps a program over these sizes of the fast tier, placed best and by each policy.
///
/// # Errors
/// As of [`Conditions::setup`].
pub fn sweep(
    conditions: &Conditions,
    machine: &Machine,
    load: &Workload,
    policies: &[String],
    sizes: Sizes,
) -> Result<Curve> {
    let sweep = prepared(conditions, machine, load, "none")?;
    let policies = policies.iter().map(|policy| {
        // HeMem's pages are of 2 MiB: it is compared with itself.
        Ok((policy.as_str(), prepared(conditions, machine, load, policy)?.all()))
    });
    let policies = policies.collect::<Result<Vec<_>>>()?;
    let mut points = Vec::new();
    for fast in sizes.of(sweep.bytes()) {
        let best = sweep.at(fast);
        points.push(Point {
            fast_bytes: fast,
            share: best.share,
            units_per_s: best.units_per_s,
            part: best.units_per_s / sweep.all(),
            policies: placed(conditions, machine, load, fast, &policies)?,
        });
    }
    let needs = |part| Need { part, fast_bytes: sweep.needs(part) };
    Ok(Curve {
        workload: load.name,
        antagonist: conditions.antagonist,
        seed: conditions.seed,
        modelled: true,
        unit: load.unit,
        bytes: sweep.bytes(),
        all_units_per_s: sweep.all(),
        needs: PARTS.into_iter().map(needs).collect(),
        points,
    })
}

fn prepared(
    conditions: &Conditions,
    machine: &Machine,
    load: &Workload,
    policy: &str,
) -> Result<Sweep> {
    let setup = conditions.setup(machine, load, policy)?;
    let mut progress = Progress::new("sweep");
    Ok(Sweep::prepare(&setup, &mut |at, of| {
        progress.say(&format!("{policy}: memory at {at} of {of} points"));
    }))
}

/// What each policy makes of so much fast memory, by its units a second with all memory fast.
fn placed(
    conditions: &Conditions,
    machine: &Machine,
    load: &Workload,
    fast: f64,
    policies: &[(&str, f64)],
) -> Result<Vec<Placed>> {
    let machine = machine
        .with("tier.default.capacity_gib", fast / GIB)
        .with("tier.alternate.capacity_gib", load.bytes() / GIB);
    let mut placed = Vec::new();
    for &(policy, all) in policies {
        let setup = conditions
            .setup(&machine, load, policy)
            .with_context(|| format!("with {} of fast memory", size(fast)))?;
        let report = conditions.simulate(&setup);
        placed.push(Placed {
            policy: policy.to_owned(),
            units_per_s: report.last.units_per_s,
            part: report.last.units_per_s / all,
            share: report.last.share,
        });
    }
    Ok(placed)
}

impl Curve {
    /// As a table.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let need = |part: f64| {
            let found = self.needs.iter().find(|need| need.part >= part);
            found.map_or_else(String::new, |need| size(need.fast_bytes))
        };
        text.push_str(&format!(
            "9 of 10 of the speed needs {} of fast memory, 99 of 100 {}, of {} in all.\n",
            need(0.9),
            need(0.99),
            size(self.bytes)
        ));
        text.push_str(&format!(
            "{}, antagonist {}x, modelled (one run, seed {}); all memory fast: {:.2}M {}\n",
            self.workload,
            self.antagonist,
            self.seed,
            self.all_units_per_s / 1e6,
            self.unit
        ));
        text.push_str(&format!(
            "\n{:>11} {:>8} {:>12} {:>6}",
            "fast memory", "of all", "best static", "share"
        ));
        let policies = self.points.first().map_or(&[][..], |point| &point.policies);
        for placed in policies {
            text.push_str(&format!(" {:>14}", placed.policy));
        }
        text.push('\n');
        for point in &self.points {
            text.push_str(&format!(
                "{:>11} {:>6.1} % {:>10.1} % {:>6.3}",
                size(point.fast_bytes),
                point.fast_bytes / self.bytes * 100.0,
                point.part * 100.0,
                point.share
            ));
            for placed in &point.policies {
                text.push_str(&format!(" {:>12.1} %", placed.part * 100.0));
            }
            text.push('\n');
        }
        text.push_str("\nbest static: throughput with the hottest pages on the fast tier, by brute force, of that \
             with all memory \
             fast\n(a policy's: of its own); share: reads on the fast tier\n");
        if self.workload == "recording" {
            text.push_str(
                "what it does between two reads a recording does not tell: without --as, reads do not wait for each \
                 other, and one slow read holds up those behind it (--as chase: each waits for the one before)\n",
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_last_and_others_are_refused() {
        let mib = |count: u32| f64::from(count) * f64::from(1 << 20);
        let sizes = |text: &str, bytes| text.parse::<Sizes>().unwrap().of(bytes);
        assert_eq!(sizes("fast=1M..5M", mib(9)), [1, 2, 4, 5].map(mib));
        assert_eq!(sizes("fast=1M..5M", mib(3)), [1, 2, 3].map(mib), "not more than there is");
        assert_eq!(sizes("fast=8M..=8M", mib(9)), [mib(8)]);
        assert_eq!(sizes("all", mib(256)), [1, 2, 4, 8, 16, 32, 64, 128, 256].map(mib));
        for wrong in
            ["", "1G..2G", "fast=1G", "fast=2G..1G", "fast=0..1G", "fast=1G..1E", "slow=1G..2G"]
        {
            assert!(wrong.parse::<Sizes>().unwrap_err().contains("valid: "), "{wrong}");
        }
    }
}
