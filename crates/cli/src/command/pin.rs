//! `runnel pin`, and `runnel cache pin` and `unpin`.

mod health;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use ::cache::Cache;
use ::mount::Stop;
use anyhow::Context;
use client::Config;
use client::pin::{Change, Claim, Done, News, Pin, PinError, PinStop, Progress, Verdict};
use connection::{Remote, Target};
use units::ImageId;

use crate::command::caching::{self, CachePlace};
use crate::command::pin::health::{Checker, Health, Variable};
use crate::command::signed::NameArgs;
use crate::command::trust::TrustArgs;
use crate::command::volume::size;
use crate::{failure, progress};

/// The exit code of a new version that does not work.
const UNHEALTHY: u8 = 8;

/// Keep all of an image on this device, so that it runs without its server
#[derive(clap::Args)]
pub struct Args {
    /// The folder of the device cache (default: that of `run` and `mount`; also: RUNNEL_CACHE)
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// The key of the cache, as of `run` and `mount` (also: RUNNEL_CACHE_KEY)
    #[arg(long, value_name = "FILE|credential:NAME|none")]
    cache_key: Option<PathBuf>,

    #[command(flatten)]
    image: PinArgs,
}

/// What is pinned, and how.
#[derive(clap::Args, Clone)]
#[command(
    after_help = "Goes on where an earlier one ended. Nobody waits for it, so it runs at idle priority, and the server is told the \
same. In the background: `systemd-run --user runnel pin …`, or `nohup runnel pin … &`. Run again, it updates: a new version is \
fetched beside the one that programs start from, and takes its place at once when all of it is there. Programs that run keep \
theirs, and `runnel rollback` returns."
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

    /// Once a new version is in force, run this with `sh -c` (RUNNEL_NAME and RUNNEL_IMAGE say what
    /// is checked, RUNNEL_CACHE and RUNNEL_CA where); if it fails, return to the previous version,
    /// and end with exit code 8
    #[arg(long, value_name = "COMMAND")]
    health: Option<String>,

    /// The health command fails if it takes longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "health",
        value_parser = clap::value_parser!(u64).range(1..))]
    health_timeout: u64,

    /// Switch to the server's version also if it was rolled back from
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    names: NameArgs,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Pins an image in the cache of the options.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    pin(&args.image, args.cache.as_deref(), args.cache_key.as_deref())
}

/// Pins an image; interrupted, it ends with what came.
///
/// # Errors
/// The server, the cache, the budget, or a new version that does not work.
pub fn pin(args: &PinArgs, folder: Option<&Path>, key: Option<&Path>) -> anyhow::Result<ExitCode> {
    let (target, remote) = image(&args.target)?;
    if args.rate == Some(0) {
        return Err(failure::usage("--rate 0 would never end"));
    }
    let place = caching::place(folder, args.cache_size, key)?;
    let cache = place.open_or_fail()?;
    let variables = variables(args, &place, key)?;
    let mut result = Outcome::default();
    let outcome = bring_up_to_date(args, (&target, &remote), (variables, &cache), &mut result);
    if args.json {
        outln!("{}", json_of(&target, &cache, &result)?);
    }
    outcome?;
    tell_others(&cache, &place, key)?;
    match &result.done {
        Some(done) if !args.json => tell_done(&target, done)?,
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// What became of a pin, whether or not it failed.
#[derive(Default)]
struct Outcome {
    last: Progress,
    done: Option<Done>,
    /// What the health command said; `None` if it said nothing.
    is_healthy: Option<bool>,
}

fn bring_up_to_date(
    args: &PinArgs,
    (target, remote): (&str, &Remote),
    (variables, cache): (Vec<Variable>, &Cache),
    result: &mut Outcome,
) -> anyhow::Result<()> {
    let claim = Claim::new(cache, remote, target)?;
    let (stop, signal) = stopped_by_signals()?;
    let checker = args.health.as_ref().map(|health| {
        let limit = Duration::from_secs(args.health_timeout);
        let signal = Arc::clone(&signal);
        let mut environment = vec![("RUNNEL_NAME", target.into())];
        environment.extend(variables);
        Checker::start(health, environment, limit, move || signal.load(Ordering::Acquire) != 0)
    });
    // Programs come first.
    host::priority::idle();
    let check = |id: Option<ImageId>, is_healthy: &mut Option<bool>| match (&checker, id) {
        (Some(checker), Some(id)) => check(&claim, checker, target, id, &signal, is_healthy),
        _ => Ok(()),
    };
    // One that the power went off in.
    check(claim.unchecked()?, &mut result.is_healthy)?;
    let mut config = Config { signed: args.names.signed()?, ..Config::default() };
    config.connection.trust = args.trust.trust()?;
    let wanted = Pin {
        remote,
        config: &config,
        rate: args.rate,
        budget: args.budget,
        is_forced: args.force,
        is_checked: checker.is_some(),
        stop: &stop,
    };
    let (last, outcome) = with_bar(&wanted, &claim);
    result.last = last;
    let done = outcome.map_err(|error| match error {
        PinError::Stopped => {
            let (pinned, bytes) = (progress::human(last.pinned_bytes), progress::human(last.bytes));
            failure::with_code(code_of(&signal), format!("{pinned} of {bytes} are pinned; {error}"))
        }
        error => error.into(),
    })?;
    result.done = Some(done);
    match done.change {
        Change::Switched(_) => check(Some(done.id), &mut result.is_healthy),
        _ => Ok(()),
    }
}

/// The health command checks what is here, not what another cache has.
fn variables(args: &PinArgs, place: &CachePlace, key: Option<&Path>) -> anyhow::Result<Vec<Variable>> {
    let mut found: Vec<Variable> = Vec::new();
    found.extend(place.folder.clone().map(|folder| (caching::VARIABLE, folder.into())));
    if let Some(key) = key {
        found.push((caching::KEY_VARIABLE, caching::key_variable(key)?));
    }
    found.extend(args.trust.variable());
    Ok(found)
}

/// As shells say it of a program that the signal ended.
fn code_of(signal: &AtomicI32) -> u8 {
    128 + signal.load(Ordering::Acquire).clamp(0, 127) as u8
}

/// Asks the health command about the version in force; the previous one is in force again if it
/// fails.
fn check(
    claim: &Claim<'_>,
    checker: &Checker,
    target: &str,
    id: ImageId,
    signal: &AtomicI32,
    is_healthy: &mut Option<bool>,
) -> anyhow::Result<()> {
    let health = checker.check(id).context("the health command cannot be started")?;
    *is_healthy = match &health {
        Health::Good => Some(true),
        Health::Bad(_) => Some(false),
        Health::Stopped => None,
    };
    let why = match health {
        Health::Good => {
            claim.checked(id, true)?;
            return Ok(());
        }
        Health::Stopped => {
            let text = format!("stopped before version {id} of {target} was checked; it is in force");
            let hint = "hint: `runnel pin --health` checks it";
            return Err(failure::with_code(code_of(signal), format!("{text}\n{hint}")));
        }
        Health::Bad(why) => why,
    };
    let after = match claim.checked(id, false)? {
        Verdict::Returned(to) => format!("{target} is at version {to} again"),
        Verdict::Other => format!("{target} was at another version already"),
        Verdict::Good | Verdict::Stays => "there is no previous version to return to, so it stays".into(),
    };
    Err(failure::with_code(UNHEALTHY, format!("version {id} does not work: {why}; {after}")))
}

fn tell_done(target: &str, done: &Done) -> anyhow::Result<()> {
    let Done { id, change, progress: all } = done;
    match change {
        Change::HeldBack => {
            outln!("{target} stays as it is: its server has version {id}, which was rolled back from");
            tell!("hint: --force switches to it all the same");
            return Ok(());
        }
        Change::None => outln!("{target} is pinned: image {id}, {}", progress::human(all.bytes)),
        Change::Switched(None) => outln!("{target} is pinned now: image {id}, {}", progress::human(all.bytes)),
        Change::Switched(Some(from)) => {
            outln!("{target} is at version {id} now, {}; before: {from}", progress::human(all.bytes));
        }
    }
    outln!(
        "{} of {} blocks were there already, {} transferred",
        all.blocks_present,
        all.blocks,
        progress::human(all.transferred_bytes)
    );
    Ok(())
}

/// What became of it: how much came, and which version programs start from.
fn json_of(
    target: &str,
    cache: &Cache,
    Outcome { last, done, is_healthy }: &Outcome,
) -> anyhow::Result<serde_json::Value> {
    let (names, _) = client::pin::pinned(cache)?;
    let name = names.into_iter().find(|name| name.target == target);
    let current = name.and_then(|name| name.current).map(|version| version.id.to_string());
    let (switched, held_back) = match done.as_ref().map(|done| done.change) {
        Some(Change::Switched(_)) => (true, false),
        Some(Change::HeldBack) => (false, true),
        _ => (false, false),
    };
    Ok(serde_json::json!({
        "target": target, "id": done.as_ref().map(|done| done.id.to_string()), "current": current,
        "complete": done.is_some() && !held_back, "switched": switched, "held_back": held_back, "healthy": is_healthy,
        "blocks": last.blocks, "blocks_present": last.blocks_present, "bytes": last.bytes,
        "pinned_bytes": last.pinned_bytes, "transferred_bytes": last.transferred_bytes,
    }))
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
fn with_bar(wanted: &Pin<'_>, claim: &Claim<'_>) -> (Progress, Result<Done, PinError>) {
    let bar = progress::bytes(1, "pinning");
    let (mut last, mut interrupted) = (Progress::default(), false);
    let outcome = client::pin::pin(wanted, claim, &mut |news| match news {
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
        News::GivenUp(version) => {
            bar.suspend(|| tell!("note: the previous version {version} goes: the new one needs its room"));
        }
    });
    bar.finish_and_clear();
    (outcome.as_ref().map_or(last, |done| done.progress), outcome)
}

/// Other commands do not know what this one was told of the limit.
fn tell_others(cache: &Cache, place: &CachePlace, key: Option<&Path>) -> anyhow::Result<()> {
    let folder = place.folder()?;
    let others = Cache::limit(folder, caching::place(Some(folder), None, key)?.bytes).unwrap_or(0);
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
pub fn image(text: &str) -> anyhow::Result<(String, Remote)> {
    match Target::parse(text)? {
        Target::Remote(remote) => Ok((format!("{}/{}", remote.server, remote.image), remote)),
        _ => Err(failure::usage(format!("{text}: only images of a server can be pinned: runnel://host/name[:tag]"))),
    }
}
