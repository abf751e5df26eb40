//! `runnel cache`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::cache::{Cache, Unreadable};
use clap::Subcommand;
use client::pin::{Pinned, PinnedVersion, pinned};

use crate::command::caching;
use crate::command::pin::{self, PinArgs};
use crate::failure;
use crate::progress::{self, counted, human};

/// The device cache: what it holds, whether it is whole, empty it, keep an image in it
#[derive(clap::Args)]
pub struct Args {
    /// The folder (default: that of `run` and `mount`; also: RUNNEL_CACHE)
    #[arg(long, value_name = "DIR", global = true)]
    cache: Option<PathBuf>,

    /// The key of the cache, as of `run` and `mount` (also: RUNNEL_CACHE_KEY)
    #[arg(long, value_name = "FILE|credential:NAME|none", global = true)]
    cache_key: Option<PathBuf>,

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
    /// Keep an image, and its previous version, no longer than others
    Unpin {
        /// What was pinned: runnel://host[:port]/name[:tag], or runnel://host/@ID
        target: String,
    },
}

/// Opens the cache and looks at it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let action = match args.action {
        Some(Action::Pin(image)) => return pin::pin(&image, args.cache.as_deref(), args.cache_key.as_deref()),
        action => action.unwrap_or(Action::Status { json: false }),
    };
    let place = caching::place(args.cache.as_deref(), None, args.cache_key.as_deref())?;
    let cache = place.look()?;
    match action {
        Action::Status { json } => show(place.folder()?, &cache, place.bytes, json)?,
        Action::Verify => {
            let (good, damaged) = cache.verify()?;
            progress::line(format_args!("{}, {damaged} damaged", counted(good as u64, "record")))?;
            if damaged > 0 {
                return Err(corrupt(&cache)?);
            }
        }
        Action::Prune => {
            let before = cache.status()?.bytes;
            // Also of programs that have ended since.
            cache.unpin_unnamed()?;
            cache.clear()?;
            progress::line(format_args!("{} removed", human(before.saturating_sub(cache.status()?.bytes))))?;
        }
        Action::Unpin { target } => return pin::unpin(&cache, &target),
        Action::Pin(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// What damaged records were of; they are gone by now.
fn corrupt(cache: &Cache) -> anyhow::Result<anyhow::Error> {
    let (names, _) = pinned(cache)?;
    let lost =
        |name: &Pinned| [name.current, name.previous].into_iter().flatten().any(|version| !version.is_complete());
    let names: Vec<_> = names.iter().filter(|name| lost(name)).map(|name| printable(&name.target)).collect();
    Ok(match names.is_empty() {
        true => failure::corrupt("records were damaged\nhint: they are fetched again when they are needed"),
        false => failure::corrupt(format!(
            "records were damaged; part is lost of what is pinned: {}\nhint: `runnel pin` fetches it again",
            names.join(", ")
        )),
    })
}

fn show(folder: &Path, cache: &Cache, chosen: Option<u64>, json: bool) -> anyhow::Result<()> {
    let status = cache.status()?;
    let (names, others) = pinned(cache)?;
    let limit = Cache::limit(folder, chosen);
    let Unreadable { bytes, kept_bytes, .. } = cache.unreadable();
    let unreadable = bytes + kept_bytes;
    if json {
        let fields = serde_json::json!({
            "folder": folder.display().to_string(),
            "bytes": status.bytes,
            "bytes_max": limit.as_ref().ok(),
            "pinned_bytes": cache.pinned_bytes()?,
            "payload_bytes": status.payload_bytes,
            "records": status.records,
            "logs": status.logs,
            "written_bytes": status.written_bytes,
            "unreadable_bytes": unreadable,
            "pins": names.iter().map(json_of).collect::<Vec<_>>(),
            "unpinned_in_use": others.iter().map(json_of_version).collect::<Vec<_>>(),
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
    if unreadable > 0 {
        outln!("locked    {}: of another key than the one given, or of none", human(unreadable));
    }
    for name in &names {
        outln!("pinned    {}: {}", printable(&name.target), state(name));
        for (version, what) in [(name.current, "version "), (name.previous, "previous"), (name.next, "next    ")] {
            if let Some(version) = version {
                outln!("  {what}  {}, {}", version.id, size(&version));
            }
        }
        name.bad.iter().try_for_each(|bad| progress::line(format_args!("  left      {bad}")))?;
    }
    for version in others {
        outln!("in use    version {}, {}: of no name any more", version.id, human(version.pinned_bytes));
    }
    Ok(())
}

/// What is to be known of a name first.
fn state(name: &Pinned) -> &'static str {
    match (name.current, name.next) {
        (None, _) => "not complete yet",
        (Some(version), _) if !version.is_complete() => "part of it was lost; `runnel pin` fetches that again",
        (_, Some(_)) => "complete; a newer version is not complete yet",
        _ if name.is_unchecked => "complete, and not checked yet",
        _ => "complete",
    }
}

fn size(version: &PinnedVersion) -> String {
    match version.is_complete() {
        true => human(version.pinned_bytes),
        false => format!("{} so far, of {}", human(version.pinned_bytes), human(version.bytes)),
    }
}

fn printable(text: &str) -> String {
    units::printable_line(text.as_bytes()).into()
}

fn json_of(name: &Pinned) -> serde_json::Value {
    let version = |version: &Option<PinnedVersion>| version.as_ref().map(json_of_version);
    // Those of the version in force are beside its name, and of a name that has none those of the
    // first one.
    let shown = name.current.or(name.next);
    serde_json::json!({
        "target": name.target, "id": name.current.map(|version| version.id.to_string()),
        "bytes": shown.map(|version| version.bytes), "pinned_bytes": shown.map(|version| version.pinned_bytes),
        "complete": name.current.is_some_and(|version| version.is_complete()), "checked": !name.is_unchecked,
        "previous": version(&name.previous), "next": version(&name.next),
        "bad": name.bad.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn json_of_version(version: &PinnedVersion) -> serde_json::Value {
    serde_json::json!({
        "id": version.id.to_string(), "bytes": version.bytes, "pinned_bytes": version.pinned_bytes,
        "complete": version.is_complete(),
    })
}
