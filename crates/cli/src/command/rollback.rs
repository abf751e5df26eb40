//! `runnel rollback`.

use std::path::PathBuf;
use std::process::ExitCode;

use client::pin::{RollbackError, RolledBack};

use crate::command::{caching, pin};
use crate::failure;

/// Return to the version of a pinned image that was there before, without its server
#[derive(clap::Args)]
#[command(
    after_help = "Programs that start from now on start from the previous version; those that run keep theirs. The version \
that was left is remembered: `runnel pin` does not switch to it again, but with --force. What was fetched of it goes when its \
room is needed."
)]
pub struct Args {
    /// What was pinned: runnel://host[:port]/name[:tag], or runnels:// for TLS
    target: String,

    /// The folder of the device cache (default: that of `run` and `mount`; also: RUNNEL_CACHE)
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// The key of the cache, as of `run` and `mount` (also: RUNNEL_CACHE_KEY)
    #[arg(long, value_name = "FILE|credential:NAME|none")]
    cache_key: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Returns to the previous version.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (target, remote) = pin::image(&args.target)?;
    let cache = caching::place(args.cache.as_deref(), None, args.cache_key.as_deref())?.look()?;
    let RolledBack { from, to } = client::pin::rollback(&cache, &remote, &target).map_err(|error| match error {
        RollbackError::NotPinned(_) | RollbackError::NoPrevious(_) => failure::not_found(error.to_string()),
        RollbackError::Lost(_) | RollbackError::Cache(_) => error.into(),
    })?;
    match args.json {
        true => outln!("{}", serde_json::json!({ "target": target, "from": from.to_string(), "id": to.to_string() })),
        false => outln!("{target} is at version {to} again; {from} was left"),
    }
    Ok(ExitCode::SUCCESS)
}
