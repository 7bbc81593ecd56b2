//! Values of the command line that several verbs take.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pagemill_kernel::Linux;
use pagemill_model::{Bytes, Nanos, Pid};
use pagemill_record::recorders::{RECORDERS, RecorderKind};
use pagemill_report::export::{FORMATS, Format};
#[cfg(target_arch = "x86_64")]
use pagemill_tracer::FaultSource;

/// How long something lasts: `30s`, `1m30s`; a number without a unit is seconds, as timeout(1) and sleep(1) have it.
pub fn length(text: &str) -> Result<Nanos, String> {
    let unit = if text.parse::<f64>().is_ok() { "s" } else { "" };
    interval(&format!("{text}{unit}"))
}

/// Time between two things, which is never none.
pub fn interval(text: &str) -> Result<Nanos, String> {
    match text.parse::<Nanos>() {
        Ok(Nanos(0)) => Err("expected more than no time, such as 100ms".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// A size, which is never none.
pub fn size(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>() {
        Ok(Bytes(0)) => Err("expected more than nothing, such as 64M".into()),
        Ok(size) => Ok(size),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// A number that is one, with or without one of these units at its end.
fn with_unit(text: &str, units: &[char]) -> Option<f64> {
    let text = text.trim();
    let text = text.strip_suffix(units).map_or(text, str::trim_end);
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// A number of percent, of any size: `5`, `5%`, `0.5 %`.
pub fn percent(text: &str) -> Result<f64, String> {
    with_unit(text, &['%']).ok_or_else(|| "expected a number of percent, such as 5 or 5%".into())
}

/// A share, given in percent.
pub fn share(text: &str) -> Result<f64, String> {
    let percent = percent(text).ok().filter(|percent| (0.0..100.0).contains(percent));
    percent
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "expected a percentage from 0 to below 100, such as 5 or 5%".into())
}

/// How many times as much: `3` or `3x`.
pub fn times(text: &str) -> Result<f64, String> {
    with_unit(text, &['x', 'X']).ok_or_else(|| "expected how many times, such as 3 or 3x".into())
}

/// A number of any size.
pub fn number(text: &str) -> Result<f64, String> {
    with_unit(text, &[]).ok_or_else(|| "expected a number, such as 1 or 0.25".into())
}

/// A number of seconds: `90`, or `1m30s`.
pub fn seconds(text: &str) -> Result<f64, String> {
    let expected = "expected a number of seconds, such as 90, or a time, such as 1m30s";
    time_in(1e9, text).ok_or_else(|| expected.into())
}

/// A number of microseconds: `250`, or `0.25ms`.
pub fn microseconds(text: &str) -> Result<f64, String> {
    let expected = "expected a number of microseconds, such as 250, or a time, such as 0.25ms";
    time_in(1e3, text).ok_or_else(|| expected.into())
}

/// A number of nanoseconds: `140`, or `140ns`.
pub fn nanoseconds(text: &str) -> Result<f64, String> {
    let expected = "expected a number of nanoseconds, such as 140, or a time, such as 0.2us";
    time_in(1.0, text).ok_or_else(|| expected.into())
}

/// A number of units of so many nanoseconds; with a unit of its own it is that time.
fn time_in(unit: f64, text: &str) -> Option<f64> {
    let time = || text.parse().ok().map(|Nanos(time)| time as f64 / unit);
    with_unit(text, &[]).or_else(time)
}

/// A running process: its id, or its name if one process has it.
pub fn process(text: &str) -> Result<Pid, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| format!("no process id is as large as {text}"));
    }
    one_named(text, &named(&pagemill_launch::context::machine(), text))
}

/// Processes of this name. The kernel keeps the first 15 bytes of a name.
fn named(linux: &Linux, name: &str) -> Vec<Pid> {
    const KEPT: usize = 15;
    let kept = name.as_bytes().get(..KEPT).unwrap_or(name.as_bytes());
    let has_it = |pid: &Pid| linux.stat(*pid).is_ok_and(|stat| stat.comm.as_bytes() == kept);
    let mut found: Vec<Pid> = linux.processes().unwrap_or_default();
    found.retain(|pid| *pid != Pid::own() && has_it(pid));
    found.sort_unstable();
    found
}

fn one_named(name: &str, found: &[Pid]) -> Result<Pid, String> {
    match found {
        [one] => Ok(*one),
        [] => Err(format!("no process is called {name:?} (give its id, or see: ps -eo pid,comm)")),
        [some @ .., last] => {
            let some: Vec<String> = some.iter().map(Pid::to_string).collect();
            let several = format!("{} and {last}", some.join(", "));
            Err(format!("{} processes are called {name:?}: {several} (give one id)", found.len()))
        }
    }
}

/// How an answer is printed.
#[derive(Debug, clap::Args)]
pub struct Printed {
    /// Print JSON instead of text
    #[arg(long, default_value_if("csv", clap::builder::ArgPredicate::IsPresent, "true"))]
    pub json: bool,
    /// Print a table of the JSON as CSV; without TABLE the main one (a wrong name is answered with those that there
    /// are)
    #[arg(long, value_name = "TABLE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    csv: Option<String>,
}

/// A parser of a directory to write: `-` is no name for one.
pub fn directory() -> impl TypedValueParser<Value = PathBuf> {
    clap::builder::PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        true => Err("it is a directory, which standard output cannot be (./- is one of that name)"),
        false => Ok(path),
    })
}

/// Whether a recording's answer is to be passed on.
#[derive(Debug, clap::Args)]
pub struct Redact {
    /// Leave out whose it is: command, process name, paths outside of the system, and names of what is in files there
    #[arg(long)]
    pub redact: bool,
}

/// A parser of one of these choices: its name, what it is, and the value.
pub fn one_of<T: Copy + Send + Sync>(
    choices: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    row_of(choices, |(name, help, _)| (*name, *help)).map(|(.., value)| *value)
}

/// A parser of one of a table's rows, by what each is called and what it is.
fn row_of<T: Send + Sync>(
    table: &'static [T],
    words: fn(&T) -> (&'static str, &'static str),
) -> impl TypedValueParser<Value = &'static T> {
    let names = table.iter().map(words).map(|(name, about)| PossibleValue::new(name).help(about));
    PossibleValuesParser::new(names).try_map(move |name| {
        table.iter().find(|row| words(row).0 == name).ok_or("there is no such choice")
    })
}

/// A parser of a word of `record --with`.
pub fn recorder() -> impl TypedValueParser<Value = &'static RecorderKind> {
    row_of(RECORDERS, |kind| (kind.name, kind.about))
}

/// A parser of a format of `export`.
pub fn format() -> impl TypedValueParser<Value = &'static Format> {
    row_of(FORMATS, |format| (format.name, format.about))
}

/// How faults are told one by one, best first; one that does not work gives way to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AccessEvents {
    /// BPF programs
    Bpf,
    /// Samples of tracepoints
    PerfTracepoint,
    /// Samples of a software event: works for users
    PerfSoftware,
    /// Not at all: touched and written pages from the page tables alone
    Scan,
}

#[cfg(target_arch = "x86_64")]
impl AccessEvents {
    pub fn fault_source(self) -> FaultSource {
        match self {
            Self::Bpf => FaultSource::Bpf,
            Self::PerfTracepoint => FaultSource::PerfTracepoint,
            Self::PerfSoftware => FaultSource::PerfSoftware,
            Self::Scan => FaultSource::Scan,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_without_a_unit_is_in_seconds() {
        let seconds = |text| length(text).map(|time| time.0 as f64 / 1e9);
        assert_eq!(seconds("5"), Ok(5.0));
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert_eq!(seconds("1m30s"), Ok(90.0));
        for text in ["0", "0s", "-1", "soon", "", "nan", "inf"] {
            assert!(length(text).is_err(), "{text}");
        }
        assert!(interval("5").is_err(), "an interval may be of any unit");
    }

    /// `5%` was taken by one option and refused by the next, and `3x` by the one whose answer prints it so.
    #[test]
    fn percent_and_times_are_taken_with_and_without_their_unit() {
        for text in ["5", "5%", "5 %", " 5.0 % ", "5e0%"] {
            assert_eq!((percent(text), share(text)), (Ok(5.0), Ok(0.05)), "{text}");
        }
        assert_eq!((percent("-2.5%"), percent("250")), (Ok(-2.5), Ok(250.0)));
        assert_eq!((share("0"), share("99%")), (Ok(0.0), Ok(0.99)));
        for text in ["", "%", "5%%", "5x", "nan", "inf%", "much", "5 percent"] {
            let told = percent(text).unwrap_err();
            assert_eq!(told, "expected a number of percent, such as 5 or 5%", "{text}");
        }
        for text in ["much", "-1%", "100", "100%"] {
            let told = share(text).unwrap_err();
            assert_eq!(
                told, "expected a percentage from 0 to below 100, such as 5 or 5%",
                "{text}"
            );
        }
        for text in ["3", "3x", "3X", "3.0 x"] {
            assert_eq!(times(text), Ok(3.0), "{text}");
        }
        for text in ["", "x", "3xx", "3%", "nan", "thrice"] {
            assert!(times(text).unwrap_err().contains("such as 3 or 3x"), "{text}");
        }
    }

    #[test]
    fn numbers_of_a_unit_are_taken_bare_and_as_a_time() {
        assert_eq!((number(" 0.25 "), number("-1")), (Ok(0.25), Ok(-1.0)));
        assert_eq!(
            (seconds("90"), seconds("1m30s"), seconds("-1")),
            (Ok(90.0), Ok(90.0), Ok(-1.0))
        );
        assert_eq!((seconds("0s"), microseconds("250us")), (Ok(0.0), Ok(250.0)));
        assert_eq!((microseconds("250"), microseconds("0.25ms")), (Ok(250.0), Ok(250.0)));
        assert_eq!((nanoseconds("140"), nanoseconds("0.14us")), (Ok(140.0), Ok(140.0)));
        for text in ["", "soon", "nan", "inf", "1x", "s"] {
            for parser in [number, seconds, microseconds, nanoseconds] {
                assert!(parser(text).unwrap_err().starts_with("expected a number"), "{text}");
            }
        }
    }

    #[test]
    fn a_process_is_found_by_its_name_if_that_is_clear() {
        let me = Linux::live().stat(Pid(std::process::id())).unwrap();
        let own = one_named(&me.comm, &[Pid(7)]);
        assert_eq!(own, Ok(Pid(7)));
        assert_eq!(process("4711"), Ok(Pid(4711)));
        for text in ["99999999999", "no such process"] {
            assert!(process(text).is_err(), "{text}");
        }
        let several = one_named("sh", &[3, 5, 8].map(Pid)).unwrap_err();
        assert!(several.contains("3, 5 and 8"), "{several}");
    }

    #[test]
    fn a_long_name_is_compared_as_far_as_the_kernel_keeps_it() {
        let mut sleeping = std::process::Command::new("bash")
            .args(["-c", "exec -a x bash -c 'echo -n a-name-longer-than-fifteen >/proc/self/comm; read line'"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let found = || named(&Linux::live(), "a-name-longer-than-fifteen");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !found().contains(&Pid(sleeping.id())) {
            assert!(std::time::Instant::now() < end, "{:?}", found());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(sleeping.stdin.take());
        sleeping.wait().unwrap();
    }
}
