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
    let Bench::Stream(stream) = args.bench;
    let options = ::bench::options::Options {
        cases: stream.cases,
        links: stream.links,
        quick: stream.quick,
        runs: stream.runs,
        learning_runs: stream.learning_runs,
        peers: stream.peers,
        connections: stream.connections,
        mount_options: stream.mount_options,
        seed: stream.seed,
        work: stream.work,
        json: stream.json,
        history: stream.history,
        ..::bench::options::Options::default()
    };
    ::bench::stream::run(&options, &mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}
