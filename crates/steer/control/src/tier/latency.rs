//! Where the tiers' latencies come from.
//!
//! | source | latency | reads | where |
//! |---|---|---|---|
//! | `uncore` | occupancy over inserts of Intel's CHAs | all | Ice Lake, Sapphire and Emerald Rapids, on the metal |
//! | `amd-l3` | AMD's sampled L3 misses | none (samples) | Zen 4 and 5, on the metal |
//! | `probe` | a pointer chase in each node | none | anywhere |
//! | `replay:FILE` | a script | optional | tests, what-if |
//! | `none` | unknown | none | for policies that do not balance |
//!
//! The first two are root's. `auto` takes the first of the first three that opens.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use pagemill_analysis::statistics;
use pagemill_kernel::Linux;
use pagemill_kernel::nodes::tier_latency::TierCounters;
use pagemill_kernel::process::scheduling::AffinityGuard;

use super::Tiers;
use super::probe::Chase;
use pagemill_model::whole;

/// The names of the sources.
pub const SOURCES: &str = "auto, uncore, amd-l3, probe, replay:FILE or none";

/// Which source was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatencySource {
    /// The best that this machine has.
    Auto,
    /// The processor's counters.
    Counters(&'static str),
    /// The pointer chase.
    Probe,
    /// A script.
    Replay(PathBuf),
    /// Nothing.
    None,
}

impl std::str::FromStr for LatencySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "uncore" => Self::Counters("uncore"),
            "amd-l3" => Self::Counters("amd-l3"),
            "probe" => Self::Probe,
            "none" => Self::None,
            _ => match text.strip_prefix("replay:") {
                Some(file) if !file.is_empty() => Self::Replay(file.into()),
                _ => return Err(format!("no latency source {text:?}; valid: {SOURCES}")),
            },
        })
    }
}

/// What both tiers did since the last look; the default tier first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierTraffic {
    /// Mean time of a read, nanoseconds.
    pub latency: Option<[f64; 2]>,
    /// 95 % intervals of these.
    pub interval: Option<[(f64, f64); 2]>,
    /// Reads a second.
    pub reads: Option<[f64; 2]>,
}

/// An open source.
#[derive(Debug)]
pub enum Latency {
    /// Counters, when they were last read, and what was seen lately.
    Counters {
        /// The counters.
        counters: TierCounters,
        /// When they were last read.
        last: Instant,
        /// Latencies of both tiers lately, ns.
        seen: [Vec<f64>; 2],
    },
    /// A chase in each tier, and the processors of the default one, from which both are read: latencies are those that
    /// its programs see.
    Probe([Chase; 2], Vec<u32>),
    /// A script; its file, when that was written, and when it was read.
    Replay {
        /// The file.
        path: PathBuf,
        /// What it says.
        script: Script,
        /// When it was written.
        written: Option<SystemTime>,
        /// When it was read, since some moment before boot.
        read: Duration,
    },
    /// Unknown.
    None,
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

/// Readings of counters that an interval is made of.
const LATELY: usize = 16;

impl Latency {
    /// Opens what is wanted. The default tier must be the near memory of the counters' sockets.
    ///
    /// # Errors
    /// What is wanted does not work here, or a script cannot be read.
    pub fn open(linux: &Linux, tiers: Tiers, wanted: &LatencySource) -> Result<Self> {
        let counters = || -> pagemill_kernel::Result<Self> {
            let counters = TierCounters::open(linux)?;
            Ok(Self::Counters { counters, last: Instant::now(), seen: [Vec::new(), Vec::new()] })
        };
        let probe = || -> pagemill_kernel::Result<Self> {
            let nodes = linux.memory_nodes()?;
            let cpus = nodes.into_iter().find(|node| node.id == tiers.0[0]).map(|node| node.cpus);
            let chases = [Chase::on(tiers.0[0])?, Chase::on(tiers.0[1])?];
            Ok(Self::Probe(chases, cpus.unwrap_or_default()))
        };
        Ok(match wanted {
            LatencySource::None => Self::None,
            LatencySource::Replay(path) => Self::Replay {
                path: path.clone(),
                written: written(path),
                script: Script::read(path)?,
                read: Duration::ZERO,
            },
            LatencySource::Probe => probe()?,
            LatencySource::Counters(name) => {
                let opened = counters()?;
                if opened.name() != *name {
                    bail!("this machine has {}, not {name}", opened.name());
                }
                opened
            }
            LatencySource::Auto => match counters() {
                Ok(opened) => opened,
                Err(_) => probe()?,
            },
        })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Counters { counters, .. } => counters.name(),
            Self::Probe(..) => "probe",
            Self::Replay { .. } => "replay",
            Self::None => "none",
        }
    }

    /// Whether what it says of reads is a count of all, where it says anything.
    pub fn counts_reads(&self) -> bool {
        match self {
            Self::Counters { counters, .. } => counters.counts_all(),
            Self::Probe(..) => false,
            Self::Replay { .. } | Self::None => true,
        }
    }

    /// What both tiers did since the last look; `elapsed` is the time since the daemon's start.
    ///
    /// # Errors
    /// A counter cannot be read, or nothing be read from a tier.
    pub fn since_last(&mut self, elapsed: Duration) -> Result<TierTraffic> {
        match self {
            Self::None => Ok(TierTraffic::default()),
            Self::Replay { path, script, written, read } => {
                let now = self::written(path);
                if now.is_some() && now != *written {
                    // Somebody may be in the middle of writing it: then the next look reads it.
                    if let Ok(fresh) = Script::read(path) {
                        (*script, *written, *read) = (fresh, now, elapsed);
                    }
                }
                Ok(script.at(elapsed.saturating_sub(*read)))
            }
            Self::Probe(chases, cpus) => {
                let _near = AffinityGuard::to(cpus);
                let [default, alternate] =
                    chases.each_mut().map(|chase| summary(&chase.batch_means()));
                Ok(TierTraffic {
                    latency: Some([default.0, alternate.0]),
                    interval: Some([default.1, alternate.1]),
                    reads: None,
                })
            }
            Self::Counters { counters, last, seen } => {
                let now = Instant::now();
                let since = now.duration_since(*last);
                let readings = counters.read(since)?;
                *last = now;
                let [Some(default), Some(alternate)] = readings else {
                    return Ok(TierTraffic::default());
                };
                for (seen, reading) in seen.iter_mut().zip([default, alternate]) {
                    seen.push(reading.latency_ns);
                    seen.drain(..seen.len().saturating_sub(LATELY));
                }
                let per_second = |reads: f64| reads / since.as_secs_f64().max(1e-9);
                Ok(TierTraffic {
                    latency: Some([default.latency_ns, alternate.latency_ns]),
                    interval: Some(seen.each_ref().map(|seen| summary(seen).1)),
                    reads: counters
                        .counts_all()
                        .then(|| [per_second(default.reads), per_second(alternate.reads)]),
                })
            }
        }
    }
}

/// The mean without the slowest tenth, which interrupts own, and the 95 % interval of a mean.
fn summary(values: &[f64]) -> (f64, (f64, f64)) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.truncate((values.len() - values.len() / 10).max(1));
    let mean = statistics::mean(&sorted).unwrap_or(0.0);
    let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
    let count = sorted.len() as f64;
    let error = if count > 1.0 { (squares / (count - 1.0) / count).sqrt() } else { 0.0 };
    (mean, (mean - 1.96 * error, mean + 1.96 * error))
}

/// Latencies over time: lines of `second default_ns alternate_ns [default_reads alternate_reads]`,
/// separated by commas or blanks. Each line holds until the next. Seconds count from the daemon's start, or
/// from when the file was seen to have changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Script(Vec<(f64, TierTraffic)>);

const KEYS: [&str; 5] =
    ["second", "default_ns", "alternate_ns", "default_reads_per_s", "alternate_reads_per_s"];

impl Script {
    fn read(path: &Path) -> Result<Self> {
        let text = whole::text(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    /// Reads a script; the error names line, key and valid values.
    ///
    /// # Errors
    /// The wrong line, with its key and valid values.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines: Vec<(f64, TierTraffic)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let number = number + 1;
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> =
                line.split([',', ' ', '\t', ';']).filter(|word| !word.is_empty()).collect();
            if words.is_empty() {
                continue;
            }
            if words.len() != 3 && words.len() != 5 {
                bail!(
                    "line {number}: it has {} values; valid: {} (the last two may be left out)",
                    words.len(),
                    KEYS.join(" ")
                );
            }
            let mut values = [0.0; 5];
            for (at, word) in words.iter().enumerate() {
                let (least, most) = match at {
                    0 => (0.0, 1e9),
                    1 | 2 => (1.0, 1e6),
                    _ => (0.0, 1e13),
                };
                let value = word.parse::<f64>().ok().filter(|v| (least..=most).contains(v));
                let Some(value) = value else {
                    bail!("line {number}: {}: {word}; valid: {least} to {most}", KEYS[at]);
                };
                values[at] = value;
            }
            if lines.last().is_some_and(|last| last.0 >= values[0]) {
                bail!("line {number}: second: {}; valid: more than the line before", values[0]);
            }
            let traffic = TierTraffic {
                latency: Some([values[1], values[2]]),
                interval: None,
                reads: (words.len() == 5).then_some([values[3], values[4]]),
            };
            lines.push((values[0], traffic));
        }
        if lines.is_empty() {
            bail!("line 1: there is no line; valid: {}", KEYS.join(" "));
        }
        Ok(Self(lines))
    }

    fn at(&self, elapsed: Duration) -> TierTraffic {
        let now = elapsed.as_secs_f64();
        let line = self.0.iter().rev().find(|(second, _)| *second <= now);
        line.map(|(_, traffic)| traffic.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_holds_each_line_until_the_next() {
        let script = Script::parse("# calm\n0, 70, 135\n2.5 300 140 1e8 2e8\n").unwrap();
        let at = |seconds| script.at(Duration::from_secs_f64(seconds));
        assert_eq!(at(0.0).latency, Some([70.0, 135.0]));
        assert_eq!(at(2.4).reads, None);
        assert_eq!(at(9.0).latency, Some([300.0, 140.0]));
        assert_eq!(at(9.0).reads, Some([1e8, 2e8]));
        let late = Script::parse("5 70 135").unwrap();
        assert_eq!(late.at(Duration::from_secs(1)), TierTraffic::default());
    }

    #[test]
    fn a_wrong_script_is_answered_with_line_key_and_valid_values() {
        for (text, expected) in [
            ("0 70 135\n1 -70 135", "line 2: default_ns: -70; valid: 1 to 1000000"),
            ("0 70 x", "line 1: alternate_ns: x; valid:"),
            ("0 70", "line 1: it has 2 values; valid: second default_ns alternate_ns"),
            ("1 70 135\n1 70 135", "line 2: second: 1; valid: more than the line before"),
            ("# nothing\n", "there is no line"),
            ("nan 70 135", "line 1: second: nan"),
        ] {
            let error = Script::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn sources_are_named_and_others_refused() {
        assert_eq!("replay:x".parse(), Ok(LatencySource::Replay("x".into())));
        for wrong in ["pebs", "replay:", ""] {
            assert!(wrong.parse::<LatencySource>().unwrap_err().contains(SOURCES));
        }
    }

    /// From where the daemon happened to run, the other tier could look nearer.
    #[test]
    fn the_probe_reads_from_the_processors_of_the_default_tier_and_only_while_it_looks() {
        let allowed = |thread: &Path| {
            let status = fs::read_to_string(thread.join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.unwrap().trim().to_owned()
        };
        let before = allowed(Path::new("/proc/thread-self"));
        let Some((_, last)) = before.rsplit_once(['-', ',']) else {
            return eprintln!("skipped: there is one processor");
        };
        let processor: u32 = last.parse().unwrap();
        let ring = || {
            let memory = pagemill_kernel::nodes::mempolicy::Bound::on(0, 1 << 20);
            memory.map(Chase::in_memory)
        };
        let (Ok(one), Ok(other)) = (ring(), ring()) else {
            return eprintln!("skipped: no memory can be had of node 0");
        };
        let mut probe = Latency::Probe([one, other], vec![processor]);
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let looking = std::thread::spawn(move || {
            tell.send(fs::canonicalize("/proc/thread-self").unwrap()).unwrap();
            while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let seen = probe.since_last(Duration::ZERO).unwrap();
                assert!(seen.latency.is_some());
            }
            allowed(Path::new("/proc/thread-self"))
        });
        let thread = told.recv().unwrap();
        let began = Instant::now();
        while allowed(&thread) != last {
            assert!(began.elapsed() < Duration::from_secs(120), "it was nowhere else: {before}");
        }
        drop(end);
        assert_eq!(looking.join().unwrap(), before);
    }

    #[test]
    fn an_interrupted_batch_does_not_move_the_mean() {
        let mut values = vec![100.0; 39];
        values.push(100_000.0);
        let (mean, (low, high)) = summary(&values);
        assert!((mean - 100.0).abs() < 1e-9 && low <= mean && mean <= high);
    }
}
