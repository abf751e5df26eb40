//! `runnel run IMAGE -- COMMAND`: an image mounted for one program, without root.
//!
//! This process enters its own namespaces, mounts the image at a private directory only it and its children see, serves
//! it, and starts `enter` as a child in it. It then passes signals on until the program ends, unmounts, and hands back
//! how the program ended. Must be called while the process has one thread; the session's threads start afterwards.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use client::Session;
use host::Exit;
use host::signals::Signals;

use crate::enter::Plan;
use crate::mounted::{Mounted, Options};
use crate::runtime::{PrivateDirectory, Purpose};
use crate::{MountError, namespace};

/// What `runnel run` is asked to do.
#[derive(Clone, Debug)]
pub struct Request {
    /// How to mount. Owner, access and helper are set to what a private mount needs.
    pub options: Options,
    /// What to run; its root is set to where the image is mounted.
    pub plan: Plan,
    /// The program that understands `enter`: this one.
    pub program: PathBuf,
    /// Its arguments before those of the plan.
    pub arguments: Vec<OsString>,
}

impl Request {
    /// Runs the command of `plan` in an image mounted as `options` say, by way of `runnel enter` of this same program.
    pub fn new(options: Options, plan: Plan) -> Request {
        Request { options, plan, program: "/proc/self/exe".into(), arguments: vec!["enter".into()] }
    }
}

/// Opens the image with `open`, runs the program in it, and returns how it ended.
///
/// # Errors
/// Namespaces, the image or the mount cannot be had. That the program itself cannot be started is told by `enter` on
/// standard error and by exit code 126 or 127.
pub fn run(request: Request, open: impl FnOnce() -> Result<Arc<Session>, MountError>) -> Result<Exit, MountError> {
    let signals =
        Signals::of_wrapper().map_err(|error| MountError::step("receive signals for", &request.program, error))?;
    namespace::unshare(false)?;
    let place = PrivateDirectory::new(Purpose::Run)?;
    let mut options = request.options;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        // Owners the user namespace does not know would look like nobody's, and an overlay could not copy their files.
        options.owner = Some((uid.as_raw(), gid.as_raw()));
    }
    // Nobody else can see this mount, and the program may change its user. The helper mounts outside, so it is no help.
    (options.allow_other, options.helper) = (true, false);
    let mounted = Mounted::start(open()?, place.path(), options)?;
    let mut plan = request.plan;
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
    mounted.unmount()?;
    // Signals stay held back: this process ends as the program did.
    let status = passing.stop().and(status).map_err(|error| MountError::step("wait for", &request.program, error))?;
    Ok(status.into())
}
