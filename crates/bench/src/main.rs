//! The `runnel-bench` command: the demo, and what measures the product beside other systems. Each
//! bench fills in its own options.
//!
//! Not part of what users install: it drives the `runnel` that lies beside it. Hidden commands are
//! processes of a bench, and the lab's half inside its guest.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::lab::guest::{self, data::Helper, exec::Exec, peer::http};
use bench::{demo, hostile, lab, launch, options, pack, predictors, processor, sio, specialise, stream, update};
use clap::{Parser, Subcommand};

/// Measure runnel, side by side with other systems
#[derive(Parser)]
#[command(name = "runnel-bench", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Options),
    Stream(options::Options),
    Predict(Predict),
    Pack(pack::options::Options),
    Update(update::Options),
    Launch(launch::options::Options),
    Lab(lab::options::Options),
    Sio(sio::run::Options),
    Specialise(specialise::Options),
    Processor(processor::Options),
    Hostile(hostile::Options),
    Compare(Compare),
    #[command(hide = true)]
    PackSorted(pack::sorter::Work),
    #[command(hide = true)]
    HostileGood(hostile::Work),
    #[command(hide = true)]
    HostileBad(hostile::Orders),
    /// Measure the rows of a plan inside the lab's guest
    #[command(hide = true)]
    LabGuest {
        /// The plan
        #[arg(long, value_name = "FILE")]
        plan: PathBuf,
    },
    #[command(hide = true)]
    LabData(Helper),
    #[command(hide = true)]
    LabExec(Exec),
    /// Serve a folder over HTTP in the lab's guest
    #[command(hide = true)]
    LabHttp {
        /// The folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Address and port
        #[arg(long, value_name = "ADDRESS")]
        listen: SocketAddr,
        /// Write the number of requests to this file; it is there when connections are accepted
        #[arg(long, value_name = "FILE")]
        count: PathBuf,
    },
}

/// Predictors on the same traces, without a network: actions, Linux readahead, majority trend
#[derive(clap::Args)]
struct Predict {
    /// Trace files; starts of the cases are recorded if there are none
    traces: Vec<PathBuf>,
    #[command(flatten)]
    stream: options::Options,
}

/// Compare two results: medians, ratio, and which changes are larger than the spread
#[derive(clap::Args)]
struct Compare {
    /// Results of a lab, or a history file, of which @COMMIT chooses a line
    #[arg(value_name = "A[@COMMIT]")]
    a: String,
    /// The same, to compare with A
    #[arg(value_name = "B[@COMMIT]")]
    b: String,
    /// One JSON line per value
    #[arg(long)]
    json: bool,
}

/// Runs what was asked for; rows go to standard output.
fn run(command: Command) -> anyhow::Result<()> {
    let out = &mut std::io::stdout();
    match command {
        Command::Demo(options) => demo::run(&options, out),
        Command::Stream(options) => stream::run(&options, out),
        Command::Predict(predict) => predictors::run(&predict.stream, &predict.traces, out),
        Command::Pack(options) => pack::run::run(&options, out),
        Command::Update(options) => update::run(&options, out),
        Command::Launch(options) => launch::run::run(&options, out),
        Command::Lab(options) => lab::run::run(&options, out),
        Command::Sio(options) => sio::run::run(&options, out),
        Command::Specialise(options) => specialise::run(&options, out),
        Command::Processor(options) => processor::run(&options, out),
        Command::Hostile(options) => hostile::run(&options, out),
        Command::Compare(Compare { a, b, json }) => lab::compare::run(&a, &b, json, out).map(drop),
        Command::PackSorted(work) => pack_sorted(&work, out),
        Command::HostileGood(work) => hostile::work(&work),
        Command::HostileBad(orders) => hostile::attack(&orders),
        Command::LabGuest { plan } => guest::run(&plan),
        Command::LabData(helper) => guest::data::help(&helper),
        Command::LabExec(exec) => guest::exec::exec(&exec),
        Command::LabHttp { folder, listen, count } => http::serve(&folder, listen, &count),
    }
}

/// Makes an image for the bench and prints what is known of it.
fn pack_sorted(work: &pack::sorter::Work, out: &mut impl std::io::Write) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string(&work.pack()?)?)?)
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
