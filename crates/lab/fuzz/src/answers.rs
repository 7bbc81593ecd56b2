//! What other programs print, and what a browser asks for: the first byte says who reads it.

use pagemill_advise::printed::Printed;
use pagemill_experiments::fleet::{parallel, slurm};
use pagemill_experiments::huge_pages::programs;
use pagemill_experiments::reproduce::browser;
use pagemill_kernel::trace::tracefs::CompactionEnd;
use regex::bytes::Regex;

/// Who reads a text.
const READERS: &[fn(&str)] = &[
    |text| assert!(slurm::most_in(text) > 0),
    |text| {
        let nodes = slurm::out_of_order(text);
        assert!(nodes.len() <= text.lines().count());
    },
    |text| {
        for number in ["1", "11", ""] {
            let _ = parallel::last_in(text, number);
        }
    },
    |text| drop(programs::benchmark(text, 1e6)),
    |text| _ = browser::said(text),
    |text| text.lines().for_each(|line| drop(CompactionEnd::parse(line))),
];

/// Numbers that `--metric` looks for.
const METRICS: [&str; 3] = ["per second: ([0-9.,]+)", "[0-9,.]+", "(x)?"];

/// The output of a command, or of a program that is asked about the machine.
pub fn answers(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let which = usize::from(*which) % (READERS.len() + 1);
    match READERS.get(which) {
        Some(read) => read(&String::from_utf8_lossy(bytes)),
        None => command(bytes),
    }
}

/// What a command prints, read as it does.
fn command(bytes: &[u8]) {
    let read = Printed::read(std::io::Cursor::new(bytes.to_vec()));
    let Ok(printed) = read.and_then(|reading| reading.end()) else { return };
    assert!(printed.last_line().chars().count() <= 200);
    for metric in METRICS {
        let Ok(metric) = Regex::new(metric) else { continue };
        let _ = printed.last(&metric);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "Configuration data\nMaxArraySize            = 1001\nMaxJobCount = 10000\n",
        "n1 idle\nn2 down*\nn2 down*\nn3 allocated\nn4 drained\nn5 mixed*\n",
        "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n\
         1\tn1\t1.0\t 2.0\t0\t0\t0\t0\tsh /r/cell.sh 1\n2\tn2\t1.0\t 2.0\t0\t0\t255\t9\tsh /r/cell.sh 11\n",
        "\"test\",\"rps\",\"avg_latency_ms\",\"p99_latency_ms\"\n\"SET\",\"102880.66\",\"0.3\",\"0.5\"\n",
        "/done?60,6621.5,7",
        "cat-7 [000] d..1. 1.0: mm_compaction_end: zone_start=0x1 migrate_pfn=0x2 free_pfn=0x3 zone_end=0x4, \
         mode=sync status=complete\n",
        "requests per second: 1,200.5 now\nrequests per second: 99\nand no more\n\n",
    ];
    (0_u8..).zip(texts).map(|(which, text)| [&[which], text.as_bytes()].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_answers() {
        let seeds = seeds();
        let text = |which: usize| str::from_utf8(&seeds[which][1..]).unwrap();
        assert_eq!(seeds.len(), READERS.len() + 1);
        assert_eq!(slurm::most_in(text(0)), 1000);
        assert_eq!(slurm::out_of_order(text(1)).len(), 3);
        assert!(parallel::last_in(text(2), "11").is_some());
        assert!(programs::benchmark(text(3), 1e6).is_some());
        assert!(browser::said(text(4)).is_some() && CompactionEnd::parse(text(5)).is_some());
    }
}
