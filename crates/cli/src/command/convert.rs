//! `runnel convert`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ::pack::{Layout, Source, TarInput};
use ::sandbox::{Role, Sandbox};
use anyhow::Context;

use crate::command::foreign::{Cleanup, Stream, missing};
use crate::command::pack;
use crate::command::sandboxed::folders_of;
use crate::failure;

/// Pack a SquashFS or EROFS image anew, read by its own tools; options are those of pack
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Go on where the tools cannot keep everything: owners, devices and security attributes
    /// without root and sqfs2tar; hard links, set-user-id bits and extended attributes with
    /// fsck.erofs before 1.8, so with that of Debian 12
    #[arg(long)]
    lossy: bool,

    #[command(flatten)]
    pack: pack::Args,
}

/// The help of pack's arguments as far as they mean something here.
pub fn with_help(command: clap::Command) -> clap::Command {
    let command = command.mut_arg("source", |argument| argument.help("SquashFS or EROFS image"));
    ["closure", "include", "root", "layout", "select", "one_file_system"]
        .into_iter()
        .fold(command, |command, name| command.mut_arg(name, |argument| argument.hide(true)))
}

/// The format of an image, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Squashfs,
    Erofs,
}

/// Converts.
pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    if let Some(option) = args.pack.source_option() {
        return Err(failure::usage(format!("{option} is for pack; convert reads one SquashFS or EROFS image")));
    }
    let Some(input) = args.pack.source.take() else {
        return Err(failure::usage("convert needs a SquashFS or EROFS image"));
    };
    let form = detect(&input)?;
    let output = args.pack.output.clone();
    if fs::symlink_metadata(&output).is_ok_and(|about| !about.is_file()) {
        anyhow::bail!("{} is there and not a regular file", output.display());
    }
    args.pack.sandbox.enter(&sandbox(&args.pack, &input))?;
    let cleanup = Cleanup::new()?;
    let lossy = args.lossy;
    pack::run_from(args.pack, |_| match form {
        Form::Squashfs => from_squashfs(&input, &output, lossy, &cleanup),
        Form::Erofs => from_erofs(&input, &output, lossy, &cleanup),
    })
}

/// The sandbox for unpacking and packing.
fn sandbox(args: &pack::Args, input: &Path) -> Sandbox {
    let beside = folders_of([args.output.as_path()]);
    let written = temporary_folder().into_iter().chain(beside).filter(|folder| folder.is_dir());
    args.sandbox(Role::Converter).read([input]).write(written).execute(tools())
}

/// The tools that are installed, with the interpreters and libraries that they need.
fn tools() -> Vec<PathBuf> {
    let root = ::pack::LocalRoot::new("/");
    let mut finder = elf::Finder::new(&root);
    let folders: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    let places = TOOLS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let mut found: Vec<PathBuf> = places.filter_map(|place| fs::canonicalize(place).ok()).collect();
    for tool in &found {
        // A program that cannot be parsed does not start either, and reports that then.
        let _ = finder.program(tool.as_os_str().as_bytes());
    }
    found.extend(finder.finish().paths.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))));
    found.retain(|path| path.is_file());
    found
}

/// `hsqs` at the start, or the magic number of EROFS in its superblock at 1024.
fn detect(path: &Path) -> anyhow::Result<Form> {
    let shown = || path.display().to_string();
    let file = File::open(path).with_context(shown)?;
    if !file.metadata().with_context(shown)?.is_file() {
        return Err(failure::usage(format!("{} is not a regular file", path.display())));
    }
    let at = |offset: u64| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, offset).is_ok().then_some(bytes)
    };
    match (at(0), at(1024)) {
        (Some([b'h', b's', b'q', b's']), _) => Ok(Form::Squashfs),
        (_, Some([0xe2, 0xe1, 0xf5, 0xe0])) => Ok(Form::Erofs),
        _ => Err(failure::corrupt(format!("{} is neither a SquashFS nor an EROFS image", path.display()))),
    }
}

/// The tools that read images.
const TOOLS: [&str; 3] = ["sqfs2tar", "unsquashfs", "fsck.erofs"];

fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("--help")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Refuses to lose what only root can restore, unless that was asked for.
fn need_root(lossy: bool, hint: &str) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if lossy {
        tell!("note: without root: all files become those of this user, devices and security attributes get lost");
        return Ok(());
    }
    anyhow::bail!("without root, owners, devices and security attributes would get lost\nhint: {hint}")
}

/// As a stream of tar by sqfs2tar, which loses nothing and needs no root; else through a folder.
fn from_squashfs(input: &Path, output: &Path, lossy: bool, cleanup: &Cleanup) -> anyhow::Result<Source> {
    if is_installed("sqfs2tar") {
        let mut command = Command::new("sqfs2tar");
        // The root as `./`, so that its attributes are there too.
        command.args(["--root-becomes", "."]).arg(input).stdin(Stdio::null()).stdout(Stdio::piped());
        let running = cleanup.start(command, "squashfs-tools-ng")?;
        let reader = Box::new(Stream(running));
        let input = TarInput::Stream { reader, name: input.display().to_string() };
        return Ok(Source::Tar { input, layout: Layout::Files });
    }
    if !is_installed("unsquashfs") {
        return Err(missing("unsquashfs", "squashfs-tools"));
    }
    need_root(lossy, "run it as root, install sqfs2tar (Debian package squashfs-tools-ng), or give --lossy")?;
    let folder = folder(output, cleanup)?;
    let mut command = Command::new("unsquashfs");
    command.args(["-no-progress", "-quiet"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("-user-xattrs");
    }
    command.arg("-dest").arg(&folder).arg(input);
    extract(command, "squashfs-tools", folder, lossy, cleanup)
}

/// Attributes that version 1.5 does not restore.
const LOST_BY_OLD_FSCK: &str = "hard links, set-user-id bits and extended attributes";

/// Through a folder; there is no other way.
fn from_erofs(input: &Path, output: &Path, lossy: bool, cleanup: &Cleanup) -> anyhow::Result<Source> {
    let help = Command::new("fsck.erofs").arg("--help").stdin(Stdio::null()).output();
    let help = help.map_err(|_| missing("fsck.erofs", "erofs-utils"))?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned() + &String::from_utf8_lossy(&help.stderr);
    if !help.contains("--extract") {
        anyhow::bail!(
            "this fsck.erofs cannot extract\nhint: version 1.5 or later of the Debian package erofs-utils can"
        );
    }
    need_root(lossy, "run it as root, or give --lossy")?;
    let folder = folder(output, cleanup)?;
    let mut command = Command::new("fsck.erofs");
    command.arg(format!("--extract={}", folder.to_str().context("the path of the folder is not UTF-8")?));
    if help.contains("xattrs") {
        command.arg("--xattrs");
    } else if lossy {
        tell!("note: this fsck.erofs loses {LOST_BY_OLD_FSCK}");
    } else {
        anyhow::bail!(
            "this fsck.erofs would lose {LOST_BY_OLD_FSCK}\n\
             hint: version 1.8 of the Debian package erofs-utils extracts them, or give --lossy"
        );
    }
    command.arg(input);
    extract(command, "erofs-utils", folder, lossy, cleanup)
}

/// Where to extract to: below $TMPDIR, else beside the output, where there must be room for the
/// image anyway.
fn folder(output: &Path, cleanup: &Cleanup) -> anyhow::Result<PathBuf> {
    Ok(cleanup.directory(output, temporary_folder().as_deref())?.join("root"))
}

fn temporary_folder() -> Option<PathBuf> {
    std::env::var_os("TMPDIR").map(PathBuf::from).filter(|path| path.is_dir())
}

fn extract(
    mut command: Command,
    package: &str,
    folder: PathBuf,
    lossy: bool,
    cleanup: &Cleanup,
) -> anyhow::Result<Source> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    cleanup.start(command, package)?.finish_unless(|said| lossy && only_lacks_root(said))?;
    if !folder.is_dir() {
        anyhow::bail!("{} was not made", folder.display());
    }
    Ok(Source::Directory { path: folder, one_file_system: false, layout: Layout::Files })
}

/// Whether all that unsquashfs complains of is that devices cannot be made without root. It then
/// has made all else.
fn only_lacks_root(said: &str) -> bool {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    lines.peek().is_some() && lines.all(|line| line.starts_with("create_inode:") && line.ends_with("not superuser!"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_root_alone_can_do_is_forgiven() {
        let device = "create_inode: could not create block device root/disk, because you're not superuser!\n";
        assert!(only_lacks_root(device));
        assert!(only_lacks_root(&format!("\n{device}{device}")));
        assert!(!only_lacks_root(""));
        assert!(!only_lacks_root(&format!("{device}read_block: failed to read block\n")));
    }
}
