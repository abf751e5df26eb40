//! `runnel status`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::mount::MountStatus;
use connection::{Config, Server};

use crate::command::trust::TrustArgs;
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

/// One mount, all mounts, or a server.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.target.as_deref() {
        Some(url) if url.contains("://") => {
            let server = Server::parse(url)?;
            let status = client::admin::status(&server, &args.trust.trust(), Config::default().open_deadline)?;
            if args.json {
                outln!("{status}");
            } else {
                outln!("{:#}", super::images::parsed(&server, &status)?);
            }
        }
        Some(path) => {
            let wanted = std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
            let status = ::mount::mounts()?
                .into_iter()
                .find(|status| status.mountpoint == wanted)
                .ok_or_else(|| failure::not_found(no_live_mount(path, &wanted)))?;
            show(&status, args.json)?;
        }
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

/// The error for a path that is no mount of this user, with a hint.
fn no_live_mount(path: &str, wanted: &Path) -> String {
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
            ("stalls", format!("{} ({} ms)", session.reads.stalls, session.reads.stall_micros / 1000)),
            ("received", progress::human(session.transfer.bytes_received)),
            ("sent", progress::human(session.transfer.bytes_sent)),
            ("reconnects", session.transfer.reconnects.to_string()),
        ]),
    }
    rows.push(("requests from the kernel", fuse.requests().to_string()));
    for (name, value) in rows {
        outln!("  {name:<26} {value}");
    }
    Ok(())
}
