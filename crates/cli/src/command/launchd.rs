//! `runnel launchd`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ::launch::PlanStore;
use ::launch::daemon::{self, Config, Event, unit};
use anyhow::Context;

use super::launch::Mounts;
use crate::{failure, progress};

/// Root's folder of plans where no variable tells of a home, as in services.
const ROOT_PLANS: &str = "/root/.cache/runnel/plans";

/// Fetch ahead what local programs read, however they are started: a daemon for root, beside
/// `runnel launch`
#[derive(clap::Args)]
#[command(
    after_help = "Watches the programs that have plans; their plans come from `runnel launch --learn`. Programs need not be \
started by `runnel launch`, and are not traced: first groups are fetched when a program is opened for execution, later ones at \
uprobes. Programs are never held, so on a rotating disk `runnel launch` gains more. Runs in the foreground until SIGTERM; SIGHUP \
makes it look at all plans again.\n\n\
A folder of plans is used for what its owner starts; root's for what anybody starts. It must be writable by its owner alone. Files \
are opened with the rights of the user who started the program, so a plan makes nothing be read that the user could not read. \
Later groups of programs that are not the user's own files need a plan of root's, since probes are seen by everybody. \
Processes in containers (with another root) are left alone."
)]
pub struct Args {
    /// Use the plans in this folder too (default: root's own, ~/.cache/runnel/plans); repeatable
    #[arg(long, value_name = "DIR")]
    plans: Vec<PathBuf>,

    /// Run in the foreground; this is the default, service managers do the rest
    #[arg(long = "foreground")]
    _foreground: bool,

    /// Tell on standard error of each program that is started
    #[arg(short, long)]
    verbose: bool,

    /// Tell on standard output of all that happens, one line of JSON each
    #[arg(long)]
    json: bool,

    /// Write a unit file for systemd, with these --plans
    #[arg(long, conflicts_with_all = ["uninstall", "verbose", "json"])]
    install: bool,

    /// Take away what --install made
    #[arg(long)]
    uninstall: bool,

    /// Where the unit file goes
    #[arg(long, value_name = "DIR", default_value = unit::FOLDER, hide = true)]
    units: PathBuf,
}

/// Works until a signal, or installs.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let own = PlanStore::open(None).map_or_else(|_| PathBuf::from(ROOT_PLANS), |store| store.folder().to_path_buf());
    if args.uninstall {
        return uninstall(&args.units);
    }
    if args.install {
        return install(&args, own);
    }
    let (verbose, json) = (args.verbose, args.json);
    let events = move |event: &Event| {
        if json {
            let line = serde_json::to_string(event).expect("words and numbers have a JSON form");
            // Nobody reads any more: the programs still profit.
            let _ = progress::line(format_args!("{line}"));
        }
        if verbose || matches!(event, Event::Ready { .. } | Event::Note { .. }) {
            tell!("{event}");
        }
    };
    daemon::run(Config { own, folders: args.plans, hints: Arc::new(Mounts::default()), events: Box::new(events) })?;
    Ok(ExitCode::SUCCESS)
}

fn install(args: &Args, own: PathBuf) -> anyhow::Result<ExitCode> {
    let runnel = std::env::current_exe().context("cannot find out where this program lies")?;
    // A service may write to folders only that are there.
    daemon::make_folder(&own)?;
    let given = args
        .plans
        .iter()
        .map(|folder| folder.canonicalize().with_context(|| format!("cannot use {}", folder.display())));
    let folders = std::iter::once(Ok(own)).chain(given).collect::<anyhow::Result<Vec<_>>>()?;
    let file = unit::install(&args.units, &runnel, &folders)?;
    outln!("{}", file.display());
    if Path::new("/run/systemd/system").exists() {
        tell!("next: systemctl daemon-reload && systemctl enable --now {}", unit::NAME);
    } else {
        tell!("hint: systemd does not run here; where it does: systemctl enable --now {}", unit::NAME);
    }
    Ok(ExitCode::SUCCESS)
}

fn uninstall(units: &Path) -> anyhow::Result<ExitCode> {
    let Some(file) = unit::uninstall(units)? else {
        return Err(failure::not_found(format!("{}: nothing was installed", units.join(unit::NAME).display())));
    };
    outln!("{}", file.display());
    tell!("next: systemctl stop {}; systemctl daemon-reload", unit::NAME);
    Ok(ExitCode::SUCCESS)
}
