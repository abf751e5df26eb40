//! `runnel run IMAGE -- COMMAND`: an image mounted for one program, without root.
//!
//! This process enters its own namespaces, mounts the image at a private directory only it and its children see, serves
//! it, and starts `enter` as a child in it. It then passes signals on until the program ends, unmounts, and hands back
//! the program's exit code. Must be called while the process has one thread; the session's threads start afterwards.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;

use client::Session;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::enter::Plan;
use crate::mounted::{Mounted, Options};
use crate::runtime::{PrivateDirectory, Purpose};
use crate::signals::{self, Signals};
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

/// Opens the image with `open`, runs the program in it, and returns its exit code: its own, or 128 and the number of
/// the signal that ended it.
///
/// # Errors
/// Namespaces, the image or the mount cannot be had. That the program itself cannot be started is told by `enter` on
/// standard error and by exit code 126 or 127.
pub fn run(request: Request, open: impl FnOnce() -> Result<Arc<Session>, MountError>) -> Result<i32, MountError> {
    let signals = Signals::block(&signals::FORWARDED)
        .map_err(|error| MountError::step("receive signals for", &request.program, error))?;
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
    let mut child = Command::new(&request.program)
        .args(&request.arguments)
        .args(plan.arguments())
        .spawn()
        .map_err(|error| MountError::step("start", &request.program, error))?;
    let status = supervise(&mut child, &signals);
    mounted.unmount()?;
    let status = status.map_err(|error| MountError::step("wait for", &request.program, error))?;
    Ok(exit_code(status))
}

/// Passes signals on until the child ends.
fn supervise(child: &mut Child, signals: &Signals) -> std::io::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let exit: OwnedFd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut fds = [PollFd::new(&exit, PollFlags::IN), PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            return child.wait();
        }
        while let Some(arrived) = signals.next()? {
            // What a terminal sends, it sends to the child as well.
            if !arrived.from_kernel {
                let to = nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get());
                // The child may have ended this moment.
                let _ = nix::sys::signal::kill(to, arrived.signal);
            }
        }
    }
}

/// As shells put it.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> i32 {
        let mut child = Command::new("sh").args(["-c", script]).spawn().expect("sh starts");
        let signals = Signals::block(&signals::FORWARDED).expect("blocked");
        exit_code(supervise(&mut child, &signals).expect("waited"))
    }

    #[test]
    fn exit_codes_are_passed_on() {
        assert_eq!(shell("exit 0"), 0);
        assert_eq!(shell("exit 37"), 37);
        assert_eq!(shell("kill -KILL $$"), 128 + 9);
    }

    #[test]
    fn signals_are_passed_on() {
        // Started before signals are blocked, which it would inherit; `enter` undoes that for itself.
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let signals = Signals::block(&signals::FORWARDED).expect("blocked");
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).expect("raised");
        assert_eq!(exit_code(supervise(&mut child, &signals).expect("waited")), 128 + 15);
    }
}
