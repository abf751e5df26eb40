//! `runnel mount`.

mod confine;
pub mod helper;
mod seal;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ::mount::keeper::{Inherited, Keeping, ServiceManager, Started};
use ::mount::{
    Keeper, KernelMount, MountPoint, Mounted, Options, Owners, Stop, VolumeMount, VolumeOptions, keeper, mountpoint,
    serve_gone,
};
use anyhow::Context;
use client::{Config, Session};
use connection::{ImageName, Target, VolumeAt, Waiting};
use host::Exit;
use rustix::process::{Pid, Signal};

pub use self::seal::FsVerity;
use self::seal::SealArgs;
use crate::command::caching::CachePlace;
use crate::command::ready::ReadyFile;
use crate::command::sandboxed::SandboxArgs;
use crate::command::session::SessionArgs;
use crate::command::volume::{self, VolumeArgs};
use crate::failure;

/// Mount an image, from a server or a local file, or a volume of a server
#[derive(clap::Args)]
pub struct Args {
    /// runnel://host[:port]/name[:tag] (runnels:// for TLS), http://host/path/app.rnl, app.rnl, or
    /// runnel://host/volume/NAME
    target: String,
    /// The directory to mount on; what it holds is hidden meanwhile
    directory: PathBuf,

    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,

    /// Make the mount writable: changes go to this folder
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,

    /// Let other users use the mount (always so for root)
    #[arg(long, help_heading = "Rights")]
    allow_other: bool,

    /// Honour set-user-id bits of the image or volume, and file capabilities of the image
    #[arg(long, help_heading = "Rights")]
    allow_suid: bool,

    /// Let device nodes of the image or volume work
    #[arg(long, help_heading = "Rights")]
    allow_devices: bool,

    /// Let the kernel's EROFS serve the files (an image file, root, Linux 6.12): no server, no
    /// pushes
    #[arg(long, conflicts_with_all = ["overlay", "allow_other"])]
    kernel: bool,

    #[command(flatten)]
    seal: SealArgs,

    /// Refuse all changes to a volume (images are never changed)
    #[arg(long)]
    read_only: bool,

    /// Show and set the owners that the files of a volume have on the server, and let special files
    /// be made; or all belongs to who mounts (default: keep for root)
    #[arg(long, value_enum, value_name = "WHOSE", help_heading = "Rights")]
    owners: Option<OwnersArg>,

    /// Make the empty directory immutable first, so that nobody writes into it while nothing is
    /// mounted (root; `chattr -i` undoes it)
    #[arg(long)]
    immutable: bool,

    /// Write to this file once the mount is ready
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    volume: VolumeArgs,

    #[command(flatten)]
    session: SessionArgs,
}

/// Whose the files of a volume are.
#[derive(Clone, Copy, clap::ValueEnum)]
enum OwnersArg {
    /// Those whom the server tells
    Keep,
    /// All are those of who mounts
    User,
}

/// Mounts; in the background unless asked otherwise. With what a keeper left serves its mount.
pub fn run(args: Args, inherited: Option<Inherited>) -> anyhow::Result<ExitCode> {
    let target = Target::parse(&args.target)?;
    if let Some(inherited) = inherited {
        let stop = Stop::listen()?;
        let settings = settings(&args, &target)?;
        return serve(&args, target, settings, inherited.accept()?, &ReadyFile::none(), &stop);
    }
    let kernel_image = kernel_image(&args, &target)?;
    if matches!(target, Target::Volume(_)) && args.overlay.is_some() {
        return Err(failure::usage("--overlay is for images; changes of a volume go to its server"));
    }
    let is_service = args.foreground && std::env::var_os(DETACHED).is_none();
    let manager = if is_service { ServiceManager::find()? } else { None };
    if !manager.as_ref().is_some_and(ServiceManager::has_mount) {
        mountpoint::validate(&args.directory)?;
        if args.immutable && std::env::var_os(DETACHED).is_none() {
            mountpoint::make_immutable(&args.directory)?;
        }
    }
    if !args.foreground {
        return detach();
    }
    // Before any thread starts, so that SIGTERM and Ctrl-C end the mount instead of leaving it
    // behind.
    let stop = Stop::listen()?;
    let ready = ReadyFile::open(args.ready_file.as_deref())?;
    if let Some(image) = kernel_image {
        return mount_by_kernel(&args, image, &ready, &stop);
    }
    let settings = settings(&args, &target)?;
    if !args.sandbox.no_sandbox && args.overlay.is_none() {
        // The kernel makes changes in an overlay with the rights of the process that mounted it.
        ::sandbox::keep_rights_to_mount()?;
    }
    match keeper::keep(place(&args, &target)?, keeping(&target, &settings.0, manager), &stop)? {
        Started::Daemon(keeper) => serve(&args, target, settings, keeper, &ready, &stop),
        Started::Over(exit) => Ok(ExitCode::from(exit.follow())),
    }
}

fn settings(args: &Args, target: &Target) -> anyhow::Result<(Config, CachePlace)> {
    Ok((args.session.config()?, args.volume.caching.place(target)?))
}

/// A daemon, of which there may have been others before.
fn serve(
    args: &Args,
    target: Target,
    (config, cache): (Config, CachePlace),
    keeper: Arc<Keeper>,
    ready: &ReadyFile,
    stop: &Stop,
) -> anyhow::Result<ExitCode> {
    if !args.sandbox.no_sandbox {
        args.sandbox.enter_and_tell(&confine::sandbox(&target, &config, args.volume.folders(&cache)?, ready))?;
    }
    match &target {
        Target::Volume(at) => mount_volume(args, at, (config, &cache), keeper, ready, stop),
        _ => mount_image(args, target, (config, &cache), keeper, ready, stop),
    }
}

fn mount_image(
    args: &Args,
    mut target: Target,
    (config, cache): (Config, &CachePlace),
    keeper: Arc<Keeper>,
    ready: &ReadyFile,
    stop: &Stop,
) -> anyhow::Result<ExitCode> {
    let (cache, cache_problem) = cache.open();
    if let (Target::Remote(remote), Some(image)) = (&mut target, keeper.image()) {
        // The name may stand for another image by now.
        remote.image = ImageName::Id(image);
    }
    let options = Options { keeper: Some(Arc::clone(&keeper)), cache_problem, ..image_options(args) };
    let session = match stop.ending_during(|| Session::open_cached(&target, config, cache.as_ref())) {
        Err(error) if keeper.was_served() && error.is_gone() => {
            tell!("error: {error}");
            tell!("hint: programs get I/O errors for what they have not read yet; `runnel upgrade` looks for it again");
            serve_gone(options, stop)?;
            return Ok(ExitCode::FAILURE);
        }
        opened => opened?,
    };
    let mounted = Mounted::start(session, &args.directory, options)?;
    announce(ready, &keeper)?;
    mounted.wait_or_stop(stop)?;
    Ok(ExitCode::SUCCESS)
}

fn mount_volume(
    args: &Args,
    at: &VolumeAt,
    (config, cache): (Config, &CachePlace),
    keeper: Arc<Keeper>,
    ready: &ReadyFile,
    stop: &Stop,
) -> anyhow::Result<ExitCode> {
    let options = VolumeOptions { keeper: Some(Arc::clone(&keeper)), ..volume_options(args, at)? };
    let journal = keeper.stream_journal()?.map(Arc::new);
    let wanted = stream::Options { journal, ..args.volume.options(at, &config, args.read_only, cache.key.as_ref())? };
    let volume = stop.ending_during(|| volume::open(at, config.clone(), wanted, None))?;
    let mounted = VolumeMount::start(volume, &args.directory, options)?;
    announce(ready, &keeper)?;
    let unsent = mounted.wait_or_stop(stop)?;
    let lost = volume::tell_unsent(&args.directory, &unsent);
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn mount_by_kernel(args: &Args, image: &Path, ready: &ReadyFile, stop: &Stop) -> anyhow::Result<ExitCode> {
    let check = args.seal.check(image, &args.session.names)?;
    let mounted = KernelMount::start_checked(image, &args.directory, image_options(args), &check)?;
    if let Some(why) = mounted.not_sealed() {
        tell!("note: {} is not sealed with fs-verity: {why}", image.display());
    }
    if mounted.attributes_left_out() > 0 {
        let count = mounted.attributes_left_out();
        tell!("note: {count} extended attributes are of kinds that EROFS does not have; the mount lacks them");
    }
    tell_ready(ready)?;
    mounted.wait_or_stop(stop)?;
    Ok(ExitCode::SUCCESS)
}

fn image_options(args: &Args) -> Options {
    Options {
        name: short_name(&args.target),
        target: args.target.clone(),
        allow_other: args.allow_other || is_root(),
        allow_suid: args.allow_suid,
        allow_devices: args.allow_devices,
        overlay: args.overlay.clone(),
        ..Options::default()
    }
}

fn volume_options(args: &Args, at: &VolumeAt) -> anyhow::Result<VolumeOptions> {
    Ok(VolumeOptions {
        read_only: args.read_only,
        allow_other: args.allow_other || is_root(),
        allow_suid: args.allow_suid,
        allow_devices: args.allow_devices,
        owners: owners(args.owners),
        ..args.volume.mount_options(at, &args.target)?
    })
}

/// In a user name space of its own root has few users, so that most owners could not be shown.
fn owners(wanted: Option<OwnersArg>) -> Owners {
    let all_users =
        || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.trim().ends_with("4294967295"));
    match wanted {
        Some(OwnersArg::Keep) => Owners::Keep,
        None if is_root() && all_users() => Owners::Keep,
        Some(OwnersArg::User) | None => Owners::User,
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn place(args: &Args, target: &Target) -> anyhow::Result<MountPoint> {
    Ok(match target {
        Target::Volume(at) => volume_options(args, at)?.mount_point(&args.directory),
        _ => image_options(args).mount_point(&args.directory),
    })
}

/// What becomes of a mount whose daemon dies.
fn keeping(target: &Target, config: &Config, manager: Option<ServiceManager>) -> Keeping {
    let patience = match (target, config.waiting) {
        (Target::File(_), _) => Some(FILE_PATIENCE),
        (_, Waiting::Soft(patience)) => Some(patience),
        (_, Waiting::Hard) => None,
    };
    let is_volume = matches!(target, Target::Volume(_));
    Keeping {
        survives: true,
        is_volume,
        patience,
        on_ready: Box::new(leave_terminal),
        arguments: Some(std::env::args_os().collect()),
        manager,
        tell: |text| tell!("{text}"),
    }
}

/// The file to mount with --kernel, if that was asked for.
fn kernel_image<'a>(args: &Args, target: &'a Target) -> anyhow::Result<Option<&'a Path>> {
    match target {
        _ if !args.kernel => Ok(None),
        Target::File(path) => Ok(Some(path)),
        _ => Err(failure::usage(
            "--kernel needs an image file on this machine\nhint: leave it out to mount from a server",
        )),
    }
}

/// Announces the mount, unless that was done by an earlier daemon.
fn announce(ready: &ReadyFile, keeper: &Keeper) -> anyhow::Result<()> {
    // First the keeper: whoever is told may end it.
    keeper.ready()?;
    if !keeper.was_served() {
        tell_ready(ready)?;
    }
    Ok(())
}

/// Tells that the mount is ready: in the ready file, and to the process in the foreground.
fn tell_ready(ready: &ReadyFile) -> anyhow::Result<()> {
    ready.announce("ready\n")?;
    if std::env::var_os(DETACHED).is_some() {
        // The parent reads this line, then it and the terminal go their own way.
        outln!("ready");
        std::io::stdout().flush().context("standard output")?;
    }
    Ok(leave_terminal()?)
}

/// In the background nothing of a terminal stays open.
fn leave_terminal() -> std::io::Result<()> {
    if std::env::var_os(DETACHED).is_some() {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}

/// Marks the process in the background.
const DETACHED: &str = "RUNNEL_MOUNT_DETACHED";

/// Keeps glibc from holding freed memory in one arena per thread: worth 2 MB of a resident 10 MB.
/// musl has no such need.
const FRUGAL: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_TRIM_THRESHOLD_", "65536")];

/// How long a new daemon may fail to open an image file that an earlier one has served.
const FILE_PATIENCE: Duration = Duration::from_secs(10);

/// How long the background process may take before we say that it is slow. Fetching the metadata
/// over a very thin link takes a while; the process ends by itself if its server does not answer.
const DETACH_PATIENCE: Duration = Duration::from_secs(600);

/// Starts this same command in a session of its own and waits until it is ready or has failed.
fn detach() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new("setsid");
    command.arg(program).args(std::env::args_os().skip(1)).arg("--foreground").env(DETACHED, "1");
    for (name, value) in FRUGAL {
        command.env(name, value);
    }
    // The mask is inherited, and does no harm: the background process holds the same signals back.
    let stop = Stop::listen()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start setsid for the background process (package util-linux)")?;
    let mut out = child.stdout.take().context("the child has a pipe")?;
    match stop.wait_beside(out.as_fd(), DETACH_PATIENCE) {
        // End of file without a word: the child failed and has told why on standard error.
        Ok(None) if out.read(&mut [0u8; 8]).unwrap_or(0) > 0 => return Ok(ExitCode::SUCCESS),
        Ok(None) => {}
        Ok(Some(signal)) => {
            // Nobody waits for the mount any more.
            rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).context("the background process")?;
            child.wait().context("cannot wait for the background process")?;
            return Ok(ExitCode::from(Exit::Signal(signal).follow()));
        }
        Err(_) => {
            anyhow::bail!("the mount is not ready after {} s; it goes on in the background", DETACH_PATIENCE.as_secs())
        }
    }
    let status = child.wait().context("cannot wait for the background process")?;
    Ok(ExitCode::from(status.code().unwrap_or(1).clamp(1, 255) as u8))
}

/// The name for the mount table: the image's name without its server.
pub fn short_name(target: &str) -> String {
    let file = match target.split_once("://") {
        Some(("runnel" | "runnels", rest)) => return rest.split_once('/').map_or(rest, |(_, name)| name).to_string(),
        Some((_, rest)) => rest.split_once('?').map_or(rest, |(path, _)| path),
        None => target,
    };
    Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or("image").to_string()
}
