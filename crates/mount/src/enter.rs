//! A program inside a mounted image, without root (`runnel enter ROOT -- CMD`).
//!
//! The process moves into its own mount table (and without root into a user namespace that lets it
//! mount). It builds a new root from the image and the directories of the caller, makes it the root
//! and becomes the program. The program sees the image's files, and the caller's /dev, /proc, /sys,
//! /tmp, /run, home directory, current directory and network. Exit code and signals are the
//! program's own, since it replaces this process.
//!
//! The process must have one thread.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;

use crate::runtime::{PrivateDirectory, Purpose};
use crate::{MountError, namespace};

mod arguments;
mod layout;
mod startable;

pub use arguments::ArgumentError;
use layout::{Bind, Layout, Node};

/// Search path inside an image. Not the caller's own, which may name directories of its home before
/// the image's.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Directories of the caller that every program gets.
const BROUGHT: [&str; 5] = ["/dev", "/proc", "/sys", "/tmp", "/run"];

/// Directories that belong to the image: the caller's current directory is not put over a place in
/// them that exists.
const OF_THE_IMAGE: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/boot"];

/// Files of the caller's /etc that tell a program who and where it is.
const IDENTITY_FILES: [&str; 4] = ["/etc/resolv.conf", "/etc/hosts", "/etc/passwd", "/etc/group"];

/// Where the new root may be put together; any directory does, it is covered for a moment in our
/// own mount table only.
const STAGING_DIRECTORIES: [&str; 4] = ["/tmp", "/run", "/mnt", "/var"];

/// Variables that name libraries of the caller's root for the dynamic loader, which would find
/// other files under them.
const LOADER_VARIABLES: [&str; 3] = ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT"];

/// The program to run, and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnterPlan {
    /// The root directory of the image, as mounted.
    pub root: PathBuf,
    /// The program and its arguments; the program is searched for in the image.
    pub command: Vec<OsString>,
    /// Further files and directories of the caller: `(source, target)`, the target absolute.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Directory to start in; by default the caller's current one.
    pub cwd: Option<PathBuf>,
    /// Variables to set, over those of the caller.
    pub env: Vec<(OsString, OsString)>,
    /// Use a user namespace although root needs none.
    pub own_users: bool,
    /// A seccomp profile for the program: the caller of [`enter_by`] reads and installs it.
    pub seccomp: Option<PathBuf>,
    /// Set by `run` for the process it starts: the kernel ends the program when `run` ends, and
    /// signals that `run` blocked for itself reach the program.
    pub ends_with_parent: bool,
}

impl EnterPlan {
    /// Runs `command` in `root`, all else as usual.
    pub fn new(root: impl Into<PathBuf>, command: impl IntoIterator<Item = impl Into<OsString>>) -> EnterPlan {
        EnterPlan {
            root: root.into(),
            command: command.into_iter().map(Into::into).collect(),
            binds: Vec::new(),
            cwd: None,
            env: Vec::new(),
            seccomp: None,
            own_users: false,
            ends_with_parent: false,
        }
    }
}

/// Becomes the program of `plan`. Returns only if that fails.
///
/// # Errors
/// The step that failed, with the setting that forbids it where one is known;
/// [`MountError::exit_code`] is what a shell would exit with.
pub fn enter(plan: &EnterPlan) -> Result<Infallible, MountError> {
    enter_by(plan, Command::exec)
}

/// The same, with another way to become the program at the very end: `execute` returns only if that
/// fails.
///
/// # Errors
/// Those of [`enter`].
pub fn enter_by(plan: &EnterPlan, execute: impl FnOnce(&mut Command) -> io::Error) -> Result<Infallible, MountError> {
    let program = plan.command.first().ok_or_else(|| MountError::CommandMissing { command: String::new() })?;
    // All that can be decided in the old root is decided there: names mean something else later.
    let current = std::env::current_dir().ok();
    let image = canonical("enter", &plan.root)?;
    namespace::unshare(plan.own_users)?;
    let layout = layout::plan(&image, &binds(plan, &image, current.as_deref())?)?;
    change_root(&layout)?;
    match &plan.cwd {
        Some(cwd) => std::env::set_current_dir(cwd).map_err(|error| MountError::step("change to", cwd, error))?,
        None => {
            let wanted = current.unwrap_or_else(|| PathBuf::from("/"));
            if std::env::set_current_dir(wanted).is_err() {
                std::env::set_current_dir("/").map_err(|error| MountError::step("change to", "/", error))?;
            }
        }
    }
    if plan.ends_with_parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
            .map_err(|error| MountError::step("watch the parent of", program, error))?;
        // `run` has blocked them for itself, and this process inherited that.
        host::signals::unblock().map_err(|error| MountError::step("receive signals for", program, error))?;
    }
    let mut command = Command::new(program);
    command.args(&plan.command[1..]).env("PATH", SEARCH_PATH);
    for variable in LOADER_VARIABLES {
        command.env_remove(variable);
    }
    command.envs(plan.env.iter().map(|(name, value)| (name, value)));
    let search_path = plan.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_os_str());
    if let Some(obstacle) = startable::obstacle(program, search_path.unwrap_or(OsStr::new(SEARCH_PATH))) {
        let command = program.to_string_lossy().into_owned();
        return Err(MountError::CommandFailed { command, source: io::Error::other(obstacle) });
    }
    Err(not_executed(program, execute(&mut command)))
}

fn not_executed(program: &OsStr, error: io::Error) -> MountError {
    let command = program.to_string_lossy().into_owned();
    // A path that is there but "not found" lacks its interpreter.
    let is_there = command.contains('/') && fs::symlink_metadata(program).is_ok();
    if error.kind() == io::ErrorKind::NotFound && !is_there {
        MountError::CommandMissing { command }
    } else {
        MountError::CommandFailed { command, source: error }
    }
}

fn canonical(step: &'static str, path: &Path) -> Result<PathBuf, MountError> {
    fs::canonicalize(path).map_err(|error| MountError::step(step, path, error))
}

/// Files and directories of the caller, in the order in which they are bound.
fn binds(plan: &EnterPlan, image: &Path, current: Option<&Path>) -> Result<Vec<Bind>, MountError> {
    let mut binds = Vec::new();
    let mut bring = |path: &Path| {
        // Files that the caller lacks are left out.
        if let Ok(source) = fs::canonicalize(path) {
            let is_directory = source.is_dir();
            binds.push(Bind { source, target: path.to_path_buf(), is_directory, is_explicit: false });
        }
    };
    for path in BROUGHT {
        bring(Path::new(path));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    if let Some(home) = home.filter(|home| home.is_absolute() && home != Path::new("/") && home.is_dir()) {
        bring(&home);
    }
    if let Some(current) = current.filter(|current| *current != Path::new("/")) {
        let of_the_image = OF_THE_IMAGE.iter().any(|folder| current.starts_with(folder))
            && layout::resolve(image, current).is_some_and(|found| found.is_dir());
        if !of_the_image {
            bring(current);
        }
    }
    for path in IDENTITY_FILES.map(Path::new) {
        if !is_link(image, path) && path.is_file() {
            bring(path);
        }
    }
    for (source, target) in &plan.binds {
        let source = canonical("bind", source)?;
        if !target.is_absolute() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the target is not an absolute path");
            return Err(MountError::step("bind to", target, error));
        }
        let is_directory = source.is_dir();
        binds.push(Bind { source, target: target.clone(), is_directory, is_explicit: true });
    }
    Ok(binds)
}

/// Whether the image has a symbolic link at `path`: then the image has arranged for that file
/// itself.
fn is_link(image: &Path, path: &Path) -> bool {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
    layout::resolve(image, folder)
        .and_then(|folder| fs::symlink_metadata(folder.join(name)).ok())
        .is_some_and(|metadata| metadata.is_symlink())
}

/// Builds the new root and moves into it.
fn change_root(layout: &Layout) -> Result<(), MountError> {
    let staging = STAGING_DIRECTORIES
        .iter()
        .map(Path::new)
        .find(|path| path.is_dir())
        .ok_or_else(|| MountError::step("find", "/tmp", io::Error::from(io::ErrorKind::NotFound)))?;
    mount_staging(staging)?;
    let (new, old) = (staging.join("new"), staging.join("old"));
    for path in [&new, &old] {
        make_directory(path)?;
    }
    match nix::unistd::pivot_root(staging, &old) {
        Ok(()) => {}
        // The root file system of a kernel that booted without one of its own cannot be moved.
        Err(nix::Error::EINVAL) => return change_root_in_place(layout, staging),
        Err(error) => return Err(MountError::step("make a new root at", staging, error)),
    }
    enter_directory(Path::new("/"))?;
    let (new, old) = (Path::new("/new"), Path::new("/old"));
    build_root(layout, new, old)?;
    rustix::mount::unmount(old, UnmountFlags::DETACH)
        .map_err(|error| MountError::step("leave the old root", old, error))?;
    enter_directory(new)?;
    // The new root is mounted over the staging directory, which is then unmounted (pivot_root(2),
    // "." trick).
    nix::unistd::pivot_root(".", ".").map_err(|error| MountError::step("move into", new, error))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)
        .map_err(|error| MountError::step("leave the staging directory at", "/", error))?;
    enter_directory(Path::new("/"))
}

/// The same without moving the old root: it stays, out of reach of names.
fn change_root_in_place(layout: &Layout, staging: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(staging, UnmountFlags::DETACH)
        .map_err(|error| MountError::step("leave the staging directory at", staging, error))?;
    let private = PrivateDirectory::new(Purpose::Run)?;
    mount_staging(private.path())?;
    let new = private.path().join("new");
    make_directory(&new)?;
    build_root(layout, &new, Path::new("/"))?;
    nix::unistd::chroot(&new).map_err(|error| MountError::step("move into", &new, error))?;
    // Its name is gone with the old root; the next mount of this user clears the directory away.
    std::mem::forget(private);
    enter_directory(Path::new("/"))
}

/// A file system in memory to build on: it holds only empty directories and files, and links.
fn mount_staging(path: &Path) -> Result<(), MountError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("runnel-root", path, "tmpfs", flags, Some(c"mode=0755")).map_err(|source| MountError::Step {
        step: "mount a tmpfs on",
        path: path.to_path_buf(),
        source: source.into(),
        hint: if source == Errno::PERM || source == Errno::ACCESS {
            "AppArmor or SELinux restricts mounts in user namespaces here; run this as root"
        } else {
            ""
        },
    })
}

fn build_root(layout: &Layout, new: &Path, old: &Path) -> Result<(), MountError> {
    rustix::mount::mount_bind(new, new).map_err(|error| MountError::step("prepare", new, error))?;
    build(&layout.root, new, old)?;
    for late in &layout.late {
        bind(&late.source, &new.join(relative(&late.target)), old)?;
    }
    // The rest of the root is read-only, like the image itself.
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount_remount(new, flags, c"").map_err(|error| MountError::step("make read-only", new, error))
}

fn build(nodes: &BTreeMap<OsString, Node>, folder: &Path, old: &Path) -> Result<(), MountError> {
    for (name, node) in nodes {
        let path = folder.join(name);
        match node {
            Node::Directory(inner) => {
                make_directory(&path)?;
                build(inner, &path, old)?;
            }
            Node::Link(target) => {
                symlink(target, &path).map_err(|error| MountError::step("make the link", &path, error))?;
            }
            Node::BindDirectory(source) => {
                make_directory(&path)?;
                bind(source, &path, old)?;
            }
            Node::BindFile(source) => {
                fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o644)
                    .open(&path)
                    .map_err(|error| MountError::step("create", &path, error))?;
                bind(source, &path, old)?;
            }
        }
    }
    Ok(())
}

/// Binds with all mounts below: a user namespace may not show what lies under a mount it did not
/// make.
fn bind(source: &Path, target: &Path, old: &Path) -> Result<(), MountError> {
    rustix::mount::mount_bind_recursive(old.join(relative(source)), target)
        .map_err(|error| MountError::step("bind into the new root", source, error))
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn make_directory(path: &Path) -> Result<(), MountError> {
    fs::DirBuilder::new().mode(0o755).create(path).map_err(|error| MountError::step("create", path, error))
}

fn enter_directory(path: &Path) -> Result<(), MountError> {
    std::env::set_current_dir(path).map_err(|error| MountError::step("change to", path, error))
}
