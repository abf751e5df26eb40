//! `runnel run IMAGE -- COMMAND`: an image mounted for one program, without root.
//!
//! This process enters its own namespaces and has the image mounted at a private directory that
//! only it and its children see. It starts `enter` as a child in it, forwards signals until the
//! program ends, and returns how the program ended. Another process, the keeper, has the image
//! served, so that the program survives the daemon that serves it.
//!
//! Volumes are mounted in the same way, beside the image, and bound into the program's root. With
//! them, and if the run is recorded, this process serves the mounts itself. It must have one thread
//! at first; the session's threads start later.

mod kept;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use client::Session;
use host::Exit;
use host::signals::Signals;
use stream::RemoteVolume;
use units::ImageId;

use crate::enter::EnterPlan;
use crate::keeper::Inherited;
use crate::mounted::{Mounted, Options};
use crate::report::UnmountReport;
use crate::runtime::{PrivateDirectory, Purpose};
use crate::stop::Stop;
use crate::volume::{Data, VolumeMount, VolumeOptions};
use crate::{MountError, namespace};

/// The sources of a program: its image, and volumes in the order of [`Request::data`].
pub struct Sources {
    /// The image.
    pub session: Arc<Session>,
    /// The volumes.
    pub volumes: Vec<Arc<RemoteVolume>>,
}

/// How a program ended, and what became of its changes.
#[derive(Clone, Debug)]
pub struct Ran {
    /// How it ended.
    pub exit: Exit,
    /// For each volume, where it was and what became of the changes.
    pub reports: Vec<(PathBuf, UnmountReport)>,
}

/// The arguments of `runnel run`.
#[derive(Clone, Debug)]
pub struct Request {
    /// How to mount. Owner, access and helper are set to what a private mount needs.
    pub options: Options,
    /// Volumes that the program sees. Owner, access and helper are set as those of the image.
    pub data: Vec<Data>,
    /// The program; its root is set to the mounted image.
    pub plan: EnterPlan,
    /// The program that understands `enter`: this one.
    pub program: PathBuf,
    /// Its arguments before those of the plan.
    pub arguments: Vec<OsString>,
    /// The arguments of this process, with which a newer program may [`serve`].
    pub upgrades: Option<Vec<OsString>>,
    /// See [`crate::keeper::Keeping`].
    pub patience: Option<Duration>,
    /// See [`crate::keeper::Keeping`].
    pub tell: fn(&str),
}

impl Request {
    /// Runs the command of `plan` in an image mounted as `options` say, by way of `runnel enter` of
    /// this same program.
    pub fn new(options: Options, plan: EnterPlan) -> Request {
        Request {
            options,
            data: Vec::new(),
            plan,
            program: "/proc/self/exe".into(),
            arguments: vec!["enter".into()],
            upgrades: None,
            patience: None,
            tell: |_| {},
        }
    }
}

/// Opens the image with `open`, runs the program in it, and returns how it ended.
///
/// # Errors
/// Those of [`run_with_data`].
pub fn run(
    request: Request,
    open: impl FnOnce(Option<ImageId>) -> Result<Arc<Session>, MountError>,
) -> Result<Exit, MountError> {
    run_with_data(request, |image| Ok(Sources { session: open(image)?, volumes: Vec::new() })).map(|ran| ran.exit)
}

/// Opens image and volumes with `open`, runs the program in it, and returns how it ended. An image
/// that `open` is given is the one to open, whatever its name stands for by now. May also return in
/// a process that has served the program, which then ends in the same way.
///
/// # Errors
/// Namespaces, the image, a volume or the mount cannot be had. That the program itself cannot be
/// started is told by `enter` on standard error and by exit code 126 or 127.
pub fn run_with_data(
    request: Request,
    open: impl FnOnce(Option<ImageId>) -> Result<Sources, MountError>,
) -> Result<Ran, MountError> {
    let signals =
        Signals::of_wrapper().map_err(|error| MountError::step("receive signals for", &request.program, error))?;
    namespace::unshare(false)?;
    let place = PrivateDirectory::new(Purpose::Run)?;
    let options = private(request.options.clone());
    if request.data.is_empty() && options.recorder.is_none() {
        let how = kept::How { patience: request.patience, arguments: request.upgrades.clone(), tell: request.tell };
        let open = |image| open(image).map(|sources| sources.session);
        return match kept::start(options, place.path(), &signals, how, open)? {
            kept::Started::Served(keeper) => {
                let exit = start(&request, request.plan.clone(), place.path(), signals)?;
                keeper.end()?;
                Ok(Ran { exit: exit?, reports: Vec::new() })
            }
            kept::Started::Over(exit) => Ok(Ran { exit, reports: Vec::new() }),
            kept::Started::InChild(exit) => {
                // It is there as long as the parent is.
                std::mem::forget(place);
                Ok(Ran { exit, reports: Vec::new() })
            }
        };
    }
    let sources = signals.ending_during(|| open(None))?;
    let mounted = Mounted::start(sources.session, place.path(), options)?;
    let mut plan = request.plan.clone();
    let mut data = Vec::new();
    for (volume, wanted) in sources.volumes.into_iter().zip(&request.data) {
        let place = PrivateDirectory::new(Purpose::Data)?;
        let options = VolumeOptions { allow_other: true, helper: false, ..wanted.options.clone() };
        let mounted = VolumeMount::start(volume, place.path(), options)?;
        plan.binds.push((place.path().to_path_buf(), wanted.inside.clone()));
        // Mounts go before their places.
        data.push((mounted, wanted.inside.clone(), place));
    }
    let exit = start(&request, plan, place.path(), signals)?;
    // Volumes first: they may go over the session of the image.
    let mut reports = Vec::new();
    for (mounted, inside, _place) in data {
        reports.push((inside, mounted.unmount()?));
    }
    mounted.unmount()?;
    Ok(Ran { exit: exit?, reports })
}

/// Serves the image of a program that runs, for the keeper that has executed this process. Returns
/// when the program has ended.
///
/// # Errors
/// The image cannot be had, or the keeper has ended.
pub fn serve(
    options: Options,
    inherited: Inherited,
    tell: fn(&str),
    open: impl FnOnce(Option<ImageId>) -> Result<Arc<Session>, MountError>,
) -> Result<Exit, MountError> {
    let stop = Stop::listen()?;
    kept::daemon(inherited.accept()?, private(options), Path::new(""), (&stop, tell), open)
}

/// The options of a mount that only one program sees.
fn private(options: Options) -> Options {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // Owners the user namespace does not know would look like nobody's, and an overlay could not
    // copy their files.
    let owner = if uid.is_root() { options.owner } else { Some((uid.as_raw(), gid.as_raw())) };
    // Nobody else can see this mount, and the program may change its user. The helper mounts
    // outside, so it is no help.
    Options { owner, allow_other: true, helper: false, ..options }
}

/// Starts the program in the image at `root`, and waits for its end. Signals stay blocked: this
/// process ends as the program did. The inner error is that of waiting.
fn start(
    request: &Request,
    plan: EnterPlan,
    root: &Path,
    signals: Signals,
) -> Result<Result<Exit, MountError>, MountError> {
    let plan = EnterPlan { root: root.to_path_buf(), ends_with_parent: true, ..plan };
    let passing =
        signals.pass_on().map_err(|error| MountError::step("receive signals for", &request.program, error))?;
    let mut child = Command::new(&request.program)
        .args(&request.arguments)
        .args(plan.arguments())
        .spawn()
        .map_err(|error| MountError::step("start", &request.program, error))?;
    // Its thread waits for this.
    let _ = passing.to().send(child.id());
    let status = child.wait();
    let status = passing.stop().and(status).map_err(|error| MountError::step("wait for", &request.program, error));
    Ok(status.map(Exit::from))
}
