//! The errors of mounting, entering and redirecting. Each text names the object and, if there is
//! one, the next step, as a second line that begins with `hint:`.

use std::io;
use std::path::PathBuf;

use units::ImageId;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is missing.
    #[error("mount point {} does not exist\nhint: create it with `mkdir -p {}`", .path.display(), .path.display())]
    Missing {
        /// The mount point as given.
        path: PathBuf,
    },
    /// The mount point is no directory.
    #[error("mount point {} is not a directory", .path.display())]
    NotDirectory {
        /// The mount point as given.
        path: PathBuf,
    },
    /// An image is mounted there already.
    #[error("{} is already a runnel mount of {image}\nhint: `runnel umount {}` first", .path.display(), .path.display())]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// Name of the image mounted there.
        image: String,
    },
    /// Something else is mounted exactly there.
    #[error("mount point {} is in use: {kind} is mounted on it\nhint: choose an empty directory, or `umount {}` first", .path.display(), .path.display())]
    InUse {
        /// The mount point.
        path: PathBuf,
        /// File-system type of what is mounted there.
        kind: String,
    },
    /// The daemon that served this mount point died and left the mount behind.
    #[error("{} is a mount whose daemon is gone\nhint: `runnel umount {}` removes it", .path.display(), .path.display())]
    Stale {
        /// The mount point.
        path: PathBuf,
    },
    /// `umount` was asked for a path that is no mount of ours.
    #[error("{} is not a runnel mount\nhint: `runnel status` lists the live ones", .path.display())]
    NotMounted {
        /// The path as given.
        path: PathBuf,
    },
    /// The daemon of a mount has ended, but this user cannot unmount it.
    #[error(
        "{}: its daemon has ended, but the dead mount stays: {reason}\n\
         hint: as root, `runnel umount {}`; with `ln -s /proc/self/mounts /etc/mtab` users can do it themselves",
        .path.display(), .path.display()
    )]
    DeadEntry {
        /// The mount point.
        path: PathBuf,
        /// Why it cannot be taken away.
        reason: String,
    },
    /// The FUSE device cannot be opened.
    #[error("cannot open /dev/fuse: {source}\nhint: {hint}")]
    Device {
        /// The error of the kernel.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// One system call of a longer sequence failed.
    #[error("cannot {step} {}: {source}{}", .path.display(), hint_line(.hint))]
    Step {
        /// The step that failed, as a verb: "mount an overlay on".
        step: &'static str,
        /// To which path.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
        /// What to do about it; may be empty.
        hint: &'static str,
    },
    /// User namespaces cannot be used.
    #[error("cannot {step}: {source}\nhint: {hint}")]
    Namespace {
        /// The step that failed.
        step: &'static str,
        /// The error of the kernel.
        source: io::Error,
        /// The setting that forbids it.
        hint: &'static str,
    },
    /// The kernel's EROFS cannot be used for this image, here.
    #[error("cannot mount with the kernel's EROFS: {problem}\nhint: leave out --kernel to mount without it")]
    Kernel {
        /// The missing thing.
        problem: String,
    },
    /// An image file is another one than its publisher signed.
    #[error("{} is refused: {name} was signed as image {signed}, and this is {found}\nhint: fetch the signed one again, and put it in its place", .path.display())]
    OtherImage {
        /// The file.
        path: PathBuf,
        /// The name that it should have.
        name: String,
        /// What was signed.
        signed: ImageId,
        /// What the file holds.
        found: ImageId,
    },
    /// A sealed image file has other bytes than its publisher signed.
    #[error("{} is refused: {name} was signed with the fs-verity digest {signed}, and the kernel measures {found}\nhint: fetch it again, and put it in its place: a sealed file cannot be changed", .path.display())]
    OtherDigest {
        /// The file.
        path: PathBuf,
        /// The name that it should have.
        name: String,
        /// What was signed.
        signed: String,
        /// What the kernel measures.
        found: String,
    },
    /// An image file must be sealed and cannot be.
    #[error("{} is refused, since it cannot be sealed with fs-verity: {problem}\nhint: {hint}", .path.display())]
    NotSealed {
        /// The file.
        path: PathBuf,
        /// The obstacle.
        problem: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// The command to run inside an image does not exist there.
    #[error("{command}: not found in the image\nhint: give its full path, or set the search path with --env PATH=...")]
    CommandMissing {
        /// The command as given.
        command: String,
    },
    /// The command exists but cannot be executed.
    #[error("{command}: cannot be executed: {source}")]
    CommandFailed {
        /// The command as given.
        command: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The process that mounts for this one failed, or has ended.
    #[error("{problem}")]
    Keeper {
        /// Its message, or how it ended.
        problem: String,
    },
    /// The session with the image's source could not be opened.
    #[error(transparent)]
    Session(#[from] client::ClientError),
    /// A volume could not be opened.
    #[error(transparent)]
    Volume(#[from] stream::StreamError),
    /// A redirect configuration is wrong.
    #[error("{}:{line}: {key}: {problem}", .file.display())]
    Config {
        /// The configuration file.
        file: PathBuf,
        /// Line of the fault, from 1.
        line: usize,
        /// The key at fault, such as `image.paths`.
        key: String,
        /// The fault.
        problem: String,
    },
    /// A redirect refers to something its image does not have.
    #[error("{source_name} has no {}\nhint: `runnel ls` shows what the image holds", .path.display())]
    NotInImage {
        /// The image as configured.
        source_name: String,
        /// The path that was asked for.
        path: PathBuf,
    },
    /// A command that needs root was started without.
    #[error("{what} needs root\nhint: run it with sudo")]
    NeedsRoot {
        /// The requested name.
        what: &'static str,
    },
    /// A redirect is already active, or none is.
    #[error("{}: {problem}", .file.display())]
    Redirect {
        /// The configuration file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The directory for control sockets belongs to someone else or is open to others.
    #[error("{} is not a private directory of this user\nhint: remove it, or set XDG_RUNTIME_DIR", .path.display())]
    RuntimeDirectory {
        /// The directory.
        path: PathBuf,
    },
}

fn hint_line(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("\nhint: {hint}") }
}

impl MountError {
    /// A failed system call with its path and no further hint.
    pub(crate) fn step(step: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> MountError {
        MountError::Step { step, path: path.into(), source: source.into(), hint: "" }
    }

    /// The exit code a shell user expects: 127 for a missing command, 126 for one that cannot run;
    /// 25 for a file that is not what was signed, else 1.
    pub fn exit_code(&self) -> i32 {
        match self {
            MountError::CommandMissing { .. } => 127,
            MountError::CommandFailed { .. } => 126,
            MountError::OtherImage { .. } | MountError::OtherDigest { .. } | MountError::NotSealed { .. } => 25,
            _ => 1,
        }
    }
}

impl From<std::convert::Infallible> for MountError {
    fn from(never: std::convert::Infallible) -> MountError {
        match never {}
    }
}
