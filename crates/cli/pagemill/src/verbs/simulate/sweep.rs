//! `pagemill simulate --sweep fast=1G..64G`: throughput by the size of the fast tier, and how much of it is needed.

use anyhow::{Context as _, Result, bail};
use pagemill_launch::exit::Exit;
use pagemill_launch::progress::Progress;
use pagemill_sim::machine::Machine;
use pagemill_sim::sweep::Sweep;
use pagemill_sim::workload::{GIB, Workload};
use serde::Serialize;

use super::arguments::Arguments;
use super::setup::size;
use super::sizes::Sizes;

/// Parts of the speed that are asked about.
const PARTS: [f64; 4] = [0.8, 0.9, 0.95, 0.99];

#[derive(Serialize)]
struct Curve {
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
#[derive(Serialize)]
struct Need {
    part: f64,
    fast_bytes: f64,
}

#[derive(Serialize)]
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
#[derive(Serialize)]
struct Placed {
    policy: String,
    units_per_s: f64,
    part: f64,
    share: f64,
}

impl Arguments {
    /// Runs the sweep.
    pub(super) fn sweep(&self, sizes: Sizes, machine: &Machine) -> Result<Exit> {
        if self.tiers.is_some() {
            bail!(
                "--sweep sets the size of the fast tier, and the slow one holds the rest; without --tiers"
            );
        }
        let mut load = self.load(machine)?;
        self.in_range(&load)?;
        load.default_gib = None;
        let sweep = self.prepared(machine, &load, "none")?;
        let policies = self.policy.iter().map(|policy| {
            // HeMem's pages are of 2 MiB: it is compared with itself.
            Ok((policy.as_str(), self.prepared(machine, &load, policy)?.all()))
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
                policies: self.placed(machine, &load, fast, &policies)?,
            });
        }
        let needs = |part| Need { part, fast_bytes: sweep.needs(part) };
        let curve = Curve {
            workload: load.name,
            antagonist: self.antagonist,
            seed: self.seed,
            modelled: true,
            unit: load.unit,
            bytes: sweep.bytes(),
            all_units_per_s: sweep.all(),
            needs: PARTS.into_iter().map(needs).collect(),
            points,
        };
        if self.printed.json {
            crate::answer::print("simulate-sweep", &curve)?;
        } else {
            curve.print();
        }
        Ok(Exit::Ok)
    }

    fn prepared(&self, machine: &Machine, load: &Workload, policy: &str) -> Result<Sweep> {
        let setup = self.setup(machine, load, policy)?;
        let mut progress = Progress::new("sweep");
        Ok(Sweep::prepare(&setup, &mut |at, of| {
            progress.say(&format!("{policy}: memory at {at} of {of} points"));
        }))
    }

    /// What each policy makes of so much fast memory, by its units a second with all memory fast.
    fn placed(
        &self,
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
            let setup = self
                .setup(&machine, load, policy)
                .with_context(|| format!("with {} of fast memory", size(fast)))?;
            let report = self.simulate(&setup);
            placed.push(Placed {
                policy: policy.to_owned(),
                units_per_s: report.last.units_per_s,
                part: report.last.units_per_s / all,
                share: report.last.share,
            });
        }
        Ok(placed)
    }
}

impl Curve {
    fn print(&self) {
        let need = |part: f64| {
            let found = self.needs.iter().find(|need| need.part >= part);
            found.map_or_else(String::new, |need| size(need.fast_bytes))
        };
        println!(
            "9 of 10 of the speed needs {} of fast memory, 99 of 100 {}, of {} in all.",
            need(0.9),
            need(0.99),
            size(self.bytes)
        );
        println!(
            "{}, antagonist {}x, modelled (one run, seed {}); all memory fast: {:.2}M {}",
            self.workload,
            self.antagonist,
            self.seed,
            self.all_units_per_s / 1e6,
            self.unit
        );
        print!("\n{:>11} {:>8} {:>12} {:>6}", "fast memory", "of all", "best static", "share");
        let policies = self.points.first().map_or(&[][..], |point| &point.policies);
        for placed in policies {
            print!(" {:>14}", placed.policy);
        }
        println!("");
        for point in &self.points {
            print!(
                "{:>11} {:>6.1} % {:>10.1} % {:>6.3}",
                size(point.fast_bytes),
                point.fast_bytes / self.bytes * 100.0,
                point.part * 100.0,
                point.share
            );
            for placed in &point.policies {
                print!(" {:>12.1} %", placed.part * 100.0);
            }
            println!("");
        }
        println!(
            "\nbest static: throughput with the hottest pages on the fast tier, by brute force, of that with all \
             memory \
             fast\n(a policy's: of its own); share: reads on the fast tier"
        );
    }
}
