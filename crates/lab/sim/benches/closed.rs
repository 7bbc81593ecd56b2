//! Memory requests a second of the request level: GUPS beside the antagonist, both tiers busy.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start its subject should panic")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pagemill_sim::closed::{self, Walks};
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::workload::{antagonist, gups};

fn requests(criterion: &mut Criterion) {
    let machine = Machine::parse(ICELAKE).unwrap();
    let mut group = criterion.benchmark_group("closed");
    for (name, steps, share) in [("alone", 0.0, 0.5), ("under 3x", 3.0, 0.9)] {
        let groups = [gups(64.0).group(&machine, share, Walks::NONE), antagonist(&machine, steps)];
        let run = || closed::run(&machine, &groups, 2_000.0, 50_000.0, 1);
        group.throughput(Throughput::Elements(run().requests));
        group.bench_function(name, |bencher| bencher.iter(run));
    }
    group.finish();
}

criterion_group!(benches, requests);
criterion_main!(benches);
