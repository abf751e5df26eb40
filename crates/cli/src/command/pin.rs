//! `runnel pin`, and `runnel cache pin` and `unpin`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use ::cache::Cache;
use ::mount::Stop;
use anyhow::Context;
use client::Config;
use client::pin::{News, Pin, PinError, PinStop, Progress};
use connection::{Remote, Target};
use units::ImageId;

use crate::command::caching::{self, CachePlace};
use crate::command::trust::TrustArgs;
use crate::command::volume::size;
use crate::{failure, progress};

/// Keep all of an image on this device, so that it runs without its server
#[derive(clap::Args)]
pub struct Args {
    /// The folder of the device cache (default: that of `run` and `mount`; also: RUNNEL_CACHE)
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    #[command(flatten)]
    image: PinArgs,
}

/// What is pinned, and how.
#[derive(clap::Args, Clone)]
#[command(
    after_help = "Goes on where an earlier one ended. Nobody waits for it, so it runs at idle priority, and the server is told the \
same. In the background: `systemd-run --user runnel pin …`, or `nohup runnel pin … &`. An image that was pinned under the \
same name is unpinned when all of the new one is there."
)]
pub struct PinArgs {
    /// runnel://host[:port]/name[:tag], or runnels:// for TLS
    target: String,

    /// What the cache may hold (default: as of `run` and `mount`); it must hold all of the image
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cache_size: Option<u64>,

    /// Request BYTES a second at most, on average (64k, 1m)
    #[arg(long, value_name = "BYTES/S", value_parser = size)]
    rate: Option<u64>,

    /// Transfer BYTES in a month (UTC) at most, with all other pins of this cache
    #[arg(long, value_name = "BYTES", value_parser = size)]
    budget: Option<u64>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Pins an image in the cache of the options.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    pin(&args.image, args.cache.as_deref())
}

/// Pins an image; interrupted, it ends with what came.
///
/// # Errors
/// The server, the cache, or the budget.
pub fn pin(args: &PinArgs, folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    let (target, remote) = image(&args.target)?;
    if args.rate == Some(0) {
        return Err(failure::usage("--rate 0 would never end"));
    }
    let place = caching::place(folder, args.cache_size)?;
    let cache = opened(&place)?;
    let (stop, signal) = stopped_by_signals()?;
    // Programs come first.
    host::priority::idle();
    let mut config = Config::default();
    config.connection.trust = args.trust.trust();
    let (rate, budget) = (args.rate, args.budget);
    let wanted = Pin { remote: &remote, target: &target, config: &config, rate, budget, stop: &stop };
    let (last, outcome) = with_bar(&wanted, &cache);
    let id = outcome.as_ref().ok().map(ToString::to_string);
    if args.json {
        let json = serde_json::json!({
            "target": target, "id": id, "complete": id.is_some(),
            "blocks": last.blocks, "blocks_present": last.blocks_present, "bytes": last.bytes,
            "pinned_bytes": last.pinned_bytes, "transferred_bytes": last.transferred_bytes,
        });
        outln!("{json}");
    }
    let id = outcome.map_err(|error| match error {
        PinError::Stopped => {
            let (pinned, bytes) = (progress::human(last.pinned_bytes), progress::human(last.bytes));
            // As shells say it of a program that the signal ended.
            let code = 128 + signal.load(Ordering::Acquire).clamp(0, 127) as u8;
            failure::with_code(code, format!("{pinned} of {bytes} are pinned; {error}"))
        }
        error => error.into(),
    })?;
    tell_others(&cache, &place)?;
    if !args.json {
        outln!("{target} is pinned: image {id}, {}", progress::human(last.bytes));
        outln!(
            "{} of {} blocks were there already, {} transferred",
            last.blocks_present,
            last.blocks,
            progress::human(last.transferred_bytes)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Stops when a signal comes, whose number is told; at once when a second one comes. Before the
/// first thread.
fn stopped_by_signals() -> anyhow::Result<(Arc<PinStop>, Arc<AtomicI32>)> {
    let signals = Stop::listen()?;
    let stop = Arc::new(PinStop::new().context("an event descriptor")?);
    let signal = Arc::new(AtomicI32::new(0));
    let (stops, came) = (Arc::clone(&stop), Arc::clone(&signal));
    // It ends with the process.
    std::thread::spawn(move || {
        if let Ok(number) = signals.wait() {
            came.store(number, Ordering::Release);
            stops.stop();
        }
        // Somebody cannot wait until a server answers.
        if let Ok(number) = signals.wait() {
            std::process::exit(128 + number);
        }
    });
    Ok((stop, signal))
}

/// Pins an image, and shows how far it is.
fn with_bar(wanted: &Pin<'_>, cache: &Arc<Cache>) -> (Progress, Result<ImageId, PinError>) {
    let bar = progress::bytes(1, "pinning");
    let (mut last, mut interrupted) = (Progress::default(), false);
    let outcome = client::pin::pin(wanted, cache, &mut |news| match news {
        News::Progress(state) => {
            interrupted &= state == last;
            last = state;
            bar.set_length(state.bytes);
            bar.set_position(state.pinned_bytes);
        }
        News::Interrupted(error) => {
            // Once, however often it is tried.
            if !std::mem::replace(&mut interrupted, true) {
                bar.suspend(|| tell!("note: {error}; trying again"));
            }
        }
    });
    bar.finish_and_clear();
    match outcome {
        Ok((id, all)) => (all, Ok(id)),
        Err(error) => (last, Err(error)),
    }
}

/// Other commands do not know what this one was told of the limit.
fn tell_others(cache: &Cache, place: &CachePlace) -> anyhow::Result<()> {
    let folder = place.folder()?;
    let others = Cache::limit(folder, caching::place(Some(folder), None)?.bytes).unwrap_or(0);
    let pinned = cache.pinned_bytes()?;
    if others < pinned {
        tell!(
            "note: {} are pinned, and other commands keep {} at most, so nothing beside; give `size` in \
             /etc/runnel/config.toml",
            progress::human(pinned),
            progress::human(others)
        );
    }
    Ok(())
}

/// Pins an image no more.
///
/// # Errors
/// It is not pinned, or the disk fails.
pub fn unpin(cache: &Cache, target: &str) -> anyhow::Result<ExitCode> {
    let (target, remote) = image(target)?;
    if client::pin::unpin(cache, &remote, &target)? == 0 {
        return Err(failure::not_found(format!("{target} is not pinned\nhint: `runnel cache` lists what is")));
    }
    outln!("{target} is not pinned any more; it goes when its room is needed");
    Ok(ExitCode::SUCCESS)
}

/// An image of a server, and how its address is written.
fn image(text: &str) -> anyhow::Result<(String, Remote)> {
    match Target::parse(text)? {
        Target::Remote(remote) => Ok((format!("{}/{}", remote.server, remote.image), remote)),
        _ => Err(failure::usage(format!("{text}: only images of a server can be pinned: runnel://host/name[:tag]"))),
    }
}

/// Opens the cache, which must be there for this.
fn opened(place: &CachePlace) -> anyhow::Result<Arc<Cache>> {
    let folder = place.folder()?;
    let cache = Cache::open(folder, place.bytes).with_context(|| folder.display().to_string())?;
    Ok(Arc::new(cache))
}
