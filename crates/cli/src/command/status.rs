//! `runnel status`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::mount::MountStatus;
use connection::{Config, Server};

use crate::command::trust::TrustArgs;
use crate::progress::counted;
use crate::{failure, progress};

/// Show counters of mounts, or of a server
#[derive(clap::Args)]
pub struct Args {
    /// A mount point, or runnel://host (runnels:// for TLS); all mounts of this user if left out
    target: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Rows of a server: what they are called, and where they are in its document.
const SERVER_ROWS: [(&str, &str); 14] = [
    ("connections", "/connections"),
    ("requests", "/metrics/requests"),
    ("  of these failed", "/metrics/requests_failed"),
    ("reads that failed", "/metrics/reads_failed"),
    ("blocks demanded", "/metrics/blocks_demanded"),
    ("  bytes", "/metrics/block_bytes_demanded"),
    ("pages demanded", "/metrics/pages_demanded"),
    ("pages pushed", "/metrics/pages_pushed"),
    ("  of these from bundles", "/metrics/pages_from_bundle"),
    ("  bytes", "/metrics/push_bytes"),
    ("bundles that failed", "/metrics/bundles_failed"),
    ("uploads", "/metrics/uploads"),
    ("  bytes", "/metrics/upload_bytes_received"),
    ("connections that failed", "/metrics/connections_failed"),
];

/// One mount, all mounts, or a server.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.target.as_deref() {
        Some(url) if url.contains("://") => {
            let server = Server::parse(url)?;
            let status = client::admin::status(&server, &args.trust.trust()?, Config::default().open_deadline)?;
            if args.json {
                outln!("{status}");
            } else {
                show_server(&server, &super::images::parsed(&server, &status)?)?;
            }
        }
        Some(path) => show(&of_mount(Path::new(path))?, args.json)?,
        None => {
            let all = ::mount::mounts()?;
            if args.json {
                outln!("{}", serde_json::to_string(&all)?);
            } else if all.is_empty() {
                outln!("no mounts");
            } else {
                all.iter().try_for_each(|status| show(status, false))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The status of the mount at a path.
///
/// # Errors
/// It is no mount of this user, or its daemon does not answer.
pub fn of_mount(path: &Path) -> anyhow::Result<MountStatus> {
    let wanted = std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    let found = ::mount::mounts()?.into_iter().find(|status| status.mountpoint == wanted);
    found.ok_or_else(|| failure::not_found(no_live_mount(path, &wanted)))
}

/// The error for a path that is no mount of this user, with a hint.
fn no_live_mount(path: &Path, wanted: &Path) -> String {
    let path = path.display();
    let table = ::mount::mountpoint::table().unwrap_or_default();
    let around = table.iter().rev().find(|entry| entry.image().is_some() && wanted.starts_with(&entry.path));
    match around {
        Some(entry) if entry.path == wanted => format!(
            "{path} is a runnel mount whose daemon does not answer this user\nhint: ask as the user who mounted it, or as \
             root; if the daemon has ended, `runnel umount {path}` removes the mount"
        ),
        Some(entry) => {
            let whole = entry.path.display();
            format!("{path} lies in the runnel mount {whole}\nhint: `runnel status {whole}`")
        }
        None if !wanted.exists() => format!("{path} does not exist\nhint: `runnel status` lists the mounts"),
        None => format!(
            "{path} is not a runnel mount\nhint: `runnel status` lists the mounts; of a server, `runnel status \
             runnel://HOST`"
        ),
    }
}

/// What an operator asks first; `--json` has all the rest. A server of another version may lack
/// fields, which are then left out.
fn show_server(server: &Server, status: &serde_json::Value) -> anyhow::Result<()> {
    let version = units::printable_line(status["version"].as_str().unwrap_or("unknown").as_bytes());
    let uptime = indicatif::HumanDuration(Duration::from_secs(status["uptime_seconds"].as_u64().unwrap_or(0)));
    outln!("{server}: version {version}, up {uptime}");
    let number = |at: &str| status.pointer(at).and_then(serde_json::Value::as_u64);
    let row = |name: &str, value: Option<String>| -> anyhow::Result<()> {
        if let Some(value) = value {
            outln!("  {name:<26} {value}");
        }
        Ok(())
    };
    let held = status["memory"].as_object().map(|held| {
        let taken = held.iter().filter(|(name, _)| *name != "limit_bytes");
        progress::human(taken.filter_map(|(_, bytes)| bytes.as_u64()).fold(0, u64::saturating_add))
    });
    row("memory", held)?;
    for (name, at) in SERVER_ROWS {
        let value = number(at);
        let is_bytes = at.contains("bytes");
        row(name, value.map(|value| if is_bytes { progress::human(value) } else { value.to_string() }))?;
    }
    for image in status["images"].as_array().into_iter().flatten() {
        let id = units::printable_line(image["id"].as_str().unwrap_or_default().as_bytes());
        let count = |name: &str| image[name].as_u64().unwrap_or(0);
        let (actions, bundles) = (counted(count("actions"), "action"), counted(count("bundles"), "bundle"));
        let pages = counted(count("action_pages"), "page");
        outln!("  image {id:.12}: {}, {actions} of {pages}, {bundles}", progress::human(count("file_bytes")));
    }
    for volume in status["volumes"].as_array().into_iter().flatten() {
        let name = units::printable_line(volume["name"].as_str().unwrap_or_default().as_bytes());
        let mode = if volume["writable"] == true { "read and write" } else { "read only" };
        outln!("  volume {name}: {mode}");
    }
    Ok(())
}

fn show(status: &MountStatus, json: bool) -> anyhow::Result<()> {
    if json {
        outln!("{}", serde_json::to_string(status)?);
        return Ok(());
    }
    let MountStatus { session, fuse, .. } = status;
    outln!("{} on {} (process {})", status.target, Path::new(&status.mountpoint).display(), status.pid);
    let mut rows = Vec::new();
    match &status.volume {
        Some(volume) => rows.extend(crate::command::volume::rows(volume)),
        None => rows.extend([
            ("requests to the server", session.demand.requests.to_string()),
            ("round trips", session.demand.round_trips.to_string()),
            ("pages demanded", session.demand.pages_demanded.to_string()),
            ("pages pushed", session.pushes.pages_pushed.to_string()),
            ("  of these hit", session.pushes.pages_push_hit.to_string()),
            ("  of these wasted", session.pushes.pages_wasted.to_string()),
            ("pages read ahead", session.readahead.pages_speculated.to_string()),
            ("reads that failed", session.reads.read_errors.to_string()),
            ("stalls", format!("{} ({} ms)", session.reads.stalls, session.reads.stall_micros / 1000)),
            ("received", progress::human(session.transfer.bytes_received)),
            ("sent", progress::human(session.transfer.bytes_sent)),
            ("reconnects", session.transfer.reconnects.to_string()),
        ]),
    }
    rows.push(("requests from the kernel", fuse.requests().to_string()));
    if let Some(problem) = &status.cache_problem {
        rows.push(("device cache not used", units::printable_line(problem.as_bytes()).into()));
    }
    for (name, value) in rows {
        outln!("  {name:<26} {value}");
    }
    Ok(())
}
