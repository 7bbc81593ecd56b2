//! What the machine says about facts of the evaluation's set-up that no scored figure contains.
use pagemill_sim::closed::{self, Walks};
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::workload::{antagonist, gups};
fn main() {
    let mut machine = Machine::parse(ICELAKE).expect("built in");
    for pair in std::env::args().skip(1) {
        if let Some((key, value)) = pair.split_once('=') {
            machine = machine.with(key, value.parse().expect("a number"));
        }
    }
    let t = std::time::Instant::now();
    let mut requests = 0;
    println!("walk misses {:?}", gups(64.0).walk_misses(&machine, 4096.0));
    for steps in [1.0, 2.0, 3.0] {
        let o = closed::run(&machine, &[antagonist(&machine, steps)], 4000.0, 120000.0, 1);
        requests += o.requests;
        println!(
            "alone {steps}: {:.1} % of peak, L_D {:.0}",
            o.lines_per_ns[0] * 64.0 / 2.048,
            o.loads.default.latency_ns
        );
    }
    for (name, walks) in [
        ("2M", Walks { part: 1.0, miss: 0.0, hit_ns: 5.0, default_share: 1.0 }),
        ("4K", Walks { part: 1.0, miss: 0.156, hit_ns: 25.0, default_share: 0.06 }),
    ] {
        for steps in [0.0, 1.0, 2.0, 3.0] {
            for share in [0.923, 0.06] {
                let o = closed::run(
                    &machine,
                    &[gups(64.0).group(&machine, share, walks), antagonist(&machine, steps)],
                    4000.0,
                    120000.0,
                    1,
                );
                requests += o.requests;
                println!(
                    "{name} gups {steps}x share {share}: {:.1} M/s, L_D {:.0} L_A {:.0}, ant {:.0} M/s",
                    o.ops_per_ns[0] * 1e3,
                    o.loads.default.latency_ns,
                    o.loads.alternate.latency_ns,
                    o.ops_per_ns[1] * 1e3
                );
            }
        }
    }
    println!("{:.2} M requests/s", requests as f64 / t.elapsed().as_secs_f64() / 1e6);
}
