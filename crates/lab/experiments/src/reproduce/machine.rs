//! The machine that a run was on, in words.

/// Facts about the machine that figures depend on.
pub fn facts() -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let mut facts = vec![format!(
        "{cpus} CPUs, {}",
        field("model name").unwrap_or_else(|| "model unknown".into())
    )];
    facts.extend(read("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}")));
    let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
    facts.extend(thp.map(|mode| format!("transparent huge pages: {mode}")));
    let ksm = read("/sys/kernel/mm/ksm/run");
    facts.extend(ksm.map(|run| format!("/sys/kernel/mm/ksm/run: {run}")));
    let maps = read("/proc/sys/vm/max_map_count");
    facts.extend(maps.map(|count| format!("vm.max_map_count: {count}")));
    facts
}

/// What else the processors had to do at the end of a run, in words.
pub fn load() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    Some(format!("load averages at its end: {}", averages.join(" ")))
}
