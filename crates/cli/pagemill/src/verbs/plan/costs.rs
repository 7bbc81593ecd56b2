//! `plan --costs`: what base and huge pages cost on this machine.

use anyhow::Result;
use pagemill_model::Nanos;

use pagemill_control::costs;
use pagemill_launch::exit::Exit;

/// Measures and prints.
pub fn run(json: bool) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let known = costs::calibrate(&linux, true)?;
    if json {
        crate::answer::print("plan-costs", &known)?;
        return Ok(Exit::Ok);
    }
    let times = [
        ("base page, warm", known.measured.base_ns),
        ("base page, cold", known.measured.base_cold_ns),
        ("64 KiB, warm", known.measured.medium_ns),
        ("huge page, warm", known.measured.huge_ns),
        ("huge page, cold", known.measured.huge_cold_ns),
        ("collapse 512 base pages", known.measured.collapse_ns),
        ("move a huge page into place", known.measured.deliver_ns),
        ("fetch 2 MiB provided elsewhere", known.measured.fetch_ns),
    ];
    for (what, value) in times {
        match value {
            Some(ns) => println!("{what:<28} {}  measured", Nanos(ns)),
            None => println!("{what:<28}         -  absent"),
        }
    }
    if let (Some(base), Some(huge)) = (known.measured.read_base_ps, known.measured.read_huge_ps) {
        let (base, huge) = (base as f64 / 1000.0, huge as f64 / 1000.0);
        println!(
            "{:<28} {base:>6.1} ns  in base pages, {huge:.1} ns in huge pages: measured",
            "random read in 256 MiB"
        );
    }
    if let Some(cold) = known.measured.cold_permille {
        println!(
            "{:<28} {:>6.1} %   of fresh memory just now: measured",
            "cold",
            cold as f64 / 10.0
        );
    }
    if let (Some(base), Some(huge)) = (known.measured.base_ns, known.measured.huge_ns) {
        println!(
            "{:<28} {:>6} pages of 512 touched, warm and a block free",
            "a huge page pays from",
            huge.div_ceil(base.max(1))
        );
    }
    let view = costs::machine_view(&linux, &known);
    if let Some(free) = view.free_huge.value() {
        println!("{:<28} {free:>6} blocks of order 9 and above", "free just now");
    }
    if let (Some(load), Some(used)) = (view.load.value(), view.used.value()) {
        let (load, used) = (load as f64 / 100.0, used as f64 / 10.0);
        println!("{:<28} {load:>6.2} on {} CPUs, {used:.1} % of memory in use", "load", view.cpus);
    }
    for (what, why) in &known.measured.not_measured {
        println!("not measured: {what}: {why}");
    }
    println!("took {}", Nanos(known.measured.took_ns).plain());
    Ok(Exit::Ok)
}
