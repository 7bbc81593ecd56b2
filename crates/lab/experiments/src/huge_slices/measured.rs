//! A program's slices measured, and a round of it under each profile.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use pagemill_analysis::slices::ranking;
use pagemill_control::huge::measure::{self, Options as Measuring, Outcome as Measured};
use pagemill_control::plan::perturb::Perturbation;
use pagemill_control::plan::{BenefitSource, TimeMeasure};
use pagemill_kernel::Linux;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_launch::program::{self, ExecArguments};
use pagemill_policy::huge::Section;
use pagemill_policy::huge::profile::{Kind, Mapping, Profile};
use pagemill_tracer::Ended;
use pagemill_tracer::advise::{self, CHUNK, ChunkLocation};
use pagemill_workloads::programs::slices::{CHASED, PART, PARTS};

use super::options::{ALL, EXACT, NONE, Options};
use super::subject::{Arm, Subject};
use crate::reproduce::wiredtiger;
use pagemill_launch::exit::Interrupted;

/// Starts a server on the socket $1, has it set $2 new keys of 2 KB, and ends it.
const REDIS: &str = "\
redis-server --port 0 --unixsocket \"$1\" --save '' --appendonly no --daemonize no --disable-thp no > /dev/null &
server=$!
until redis-cli -s \"$1\" ping > /dev/null 2>&1; do kill -0 $server || exit 1; done
redis-benchmark -s \"$1\" -t set -d 2048 -c 8 -P 16 -n \"$2\" -r \"$2\" -q > /dev/null || exit 1
redis-cli -s \"$1\" shutdown nosave > /dev/null
wait $server
";

/// Starts a server (from $6 on) on the socket $4, has the YCSB client $1 of kind $2 ask it by the mix $3 at the scale
/// $5, and ends it.
const YCSB: &str = "\
client=$1 kind=$2 mix=$3 socket=$4 scale=$5
shift 5
rm -f \"$socket\"
\"$@\" > /dev/null &
server=$!
until [ -S \"$socket\" ]; do kill -0 $server || exit 1; sleep 0.01; done
\"$client\" workload $kind --mix $mix --threads 1 --scale $scale --server \"unix:$socket\" > /dev/null || exit 1
kill $server
wait $server
true
";

/// Starts a server of WiredTiger ($0) on the socket $1, on an empty directory $2, with a cache of $3 MiB.
const EMPTIED: &str = "rm -rf \"$2\" && mkdir \"$2\" && exec \"$0\" \"$@\"";

/// What ends a run, and the end of a child, for the tracer sleeps until its program stops.
const WATCHED: [i32; 4] = [2, 15, 1, signal::CHILD];

/// Why a program cannot be run here.
pub(super) fn lacks(name: &str) -> Option<String> {
    if name == "wiredtiger" {
        return wiredtiger::built().err().map(|error| error.to_string());
    }
    let needed: &[&str] = match name {
        "redis" => &["redis-server", "redis-benchmark", "redis-cli"],
        "xz" | "sqlite3" | "memcached" => &[name],
        _ => &[],
    };
    let path = std::env::var_os("PATH");
    let lacking =
        needed.iter().find(|one| program::find(OsStr::new(one), path.as_deref()).is_err());
    lacking.map(|one| format!("{one} is not installed"))
}

/// Why no program can be run here.
pub(super) fn missing(linux: &Linux) -> Option<String> {
    measure::allow_only_advised(linux).err().map(|error| error.to_string())
}

/// A server on a socket and its YCSB client of a kind, by a mix, at a scale, as one command.
fn served(
    client: &Path,
    [kind, mix, scale]: [&str; 3],
    socket: PathBuf,
    server: Vec<OsString>,
) -> Vec<OsString> {
    let kind = format!("ycsb-{kind}");
    let start = ["sh", "-c", YCSB, "sh"].map(OsString::from);
    let client = [client.into(), kind.into(), mix.into(), socket.into(), scale.into()];
    start.into_iter().chain(client).chain(server).collect()
}

/// A program's command, with its input in `room`.
pub(super) fn command(
    executable: &Path,
    name: &str,
    size: &str,
    room: &Path,
) -> Result<Vec<OsString>> {
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    Ok(match name {
        "redis" => {
            let socket = room.join("redis.sock").into();
            let start = words(&["sh", "-c", REDIS, "redis"]).into_iter();
            start.chain([socket, size.into()]).collect()
        }
        "memcached" => {
            let socket = room.join("memcached.sock");
            let mut server = words(&["memcached", "-m", "8192", "-t", "1", "-u", "root", "-s"]);
            server.push(socket.clone().into());
            // CBMM asks it for 99 reads of 100; YCSB's B has 95.
            served(executable, ["memcached", "B", size], socket, server)
        }
        "wiredtiger" => {
            let socket = room.join("wiredtiger.sock");
            let mut server = words(&["sh", "-c", EMPTIED]);
            server.extend([wiredtiger::built()?.into(), socket.clone().into()]);
            server.extend([room.join("wiredtiger").into(), "512".into()]);
            served(executable, ["redis", "mongodb", size], socket, server)
        }
        "xz" => {
            // A program's own code is data of the kind that is packed.
            let data = room.join("data");
            let mut code = fs::File::open(executable)?.take(size.parse()?);
            std::io::copy(&mut code, &mut fs::File::create(&data)?)?;
            let start = words(&["xz", "-9", "-k", "-c"]).into_iter();
            start.chain([data.into()]).collect()
        }
        "sqlite3" => {
            let script = room.join("script.sql");
            let text = format!(
                "create table t(a integer primary key, b text);\n\
                 with recursive n(i) as (select 1 union all select i+1 from n where i<{size})\n\
                 insert into t select i, hex(i*2654435761%4294967296)||hex(i) from n;\n\
                 create index u on t(b);\n\
                 select count(*) from t x join t y on y.b = hex(x.a*2654435761%4294967296)||hex(x.a);\n"
            );
            fs::write(&script, text)?;
            words(&["sqlite3", ":memory:", &format!(".read {}", script.display())])
        }
        _ => {
            let start = [executable.into()].into_iter();
            start.chain(words(&["workload", name, "--scale", size])).collect()
        }
    })
}

/// A program that is to be run, and what ends it.
pub(super) struct Bench<'a> {
    linux: &'a Linux,
    name: &'a str,
    options: &'a Options,
    signals: Signals,
    words: ExecArguments,
    // Of its input and its socket.
    _room: tempfile::TempDir,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        linux: &'a Linux,
        executable: &Path,
        name: &'a str,
        options: &'a Options,
    ) -> Result<Self> {
        let room = tempfile::Builder::new().prefix("pagemill-slices-").tempdir()?;
        let command = command(executable, name, options.size(name), room.path())?;
        let path = program::find(&command[0], std::env::var_os("PATH").as_deref())
            .map_err(|_| anyhow!("{} is not installed", command[0].display()))?;
        let words = ExecArguments::of(&path, Command::new(&path).args(&command[1..]), &command[0])?;
        let signals = Signals::block(&WATCHED)?;
        Ok(Self { linux, name, options, signals, words, _room: room })
    }

    /// What its slices are worth.
    pub(super) fn measure(&self, say: &mut dyn FnMut(&str)) -> Result<Subject> {
        let runs = self.options.runs;
        let measuring = Measuring {
            runs,
            slices: if self.name == "slices" { PARTS } else { 60 },
            seed: self.options.seed,
            by: TimeMeasure::Cpu,
            from: Some(BenefitSource::Runs),
        };
        let measured =
            measure::measure(self.linux, &self.words, measuring, &self.signals, &mut |done| {
                say(&format!("measured {done} of {runs} runs"));
            })??;
        if let Some(signal) = measured.interrupted {
            return Err(Interrupted(signal).into());
        }
        ensure!(!measured.benefits.is_empty(), "its runs were too few or failed");
        let place = |place: ChunkLocation| (place.heap, place.offset);
        Ok(Subject {
            runs: measured.runs.len() + 1,
            none: measured.uniform(false),
            all: measured.uniform(true),
            error: measured.error,
            benefits: measured.benefits.iter().map(|one| (one.mean, one.deviation)).collect(),
            sure: measured.benefits.iter().filter(|one| one.sure()).count(),
            intervals: (0..measured.benefits.len()).map(|at| measured.interval(at)).collect(),
            profile: measured.profile().to_string(),
            places: measured.places().into_iter().map(place).collect(),
            found: (self.name == "slices").then(|| found(&measured)).flatten(),
        })
    }

    /// One run under each profile, in an order of the round's own.
    pub(super) fn round(
        &self,
        subject: &Subject,
        round: u32,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Arm>> {
        let cost = pagemill_control::costs::calibrate(self.linux, false)?
            .measured
            .huge_ns
            .context("a huge page cannot be timed here")?;
        let profiles = profiles(subject, self.options)?;
        let mut order: Vec<usize> = (0..profiles.len()).collect();
        let seed = self.options.seed.wrapping_add(u64::from(round));
        pagemill_model::random::Random::new(seed).shuffle(&mut order);
        let mut arms: Vec<Option<Arm>> = profiles.iter().map(|_| None).collect();
        for at in order {
            let (name, profile) = &profiles[at];
            say(name);
            let pays =
                |place| profile.as_ref().is_none_or(|profile| benefit(profile, place) > cost);
            let words = (&self.words.path, &self.words.arguments[..], &self.words.environment[..]);
            let run =
                advise::run(self.linux, words, &self.signals, &pays, &mut advise::Unwatched)??;
            if let Some(signal) = run.interrupted {
                return Err(Interrupted(signal).into());
            }
            if run.ended != Ended::Exited(0) {
                bail!("{} under {name} ended otherwise: {:?}", self.name, run.ended);
            }
            let places =
                subject.places.iter().map(|&(heap, offset)| ChunkLocation { heap, offset });
            let huge = places.filter(|place| pays(*place)).count();
            let seconds = (run.used.user + run.used.system).as_secs_f64();
            arms[at] = Some(Arm { name: name.clone(), huge, seconds });
        }
        Ok(arms.into_iter().flatten().collect())
    }
}

/// No huge pages, all, the profile as measured, and made wrong in each way; none stands for all.
fn profiles(subject: &Subject, options: &Options) -> Result<Vec<(String, Option<Profile>)>> {
    let exact = Profile::parse(&subject.profile).map_err(anyhow::Error::msg)?;
    let rows = exact.rows.len().max(1) as u64;
    let mean = exact.rows.iter().map(|row| row.benefit).sum::<u64>() / rows;
    let mut profiles = vec![
        (NONE.to_owned(), Some(Profile::default())),
        (ALL.to_owned(), None),
        (EXACT.to_owned(), Some(exact.clone())),
    ];
    for way in options.ways() {
        let rule = if way == "general" { format!("general={mean}") } else { way.clone() };
        let perturbation: Perturbation = rule.parse().map_err(anyhow::Error::msg)?;
        profiles.push((way.clone(), Some(perturbation.apply(&exact, options.seed))));
    }
    Ok(profiles)
}

/// What a profile says that a huge page is worth at a place.
fn benefit(profile: &Profile, place: ChunkLocation) -> u64 {
    const TOP: u64 = 1 << 46;
    let (section, base) = if place.heap { (Section::Heap, 0) } else { (Section::Mmap, TOP) };
    let start = if place.heap { place.offset } else { TOP - place.offset - CHUNK };
    let mapping = Mapping { start, end: start + CHUNK, section, base, ..Mapping::default() };
    profile.benefit(Kind::Huge, &mapping, start).value().unwrap_or(0)
}

/// Of the parts that are chased, how many are among the greatest slices. Slices are parts if the mapping was cut as
/// it is.
fn found(measured: &Measured) -> Option<usize> {
    let ranges = measured.slices.iter().flat_map(|slice| &slice.ranges);
    // The highest part is the nearest to the top of the mappings; the mapping's own rest lies below the first.
    let first = ranges.filter(|range| !range.heap).map(|range| range.from).min()?;
    let from = |part: usize| first + ((PARTS - 1 - part) * PART) as u64;
    let greatest = &ranking(&measured.benefits)[..CHASED.len().min(measured.benefits.len())];
    let among = |part: usize| {
        let (low, high) = (from(part), from(part) + PART as u64);
        greatest.iter().any(|slice| {
            measured.slices[*slice].ranges.iter().any(|range| {
                let overlap = range.to.min(high).saturating_sub(range.from.max(low));
                overlap * 2 > high - low
            })
        })
    };
    Some(CHASED.iter().filter(|(part, _)| among(*part)).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_command() {
        let room = tempfile::tempdir().unwrap();
        let executable = std::env::current_exe().unwrap();
        let options = Options::new(true, None, 1);
        for name in super::super::options::programs() {
            let words = command(&executable, name, options.size(name), room.path());
            let is_whole = words.as_ref().is_ok_and(|words| words.len() >= 3);
            assert!(is_whole || lacks(name).is_some(), "{name}: {words:?}");
        }
    }

    #[test]
    fn a_profile_is_looked_up_by_place() {
        let text = "# unit: ns\nhuge,heap,7,section_off,>,0x200000,section_off,<,0x400000\n\
                    huge,mmap,9,section_off,>,0x400000,section_off,<,0x800000\n";
        let profile = Profile::parse(text).unwrap();
        let at = |heap, chunk| benefit(&profile, ChunkLocation { heap, offset: chunk * CHUNK });
        assert_eq!([at(true, 0), at(true, 1), at(true, 2)], [0, 7, 0]);
        assert_eq!([at(false, 1), at(false, 2), at(false, 3), at(false, 4)], [0, 9, 9, 0]);
    }

    #[test]
    fn each_way_makes_a_profile_of_its_own_of_what_was_kept() {
        let profile =
            "# unit: ns\nhuge,heap,700000,section_off,>,0x200000,section_off,<,0x400000\n";
        let subject = Subject { profile: profile.into(), ..Subject::default() };
        let options = Options::new(true, None, 1);
        let profiles = profiles(&subject, &options).unwrap();
        let names: Vec<&str> = profiles.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..4], [NONE, ALL, EXACT, "flatten"]);
        assert_eq!(names.len(), 3 + options.ways().len());
        assert!(profiles[1].1.is_none() && profiles[0].1.as_ref().unwrap().rows.is_empty());
    }
}
