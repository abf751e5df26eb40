//! Tests with processes of their own: daemons that are killed, programs in namespaces, redirects.
//! This binary is both: the tests, and the programs they start (`enter`, `run`, `mount`, `redirect`
//! as first argument), since a process that enters a user namespace may have one thread only, which
//! the usual test harness does not offer.

mod cases;
mod harness;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::{Config, Session};
use connection::Target;
use mount::enter::EnterPlan;
use mount::{MountError, Mounted, Options, Stop};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    let result = match first.to_str() {
        Some("enter") => enter(arguments).map(|never| match never {}),
        Some("run") => run(arguments.collect()),
        Some("mount") => serve(arguments.collect()),
        Some("umount") => mount::umount(&PathBuf::from(arguments.next().unwrap_or_default())).map(|_| 0),
        Some("redirect") => redirect(&PathBuf::from(arguments.next().unwrap_or_default())),
        Some("stop") => mount::redirect::stop(&PathBuf::from(arguments.next().unwrap_or_default())).map(|_| 0),
        // In place of unshare(1), which a chroot defeats.
        Some("own-mounts") => own_mounts(arguments),
        _ => return harness::main(),
    };
    let code = result.unwrap_or_else(|error| {
        eprintln!("{error}");
        error.exit_code()
    });
    std::process::exit(code);
}

fn open(path: &Path) -> Result<Arc<Session>, MountError> {
    Ok(Session::open(&Target::File(path.to_path_buf()), Config::default())?)
}

fn ready() {
    println!("ready");
    std::io::stdout().flush().expect("standard output");
}

fn enter(arguments: impl Iterator<Item = OsString>) -> Result<Infallible, MountError> {
    let plan = EnterPlan::parse(arguments).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2);
    });
    mount::enter::enter(&plan)
}

/// `run IMAGE OVERLAY-or-"" COMMAND...`
fn run(mut arguments: Vec<OsString>) -> Result<i32, MountError> {
    let command = arguments.split_off(2);
    let overlay = (!arguments[1].is_empty()).then(|| PathBuf::from(&arguments[1]));
    let options = Options { name: "test".into(), overlay, ..Options::default() };
    let request = mount::run::Request::new(options, EnterPlan::new("", command));
    Ok(mount::run::run(request, |_| open(Path::new(&arguments[0])))?.code())
}

/// `own-mounts COMMAND...`
fn own_mounts(mut command: impl Iterator<Item = OsString>) -> Result<i32, MountError> {
    host::mounts::own().expect("mounts of its own");
    let mut program = std::process::Command::new(command.next().expect("a command"));
    panic!("{:?}: {}", program.get_program().to_owned(), program.args(command).exec());
}

/// `mount IMAGE MOUNTPOINT`
fn serve(arguments: Vec<OsString>) -> Result<i32, MountError> {
    let stop = Stop::listen()?;
    let allow_other = rustix::process::geteuid().is_root();
    let options = Options { name: "test".into(), allow_other, ..Options::default() };
    let mounted = Mounted::start(open(Path::new(&arguments[0]))?, Path::new(&arguments[1]), options)?;
    ready();
    mounted.wait_or_stop(&stop)?;
    Ok(0)
}

fn redirect(file: &Path) -> Result<i32, MountError> {
    let open = |target: &Target| match target {
        Target::File(path) => open(path),
        _ => panic!("the tests use files"),
    };
    mount::redirect::run(file, open, |_| ready())?;
    Ok(0)
}
