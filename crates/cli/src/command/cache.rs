//! `runnel cache`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::cache::Cache;
use anyhow::Context;
use clap::Subcommand;
use client::pin::{PinnedImage, pinned_images};

use crate::command::caching;
use crate::command::pin::{self, PinArgs};
use crate::progress::{self, counted, human};

/// The device cache: what it holds, whether it is whole, empty it, keep an image in it
#[derive(clap::Args)]
pub struct Args {
    /// The folder (default: that of `run` and `mount`; also: RUNNEL_CACHE)
    #[arg(long, value_name = "DIR", global = true)]
    cache: Option<PathBuf>,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// How much it holds, what is pinned, and what was written to it so far (the default)
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Read all of it; what is damaged is fetched again when it is needed
    Verify,
    /// Remove all that is not pinned and that no running program writes
    Prune,
    /// As `runnel pin`
    Pin(Box<PinArgs>),
    /// Keep an image no longer than others
    Unpin {
        /// What was pinned: runnel://host[:port]/name[:tag], or runnel://host/@ID
        target: String,
    },
}

/// Opens the cache and looks at it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let action = match args.action {
        Some(Action::Pin(image)) => return pin::pin(&image, args.cache.as_deref()),
        action => action.unwrap_or(Action::Status { json: false }),
    };
    let place = caching::place(args.cache.as_deref(), None)?;
    let folder = place.folder()?;
    let cache = open(folder, place.is_chosen)?;
    match action {
        Action::Status { json } => show(folder, &cache, place.bytes, json)?,
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
        Action::Unpin { target } => return pin::unpin(&cache, &target),
        Action::Pin(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the cache, as large as it is. A folder that was chosen and is not there is not made.
fn open(folder: &Path, is_chosen: bool) -> anyhow::Result<Cache> {
    let named = || folder.display().to_string();
    if is_chosen {
        std::fs::read_dir(folder).with_context(named)?;
    }
    Cache::open(folder, Some(u64::MAX)).with_context(named)
}

fn show(folder: &Path, cache: &Cache, chosen: Option<u64>, json: bool) -> anyhow::Result<()> {
    let (status, pins) = (cache.status()?, pinned_images(cache));
    let limit = Cache::limit(folder, chosen);
    if json {
        let pin = |pin: &PinnedImage| {
            serde_json::json!({
                "target": pin.target, "id": pin.id.to_string(), "bytes": pin.bytes,
                "pinned_bytes": pin.pinned_bytes, "complete": pin.is_complete,
            })
        };
        let fields = serde_json::json!({
            "folder": folder.display().to_string(),
            "bytes": status.bytes,
            "bytes_max": limit.as_ref().ok(),
            "pinned_bytes": cache.pinned_bytes()?,
            "payload_bytes": status.payload_bytes,
            "records": status.records,
            "logs": status.logs,
            "written_bytes": status.written_bytes,
            "pins": pins.iter().map(pin).collect::<Vec<_>>(),
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
    progress::line(format_args!("written   {} since it was made", human(status.written_bytes)))?;
    for pin in pins {
        let name = if pin.target.is_empty() { format!("image {}", pin.id) } else { pin.target };
        match pin.is_complete {
            true => outln!("pinned    {name}: {}", human(pin.pinned_bytes)),
            false => outln!("pinned    {name}: {} so far, of {}", human(pin.pinned_bytes), human(pin.bytes)),
        }
    }
    Ok(())
}
