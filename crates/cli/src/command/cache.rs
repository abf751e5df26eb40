//! `runnel cache`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::cache::{Cache, Status};
use anyhow::Context;
use clap::Subcommand;

use crate::command::caching::{self, CachePlace};
use crate::failure;
use crate::progress::{self, counted, human};

/// The device cache: what it holds, whether it is whole, empty it
#[derive(clap::Args)]
pub struct Args {
    /// The folder (default: that of `run` and `mount`; also: RUNNEL_CACHE)
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
    let place = caching::place(args.cache.as_deref(), None)?;
    let (cache, folder) = open(&place)?;
    match args.action.unwrap_or(Action::Status { json: false }) {
        Action::Status { json } => show(&folder, &cache.status()?, place.bytes, json)?,
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

/// Opens the cache, as large as it is.
fn open(place: &CachePlace) -> anyhow::Result<(Cache, PathBuf)> {
    let Some(folder) = place.folder.clone() else {
        return Err(failure::usage(match place.is_chosen {
            true => "there is no device cache: `none` was chosen\nhint: name a folder: --cache DIR",
            false => {
                "there is no device cache: neither XDG_CACHE_HOME nor HOME is an absolute path\nhint: name a folder: \
                 --cache DIR"
            }
        }));
    };
    let named = || folder.display().to_string();
    if place.is_chosen {
        // One that is not there is not made.
        std::fs::read_dir(&folder).with_context(named)?;
    }
    let cache = Cache::open(&folder, Some(u64::MAX)).with_context(named)?;
    Ok((cache, folder))
}

fn show(folder: &Path, status: &Status, chosen: Option<u64>, json: bool) -> anyhow::Result<()> {
    let limit = Cache::limit(folder, chosen);
    if json {
        let fields = serde_json::json!({
            "folder": folder.display().to_string(),
            "bytes": status.bytes,
            "bytes_max": limit.as_ref().ok(),
            "payload_bytes": status.payload_bytes,
            "records": status.records,
            "logs": status.logs,
            "written_bytes": status.written_bytes,
        });
        return progress::line(format_args!("{fields}"));
    }
    progress::line(format_args!("folder    {}", folder.display()))?;
    progress::line(format_args!("size      {} in {}", human(status.bytes), counted(status.logs as u64, "log")))?;
    match limit {
        Ok(limit) => progress::line(format_args!("limit     {}", human(limit)))?,
        Err(error) => progress::line(format_args!("limit     not used: {error}"))?,
    }
    progress::line(format_args!(
        "contents  {} in {}",
        human(status.payload_bytes),
        counted(status.records as u64, "record")
    ))?;
    progress::line(format_args!("written   {} since it was made", human(status.written_bytes)))
}
