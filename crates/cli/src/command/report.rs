//! `runnel report`.

mod page;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::launch::learn::LocalFiles;
use anyhow::Context;
use page::{Input, Speed, page};
use profile::plan::{self, LaunchPlan, Limits, Run};
use trace::Tail;

use crate::command::plans::AnalyseArgs;
use crate::failure;

/// Draw what a program of this machine reads in bursts, and what is fetched ahead of them
#[derive(clap::Args)]
#[command(
    after_help = "Traces are analysed as they are for a launch, and compared with the files of this machine as they are now. \
The page is one file without anything from outside."
)]
pub struct Args {
    /// Traces of `runnel record -- COMMAND`, all of one program, or one launch plan
    #[arg(required = true)]
    files: Vec<PathBuf>,

    /// The page
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Megabytes that the disk reads in a second, for the time that fetching takes
    #[arg(long, value_name = "MB/S", default_value_t = 120.0)]
    disk_rate: f64,

    /// Milliseconds that each request and each file that is opened takes on that disk
    #[arg(long, value_name = "MS", default_value_t = 0.6)]
    disk_access: f64,

    #[command(flatten)]
    analyse: AnalyseArgs,
}

/// Writes the page.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.analyse.config(false)?;
    let speed = Speed { bytes_per_second: args.disk_rate * 1e6, access: args.disk_access / 1e3 };
    if !(0.001..=1e6).contains(&args.disk_rate) || !(0.0..=1e6).contains(&args.disk_access) {
        return Err(failure::usage("--disk-rate takes 0.001 to 1000000 MB/s, --disk-access 0 to 1000000 ms"));
    }
    let files = LocalFiles;
    let symbol = |file: &plan::PlanFile, offset| files.symbol(file, offset);
    let html = match read(&args.files)? {
        Learned::Plan(plan) => page(&Input { plan: &plan, learned: None, speed, symbol: &symbol }),
        Learned::Runs(runs) => {
            let analysis = plan::analyse(&runs, &files, &config)?;
            page(&Input { plan: &analysis.plan, learned: Some((&runs, &analysis)), speed, symbol: &symbol })
        }
    };
    let name = args.output.display();
    let write = || std::fs::File::create(&args.output)?.write_all(html.as_bytes());
    write().with_context(|| format!("cannot write {name}"))?;
    tell!("wrote {name}");
    Ok(ExitCode::SUCCESS)
}

/// The contents of the files.
enum Learned {
    Plan(LaunchPlan),
    Runs(Vec<Run>),
}

/// Longest file we read: hundreds of millions of touches.
const BYTES_MAX: u64 = 256 << 20;

fn read(paths: &[PathBuf]) -> anyhow::Result<Learned> {
    let mut runs = Vec::new();
    for path in paths {
        let (name, bytes) = (path.display(), bytes_of(path)?);
        if bytes.starts_with(&plan::format::MAGIC) {
            if paths.len() > 1 {
                return Err(failure::usage(format!("{name} is a plan: give one plan, or traces")));
            }
            let plan = plan::decode(&bytes, &Limits::default());
            return Ok(Learned::Plan(plan.map_err(|error| failure::corrupt(format!("{name}: {error}")))?));
        }
        let trace = trace::read(&bytes, &trace::Limits::default());
        let trace = trace.map_err(|error| failure::corrupt(format!("{name}: {error}")))?;
        if trace.tail != Tail::Whole {
            tell!("warning: {name}: {}", trace.tail);
        }
        runs.push(Run::from_trace(&trace).with_context(|| name.to_string())?);
    }
    Ok(Learned::Runs(runs))
}

fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = path.display();
    let file = host::file::open(path).with_context(|| name.to_string())?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| name.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(failure::corrupt(format!("{name} is longer than {BYTES_MAX} bytes; record shorter runs")));
    }
    Ok(bytes)
}
