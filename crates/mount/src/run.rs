//! `runnel run IMAGE -- COMMAND`: an image mounted for one program, without root.
//!
//! This process enters its own namespaces, mounts the image at a private directory that only it and
//! its children see, serves it, and starts `enter` as a child in it. It forwards signals until the
//! program ends, unmounts, and returns how the program ended. Volumes are mounted in the same way,
//! beside the image, and bound into the program's root. The process must have one thread at first;
//! the session's threads start later.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use client::Session;
use host::Exit;
use host::signals::Signals;
use stream::RemoteVolume;

use crate::enter::EnterPlan;
use crate::mounted::{Mounted, Options};
use crate::report::UnmountReport;
use crate::runtime::{PrivateDirectory, Purpose};
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
}

impl Request {
    /// Runs the command of `plan` in an image mounted as `options` say, by way of `runnel enter` of
    /// this same program.
    pub fn new(options: Options, plan: EnterPlan) -> Request {
        Request { options, data: Vec::new(), plan, program: "/proc/self/exe".into(), arguments: vec!["enter".into()] }
    }
}

/// Opens the image with `open`, runs the program in it, and returns how it ended.
///
/// # Errors
/// Those of [`run_with_data`].
pub fn run(request: Request, open: impl FnOnce() -> Result<Arc<Session>, MountError>) -> Result<Exit, MountError> {
    run_with_data(request, || Ok(Sources { session: open()?, volumes: Vec::new() })).map(|ran| ran.exit)
}

/// Opens image and volumes with `open`, runs the program in it, and returns how it ended.
///
/// # Errors
/// Namespaces, the image, a volume or the mount cannot be had. That the program itself cannot be
/// started is told by `enter` on standard error and by exit code 126 or 127.
pub fn run_with_data(request: Request, open: impl FnOnce() -> Result<Sources, MountError>) -> Result<Ran, MountError> {
    let signals =
        Signals::of_wrapper().map_err(|error| MountError::step("receive signals for", &request.program, error))?;
    namespace::unshare(false)?;
    let sources = signals.ending_during(open)?;
    let place = PrivateDirectory::new(Purpose::Run)?;
    let mut options = request.options;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        // Owners the user namespace does not know would look like nobody's, and an overlay could
        // not copy their files.
        options.owner = Some((uid.as_raw(), gid.as_raw()));
    }
    // Nobody else can see this mount, and the program may change its user. The helper mounts
    // outside, so it is no help.
    (options.allow_other, options.helper) = (true, false);
    let mounted = Mounted::start(sources.session, place.path(), options)?;
    let mut plan = request.plan;
    let mut data = Vec::new();
    for (volume, wanted) in sources.volumes.into_iter().zip(request.data) {
        let place = PrivateDirectory::new(Purpose::Data)?;
        let options = VolumeOptions { allow_other: true, helper: false, ..wanted.options };
        let mounted = VolumeMount::start(volume, place.path(), options)?;
        plan.binds.push((place.path().to_path_buf(), wanted.inside.clone()));
        // Mounts go before their places.
        data.push((mounted, wanted.inside, place));
    }
    plan.root = place.path().to_path_buf();
    plan.ends_with_parent = true;
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
    // Volumes first: they may go over the session of the image.
    let mut reports = Vec::new();
    for (mounted, inside, _place) in data {
        reports.push((inside, mounted.unmount()?));
    }
    mounted.unmount()?;
    // Signals stay blocked: this process ends as the program did.
    let status = passing.stop().and(status).map_err(|error| MountError::step("wait for", &request.program, error))?;
    Ok(Ran { exit: status.into(), reports })
}
