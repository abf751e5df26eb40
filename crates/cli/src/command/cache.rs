//! `runnel cache`.

use std::path::PathBuf;
use std::process::ExitCode;

use ::cache::Cache;
use anyhow::Context;
use clap::Subcommand;

use crate::progress::{self, counted, human};

/// The device cache: what it holds, whether it is whole, empty it
#[derive(clap::Args)]
pub struct Args {
    /// The folder that `run` and `mount` were given with --cache
    #[arg(long, value_name = "DIR", global = true)]
    cache: Option<PathBuf>,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Clone, Copy, Subcommand)]
enum Action {
    /// How much it holds, and what was written to it so far (the default)
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Read all of it; what is damaged is fetched again when it is needed
    Verify,
    /// Remove all that no running program writes
    Prune,
}

/// Opens the cache and looks at it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(folder) = args.cache else {
        return Err(crate::failure::usage("name the folder of the cache: --cache DIR"));
    };
    // One that is not there is not made.
    std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    // As large as it is.
    let cache = Cache::open(&folder, u64::MAX).with_context(|| folder.display().to_string())?;
    match args.action.unwrap_or(Action::Status { json: false }) {
        Action::Status { json } => show(&cache, json)?,
        Action::Verify => {
            let (good, damaged) = cache.verify();
            progress::line(format_args!("{}, {damaged} damaged", counted(good as u64, "record")))?;
            return Ok(if damaged == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Action::Prune => {
            let before = cache.status()?.bytes;
            cache.clear()?;
            progress::line(format_args!("{} removed", human(before.saturating_sub(cache.status()?.bytes))))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(cache: &Cache, json: bool) -> anyhow::Result<()> {
    let status = cache.status()?;
    if json {
        let fields = serde_json::json!({
            "bytes": status.bytes,
            "payload_bytes": status.payload_bytes,
            "records": status.records,
            "logs": status.logs,
            "written_bytes": status.written_bytes,
        });
        return progress::line(format_args!("{fields}"));
    }
    progress::line(format_args!("size      {} in {}", human(status.bytes), counted(status.logs as u64, "log")))?;
    progress::line(format_args!(
        "contents  {} in {}",
        human(status.payload_bytes),
        counted(status.records as u64, "record")
    ))?;
    progress::line(format_args!("written   {} since it was made", human(status.written_bytes)))
}
