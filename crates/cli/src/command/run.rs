//! `runnel run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use ::mount::enter::EnterPlan;
use ::mount::keeper::Inherited;
use ::mount::run::{Request, Sources};
use ::mount::{Data, MountError, Options, VolumeOptions};
use client::Session;
use connection::{ImageName, Target, Waiting};
use units::ImageId;

use crate::command::enter::PlanArgs;
use crate::command::mount::short_name;
use crate::command::seccomp::SeccompArgs;
use crate::command::session::SessionArgs;
use crate::command::volume::{self, DataArg, VolumeArgs};
use crate::failure;

/// Start a program inside an image, without root
#[derive(clap::Args)]
pub struct Args {
    /// runnel://host[:port]/name[:tag] (runnels:// for TLS), http://host/path/app.rnl, or app.rnl
    target: String,

    /// Let the program write: changes go to this folder
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,

    /// Show the program a volume: runnel://host/volume/NAME=/path/inside, with `:ro` at the end for
    /// reading only; may be given several times
    #[arg(long, value_name = "VOLUME=PATH")]
    data: Vec<OsString>,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    seccomp: SeccompArgs,

    #[command(flatten)]
    volume: VolumeArgs,

    #[command(flatten)]
    session: SessionArgs,
}

/// Mounts the image where only the program sees it, runs the program, and ends with its exit code.
/// With what a keeper left serves the image.
pub fn run(args: Args, inherited: Option<Inherited>) -> anyhow::Result<ExitCode> {
    let mut target = Target::parse(&args.target)?;
    let options = Options {
        name: short_name(&args.target),
        target: args.target.clone(),
        overlay: args.overlay.clone(),
        ..Options::default()
    };
    let plan: EnterPlan = args.plan.plan(PathBuf::new(), args.command.clone())?;
    let plan = EnterPlan { seccomp: args.seccomp.checked()?, ..plan };
    let data = args.data.iter().map(|text| DataArg::parse(text)).collect::<anyhow::Result<Vec<DataArg>>>()?;
    if data.len() > 1 && args.volume.has_folder() {
        return Err(failure::usage("the folder of --unsent belongs to one volume; give one --data with it"));
    }
    let config = args.session.config()?;
    let place = args.volume.caching.place(&target)?;
    let (cache, cache_problem) = place.open();
    let options = Options { cache_problem, ..options };
    let tell: fn(&str) = |text| tell!("{text}");
    if let Some(inherited) = inherited {
        let open = |image| Ok(Session::open_cached(&named(target, image), config, cache.as_ref())?);
        return Ok(ExitCode::from(::mount::run::serve(options, inherited, tell, open)?.follow()));
    }
    let mut request = Request::new(options, plan);
    request.upgrades = Some(std::env::args_os().collect());
    request.tell = tell;
    if let Waiting::Soft(patience) = config.waiting {
        request.patience = Some(patience);
    }
    let mut volumes = Vec::new();
    for wanted in &data {
        volumes.push(args.volume.options(&wanted.at, &config, wanted.read_only, place.key.as_ref())?);
        let options =
            VolumeOptions { read_only: wanted.read_only, ..args.volume.mount_options(&wanted.at, &wanted.target)? };
        request.data.push(Data { inside: wanted.inside.clone(), options });
    }
    let ran = ::mount::run::run_with_data(request, |image| {
        target = named(target, image);
        let session = Session::open_cached(&target, config.clone(), cache.as_ref())?;
        let mut opened = Vec::new();
        // One volume of the image's server goes over the connections of the image: one order of
        // importance, one budget.
        let mut unshared = Some(&*session);
        for (wanted, options) in data.iter().zip(volumes) {
            let shares = matches!(&target, Target::Remote(remote) if remote.server == wanted.at.server);
            let shared = if shares { unshared.take() } else { None };
            opened.push(volume::open(&wanted.at, config.clone(), options, shared)?);
        }
        Ok::<_, MountError>(Sources { session: session.clone(), volumes: opened })
    })?;
    let lost = ran.reports.iter().filter(|(inside, report)| volume::tell_unsent(inside, report)).count() > 0;
    // The last thing: a program that died of a signal is followed.
    let code = ran.exit.follow();
    Ok(if code == 0 && lost { ExitCode::FAILURE } else { ExitCode::from(code) })
}

/// What is opened: a name may stand for another image than the one that was mounted.
fn named(mut target: Target, image: Option<ImageId>) -> Target {
    if let (Target::Remote(remote), Some(image)) = (&mut target, image) {
        remote.image = ImageName::Id(image);
    }
    target
}
