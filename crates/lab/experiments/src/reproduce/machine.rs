//! The machine that a run was on, in words.

use pagemill_kernel::Linux;

/// Facts about the machine that figures depend on.
pub fn facts() -> Vec<String> {
    let linux = Linux::live();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = linux.processor().ok().flatten();
    let mut facts =
        vec![format!("{cpus} CPUs, {}", processor.as_deref().unwrap_or("model unknown"))];
    facts.extend(linux.release().map(|release| format!("Linux {release}")));
    facts.extend(linux.thp_enabled().map(|mode| format!("transparent huge pages: {mode}")));
    let ksm = linux.ksm_settings();
    facts.extend(ksm.map(|it| format!("/sys/kernel/mm/ksm/run: {}", it.run.number())));
    facts.extend(linux.max_map_count().map(|count| format!("vm.max_map_count: {count}")));
    facts
}

/// What else the processors had to do at the end of a run, in words.
pub fn load() -> Option<String> {
    let averages = Linux::live().load_averages().ok()?;
    Some(format!("load averages at its end: {averages}"))
}
