//! `pagemill workload`: runs one of the built-in workloads.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use pagemill_model::Pid;
use pagemill_workloads::graph::Kind;
use pagemill_workloads::mixes::Mix;
use pagemill_workloads::nas::Class;
use pagemill_workloads::program::Params;
use pagemill_workloads::programs;
use pagemill_workloads::programs::ycsb::{self, Address};
use serde_json::{Map, Value, json};

use pagemill_launch::exit::Exit;

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

const AFTER: &str = "\
Prints one line of JSON: calls, wall time, the program's own figures, and what its self check found.
Exit status: 0 the check passed; 1 it failed: memory was damaged (or the allocator is wrong); 2 usage.";

/// Which workload, and how much of it.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Which one (see --list).
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Lists the workloads.
    #[arg(long)]
    list: bool,
    /// Worker threads; connections of a YCSB client.
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// How long larson, xmalloc and gups run.
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    seconds: f64,
    /// Share of the full size of the other ones.
    #[arg(long, default_value_t = 1.0, value_name = "F")]
    scale: f64,
    /// Idle time of churn and unfragmented before they read their memory at the end.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    hold: f64,
    /// Problem size of the NAS and graph kernels: S, W, A or B.
    #[arg(long, default_value_t = Class::S, value_name = "CLASS")]
    class: Class,
    /// Graph of the graph kernels: kronecker or uniform.
    #[arg(long, default_value_t = Kind::Kronecker, value_name = "GRAPH")]
    graph: Kind,
    /// Edges that are drawn for each vertex of the graph.
    #[arg(long, default_value_t = 16, value_name = "N")]
    degree: usize,
    /// YCSB workload of silo-ycsb and the YCSB clients: A to F, or mongodb, which grows.
    #[arg(long, default_value_t = Mix::A, value_name = "MIX")]
    mix: Mix,
    /// Server of a YCSB client: unix:PATH or HOST:PORT.
    #[arg(long, value_name = "ADDRESS")]
    server: Option<Address>,
    /// Operations that a YCSB client begins each second; 0: each when the last was answered.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    rate: f64,
    /// Microseconds that growing-server and thp-ubmk spend between two requests.
    #[arg(long, default_value_t = 0.0, value_name = "US")]
    think: f64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    arguments.run()
}

impl Arguments {
    fn run(&self) -> Result<Exit> {
        if self.list {
            for program in programs::all() {
                println!("{:16} {}", program.name, program.summary);
            }
            return Ok(Exit::Ok);
        }
        let name = self.name.clone().unwrap_or_default();
        let Some(program) = programs::find(&name) else {
            let valid: Vec<&str> = programs::all().map(|program| program.name).collect();
            bail!("there is no workload {name:?}; valid names: {}", valid.join(", "));
        };
        ensure!((1..=1024).contains(&self.threads), "--threads must be 1 to 1024");
        ensure!((0.0..=1e9).contains(&self.rate), "--rate must be 0 to 1e9");
        let is_client = programs::CLIENTS.iter().any(|client| client.name == name);
        ensure!(
            self.server.is_some() == is_client,
            "--server unix:PATH or HOST:PORT belongs to a YCSB client, which needs it"
        );
        ensure!(self.degree <= 256, "--degree must be at most 256");
        ensure!(self.scale > 0.0 && self.scale <= 100.0, "--scale must be above 0 and at most 100");
        let params = Params {
            threads: self.threads,
            time: seconds("--seconds", self.seconds)?,
            scale: self.scale,
            hold: seconds("--hold", self.hold)?,
            seed: self.seed,
            class: self.class,
            graph: self.graph,
            degree: self.degree,
            mix: self.mix,
            server: self.server()?,
            rate: self.rate,
            think: seconds("--think", self.think / 1e6)?,
        };
        match (program.run)(&params) {
            Ok(report) => {
                let metrics: Map<String, Value> = report
                    .metrics
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), json!(value)))
                    .collect();
                let line = json!({
                    "workload": report.workload,
                    "threads": params.threads,
                    "scale": params.scale,
                    "seed": params.seed,
                    "operations": report.operations,
                    "seconds": report.seconds,
                    "cpu_seconds": pagemill_kernel::clock::of_process(Pid::own())
                        .ok()
                        .map(|time| time.as_secs_f64()),
                    "metrics": metrics,
                    "check": report.check,
                });
                println!("{line}");
                Ok(Exit::Ok)
            }
            Err(failure) => {
                eprintln!("pagemill: self check failed: {failure}");
                Ok(Exit::Finding)
            }
        }
    }
}

impl Arguments {
    /// Where the server is; an error if nobody listens there.
    fn server(&self) -> Result<Option<&'static str>> {
        let Some(address) = &self.server else { return Ok(None) };
        ycsb::reach(address).with_context(|| format!("cannot connect to {address}"))?;
        // Parameters are copied freely; there is one server in a process.
        Ok(Some(address.to_string().leak()))
    }
}

fn seconds(flag: &str, value: f64) -> Result<Duration> {
    ensure!((0.0..=86_400.0).contains(&value), "{flag} must be 0 to 86400 seconds");
    Ok(Duration::from_secs_f64(value))
}
