//! `pagemill workload`: runs one of the built-in workloads.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use pagemill_model::Pid;
use pagemill_workloads::address::Address;
use pagemill_workloads::graph::Kind;
use pagemill_workloads::mixes::Mix;
use pagemill_workloads::nas::Class;
use pagemill_workloads::program::{Failure, Params, Program, Report};
use pagemill_workloads::programs;
use pagemill_workloads::programs::ycsb;
use serde_json::{Map, Value, json};

use pagemill_launch::exit::Exit;
use pagemill_launch::meant::meant;

const EXAMPLES: &str = "\
Examples:
  pagemill workload --list
  pagemill workload larson --threads 4 --seconds 10
  LD_PRELOAD=libjemalloc.so.2 pagemill workload churn
  pagemill run --mesh 1y -- pagemill workload unfragmented --scale 0.1
  pagemill workload nas-cg --class A --threads 2
  pagemill workload gap-bfs --class A --graph uniform
  pagemill workload ycsb-redis --server unix:/run/redis.sock --mix B --rate 10000
  pagemill run --huge cbmm+ -- pagemill workload growing-server --think 0.5
";

/// What follows the options: which workload goes by which, and what comes out.
fn after() -> String {
    let mut text = "Which workload goes by which options; others are refused:\n".to_owned();
    let mut sets: Vec<(String, Vec<&str>)> = Vec::new();
    for program in programs::all() {
        let options = program.options();
        match sets.iter_mut().find(|(known, _)| *known == options) {
            Some((_, names)) => names.push(program.name),
            None => sets.push((options, vec![program.name])),
        }
    }
    for (options, names) in sets {
        text.push_str(&format!("  {options}: {}\n", names.join(", ")));
    }
    text.push_str(
        "\nPrints one line of JSON: calls, wall time, the options that count, the program's own figures, and what its \
         self check found.\nExit status: 0 the check passed; 1 it failed: memory was damaged (or the allocator is \
         wrong); 2 usage, or the work could not be done: a server went away.",
    );
    text
}

/// Which workload, and how much of it.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = after())]
pub struct Arguments {
    /// Which one (see --list).
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Lists the workloads.
    #[arg(long)]
    list: bool,
    /// Worker threads, or connections of a YCSB client [default: 2].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How long those run that run for a time [default: 5].
    #[arg(long, value_name = "S", value_parser = crate::values::seconds)]
    seconds: Option<f64>,
    /// Share of the full size of those of fixed work [default: 1].
    #[arg(long, value_name = "F", value_parser = crate::values::number)]
    scale: Option<f64>,
    /// Idle time before they read their memory at the end [default: 1].
    #[arg(long, value_name = "S", value_parser = crate::values::seconds)]
    hold: Option<f64>,
    /// Problem size of the NAS and graph kernels: S, W, A or B [default: S].
    #[arg(long, value_name = "CLASS")]
    class: Option<Class>,
    /// Graph of the graph kernels: kronecker or uniform [default: kronecker].
    #[arg(long, value_name = "GRAPH")]
    graph: Option<Kind>,
    /// Edges that are drawn for each vertex of the graph [default: 16].
    #[arg(long, value_name = "N")]
    degree: Option<usize>,
    /// YCSB workload: A to F, or mongodb, which grows [default: A].
    #[arg(long, value_name = "MIX")]
    mix: Option<Mix>,
    /// Server of a YCSB client: unix:PATH or HOST:PORT.
    #[arg(long, value_name = "ADDRESS")]
    server: Option<Address>,
    /// Operations that a YCSB client begins each second; 0: each when the last was answered [default: 0].
    #[arg(long, value_name = "N", value_parser = crate::values::number)]
    rate: Option<f64>,
    /// Microseconds between two requests [default: 0].
    #[arg(long, value_name = "US", value_parser = crate::values::microseconds)]
    think: Option<f64>,
    /// Seed of everything random [default: 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    arguments.run()
}

impl Arguments {
    fn run(&self) -> Result<Exit> {
        if self.list {
            for program in programs::all() {
                println!("{:16} {}: {}", program.name, program.summary, program.options());
            }
            return Ok(Exit::Ok);
        }
        let name = self.name.as_deref().unwrap_or_default();
        let Some(program) = programs::find(name) else {
            let valid: Vec<&str> = programs::all().map(|program| program.name).collect();
            let meant = meant(name, valid.iter().copied());
            bail!("there is no workload {name:?}{meant}; valid names: {}", valid.join(", "));
        };
        let odd = self.given().into_iter().find(|(option, given)| *given && !program.takes(option));
        if let Some((odd, _)) = odd {
            bail!("{name} does not go by --{odd}; it takes {}", program.options());
        }
        let params = self.params()?;
        if program.takes("server") {
            let server = params.server.as_ref();
            let server = server.context("name the server: --server unix:PATH or HOST:PORT")?;
            ycsb::reach(server).with_context(|| format!("cannot connect to {server}"))?;
        }
        match program.run(&params) {
            Ok(report) => {
                println!("{}", line(program, &params, report));
                Ok(Exit::Ok)
            }
            Err(Failure::Outside(what)) => bail!("{name}: {what}"),
            Err(Failure::Check(what)) => {
                notice!("self check of {name} failed: {what}");
                Ok(Exit::Finding)
            }
        }
    }
}
impl Arguments {
    /// The options of workloads, and whether they were given.
    fn given(&self) -> [(&'static str, bool); 12] {
        [
            ("threads", self.threads.is_some()),
            ("seconds", self.seconds.is_some()),
            ("scale", self.scale.is_some()),
            ("hold", self.hold.is_some()),
            ("class", self.class.is_some()),
            ("graph", self.graph.is_some()),
            ("degree", self.degree.is_some()),
            ("mix", self.mix.is_some()),
            ("server", self.server.is_some()),
            ("rate", self.rate.is_some()),
            ("think", self.think.is_some()),
            ("seed", self.seed.is_some()),
        ]
    }

    /// What was given, and the defaults for the rest.
    fn params(&self) -> Result<Params> {
        let usual = Params::default();
        let time = |flag, seconds: Option<f64>, usual| match seconds {
            Some(value) if (0.0..=86_400.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
            Some(_) => bail!("{flag} must be 0 to 86400 seconds"),
            None => Ok(usual),
        };
        let params = Params {
            threads: self.threads.unwrap_or(usual.threads),
            time: time("--seconds", self.seconds, usual.time)?,
            scale: self.scale.unwrap_or(usual.scale),
            hold: time("--hold", self.hold, usual.hold)?,
            seed: self.seed.unwrap_or(usual.seed),
            class: self.class.unwrap_or(usual.class),
            graph: self.graph.unwrap_or(usual.graph),
            degree: self.degree.unwrap_or(usual.degree),
            mix: self.mix.unwrap_or(usual.mix),
            server: self.server.clone(),
            rate: self.rate.unwrap_or(usual.rate),
            think: time("--think", self.think.map(|us| us / 1e6), usual.think)?,
        };
        ensure!((1..=1024).contains(&params.threads), "--threads must be 1 to 1024");
        ensure!((0.0..=1e9).contains(&params.rate), "--rate must be 0 to 1e9");
        ensure!((1..=256).contains(&params.degree), "--degree must be 1 to 256");
        let scale = params.scale;
        ensure!(scale > 0.0 && scale <= 100.0, "--scale must be above 0 and at most 100");
        Ok(params)
    }
}

/// The line that is printed. Of the options, only those are in it that count.
fn line(program: &Program, params: &Params, report: Report) -> Value {
    let values = [
        ("threads", json!(params.threads)),
        ("seconds", json!(params.time.as_secs_f64())),
        ("scale", json!(params.scale)),
        ("hold", json!(params.hold.as_secs_f64())),
        ("class", json!(params.class.to_string())),
        ("graph", json!(params.graph.to_string())),
        ("degree", json!(params.degree)),
        ("mix", json!(params.mix.to_string())),
        ("server", json!(params.server.as_ref().map(ToString::to_string))),
        ("rate", json!(params.rate)),
        ("think", json!(params.think.as_secs_f64() * 1e6)),
        ("seed", json!(params.seed)),
    ];
    let counting = values.into_iter().filter(|(option, _)| program.takes(option));
    let options: Map<String, Value> =
        counting.map(|(option, value)| (option.to_owned(), value)).collect();
    let metrics: Map<String, Value> =
        report.metrics.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    json!({
        "workload": program.name,
        "threads": options.get("threads"),
        "scale": options.get("scale"),
        "seed": options.get("seed"),
        "options": options,
        "operations": report.operations,
        "seconds": report.seconds,
        "cpu_seconds": pagemill_kernel::clock::of_process(Pid::own())
            .ok()
            .map(|time| time.as_secs_f64()),
        "metrics": metrics,
        "check": report.check,
    })
}
