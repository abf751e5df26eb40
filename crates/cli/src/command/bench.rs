//! `runnel bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

/// Measure, side by side with other systems
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Stream(Stream),
    Predict(Predict),
}

/// Predictors on the same traces, without a network: actions, Linux readahead, majority trend
#[derive(clap::Args)]
struct Predict {
    /// Trace files; starts of the cases are recorded if there are none
    traces: Vec<PathBuf>,
    #[command(flatten)]
    stream: Stream,
}

/// Cold and warm program starts over a shaped link
#[derive(clap::Args)]
struct Stream {
    /// Few cases; ends within 5 minutes
    #[arg(long)]
    quick: bool,
    /// Also squashfs over NBD and Nydus, where they are installed
    #[arg(long)]
    peers: bool,
    /// Only these programs: python-200, python-pass, perl, openssl, gcc, jvm; may be given several times
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only these links: lan, wifi, thin, 20ms-25mbit, or RTT-RATE[-LOSS]; may be given several times
    #[arg(long = "link", value_name = "LINK")]
    links: Vec<String>,
    /// Measured runs of each row, at least 5
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Starts from which the server learns
    #[arg(long, value_name = "N", default_value_t = 3)]
    learning_runs: usize,
    /// Connections of our client
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// A further option for `runnel mount`, for ablations; may be given several times
    #[arg(long = "mount-option", value_name = "OPTION", allow_hyphen_values = true)]
    mount_options: Vec<String>,
    /// Leave the page cache of this machine alone between runs
    #[arg(long)]
    keep_caches: bool,
    /// Seed of the link's losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep trees and images in this folder for the next bench
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// One JSON line per row
    #[arg(long)]
    json: bool,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Runs the bench; rows go to standard output.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = &mut std::io::stdout();
    match args.bench {
        Bench::Stream(stream) => ::bench::stream::run(&stream.options(), out)?,
        Bench::Predict(predict) => ::bench::predictors::run(&predict.stream.options(), &predict.traces, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Stream {
    fn options(self) -> ::bench::options::Options {
        ::bench::options::Options {
            cases: self.cases,
            links: self.links,
            quick: self.quick,
            runs: self.runs,
            learning_runs: self.learning_runs,
            peers: self.peers,
            keep_caches: self.keep_caches,
            connections: self.connections,
            mount_options: self.mount_options,
            seed: self.seed,
            work: self.work,
            json: self.json,
            history: self.history,
            ..::bench::options::Options::default()
        }
    }
}
