//! `runnel export`.

mod pax;

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ::pack::{FileImage, FileOutput, Output};
use anyhow::Context;
use clap::ValueEnum;
use image::{Limits, Metadata};

use crate::command::foreign::{Cleanup, missing};
use crate::failure;
use pax::Reader;

/// Write an image as a tar archive or a SquashFS image
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("form").required(true))]
pub struct Args {
    /// The image file
    image: PathBuf,

    /// Write a tar archive (pax) to this file; - for standard output
    #[arg(long, value_name = "FILE", group = "form")]
    tar: Option<PathBuf>,

    /// Write a SquashFS image to this file, by mksquashfs or sqfstar (package squashfs-tools)
    #[arg(long, value_name = "FILE", group = "form")]
    squashfs: Option<PathBuf>,

    /// Replace the output if it is there
    #[arg(short, long)]
    force: bool,

    /// With --squashfs: how blocks are compressed
    #[arg(long, value_enum, requires = "squashfs", conflicts_with = "tar")]
    codec: Option<Compression>,

    /// With --squashfs: compression level of gzip or zstd
    #[arg(long, value_name = "N", requires = "codec", conflicts_with = "tar")]
    level: Option<u32>,

    /// With --squashfs: bytes of a block, a power of two from 4096 to 1 MiB
    #[arg(long, value_name = "BYTES", requires = "squashfs", conflicts_with = "tar")]
    block_size: Option<u32>,
}

/// Compressions of SquashFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compression {
    Gzip,
    Lz4,
    Xz,
    Zstd,
}

/// Package of the tools.
const PACKAGE: &str = "squashfs-tools";

/// Exports.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::no_address(&args.image)?;
    let options = squashfs_options(&args)?;
    let cleanup = Cleanup::new()?;
    check_output(&args)?;
    let image = FileImage::open(&args.image)?;
    let name = || args.image.display().to_string();
    let metadata = Metadata::open(&image, &Limits::default()).with_context(name)?;
    let lost = match (&args.tar, &args.squashfs) {
        (Some(path), _) if path == Path::new("-") => {
            let mut out = BufWriter::new(io::stdout().lock());
            let lost = pax::write(&metadata, &image, Reader::Any, &mut out)?;
            out.flush().context("standard output")?;
            lost
        }
        (Some(path), _) => {
            let mut output = FileOutput::create(path)?;
            let mut out = BufWriter::with_capacity(1 << 20, Appending(&mut output));
            let lost = pax::write(&metadata, &image, Reader::Any, &mut out)?;
            out.flush().with_context(|| path.display().to_string())?;
            drop(out);
            output.commit().with_context(|| path.display().to_string())?;
            lost
        }
        (None, Some(path)) => squashfs(&metadata, &image, path, &options, &cleanup)?,
        (None, None) => return Err(failure::usage("give --tar FILE or --squashfs FILE")),
    };
    for (count, what) in [
        (lost.sockets, "sockets are left out: tar archives cannot hold them"),
        (lost.attributes, "extended attributes are left out: this form has no place for their names"),
        (lost.times, "modification times are replaced by the nearest that SquashFS can hold"),
    ] {
        if count > 0 {
            tell!("note: {count} {what}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to write over the image itself, and over anything else unless told to.
fn check_output(args: &Args) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Some(path) = args.tar.as_ref().or(args.squashfs.as_ref()) else { return Ok(()) };
    let Ok(there) = fs::metadata(path) else { return Ok(()) };
    let name = path.display();
    if fs::metadata(&args.image).is_ok_and(|image| (image.dev(), image.ino()) == (there.dev(), there.ino())) {
        return Err(failure::usage(format!("{name} is the image itself; give the output another name")));
    }
    if there.is_file() && there.len() > 0 && !args.force && path != Path::new("-") {
        return Err(failure::usage(format!("{name} is there; give another name, or --force to replace it")));
    }
    Ok(())
}

/// An [`Output`] as a writer.
struct Appending<'a>(&'a mut FileOutput);

impl Write for Appending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The options of the tool for what was asked.
fn squashfs_options(args: &Args) -> anyhow::Result<Vec<String>> {
    let mut options = Vec::new();
    if let Some(codec) = args.codec {
        let name = codec.to_possible_value().context("a codec without a name")?.get_name().to_string();
        options.extend(["-comp".into(), name]);
        match (codec, args.level) {
            (_, None) => {}
            (Compression::Gzip, Some(level @ 1..=9)) | (Compression::Zstd, Some(level @ 1..=22)) => {
                options.extend(["-Xcompression-level".into(), level.to_string()]);
            }
            (Compression::Gzip | Compression::Zstd, Some(level)) => {
                return Err(failure::usage(format!("--level is {level}, must be 1 to 9 for gzip, 1 to 22 for zstd")));
            }
            _ => return Err(failure::usage("--level is for --codec gzip and zstd")),
        }
    }
    if let Some(bytes) = args.block_size {
        if !bytes.is_power_of_two() || !(4096..=1 << 20).contains(&bytes) {
            return Err(failure::usage(format!("--block-size is {bytes}, must be a power of two, 4096 to 1048576")));
        }
        options.extend(["-b".into(), bytes.to_string()]);
    }
    Ok(options)
}

/// Feeds the archive to the tool, which writes into a folder beside the output; the result is moved
/// when complete.
fn squashfs(
    metadata: &Metadata,
    image: &FileImage,
    path: &Path,
    options: &[String],
    cleanup: &Cleanup,
) -> anyhow::Result<pax::Lost> {
    if fs::symlink_metadata(path).is_ok_and(|about| !about.is_file()) {
        anyhow::bail!("{} is there and not a regular file", path.display());
    }
    let unfinished = cleanup.directory(path, None)?.join("image");
    let root = metadata.inode(units::InodeId::ROOT).context("the image has no root")?;
    let mut command = tool(&unfinished)?;
    if is_sqfstar(&command) && options.iter().any(|option| option.starts_with("-X")) {
        // Seen in 4.5.1: it takes the value of every such option for missing.
        anyhow::bail!("this sqfstar takes no --level\nhint: version 4.6 of the Debian package {PACKAGE} does");
    }
    // The root's attributes are not taken from the archive.
    let time = root.mtime_sec().clamp(0, u32::MAX.into()).to_string();
    command.args(["-no-progress", "-quiet", "-root-mode", &format!("{:o}", root.permissions()), "-root-time", &time]);
    command.args(["-root-uid", &root.uid().to_string(), "-root-gid", &root.gid().to_string()]);
    // Not the time of day: the same image gives the same bytes.
    command.args(["-mkfs-time", &time]).args(options);
    if is_sqfstar(&command) {
        command.arg(&unfinished);
        // Seen in 4.5.1: it takes these options and writes 0:0 and the time of day all the same.
        tell!(
            "note: this sqfstar does not keep owner and time of the root directory; version 4.6 of the Debian package \
             {PACKAGE} does"
        );
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut running = cleanup.start(command, PACKAGE)?;
    let input = running.input.take().context("the tool has a pipe")?;
    let mut input = BufWriter::with_capacity(1 << 20, input);
    let written = pax::write(metadata, image, Reader::Squashfs, &mut input).and_then(|lost| {
        let flushed = input.flush();
        flushed.map(|()| lost).map_err(|source| ::pack::PackError::Write { path: "the archive".into(), source })
    });
    // End of its input.
    drop(input);
    match written {
        // It ended early: what it said tells more than the broken pipe.
        Err(::pack::PackError::Write { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            running.finish()?;
            anyhow::bail!("the tool ended before it had read the archive")
        }
        Err(error) => Err(error.into()),
        Ok(lost) => {
            running.finish()?;
            fs::rename(&unfinished, path).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(lost)
        }
    }
}

const MKSQUASHFS: &str = "mksquashfs";
const SQFSTAR: &str = "sqfstar";

/// The program of this machine that makes a SquashFS image from an archive on its standard input:
/// mksquashfs from version 4.6 on, before that sqfstar, which came with 4.5.
fn tool(output: &Path) -> anyhow::Result<Command> {
    let asked = |name: &str| Command::new(name).arg("-version").stdin(Stdio::null()).output();
    if let Ok(said) = asked(MKSQUASHFS)
        && version(&said.stdout).is_some_and(|version| version >= (4, 6))
    {
        let mut command = Command::new(MKSQUASHFS);
        command.arg("-").arg(output).args(["-tar", "-noappend"]);
        return Ok(command);
    }
    match asked(SQFSTAR) {
        Ok(_) => Ok(Command::new(SQFSTAR)),
        Err(_) if asked(MKSQUASHFS).is_ok() => {
            anyhow::bail!(
                "this mksquashfs cannot read archives\nhint: version 4.5 or later of the Debian package {PACKAGE} can"
            )
        }
        Err(_) => Err(missing(MKSQUASHFS, PACKAGE)),
    }
}

fn is_sqfstar(command: &Command) -> bool {
    command.get_program() == std::ffi::OsStr::new(SQFSTAR)
}

/// The version in `mksquashfs version 4.5.1 (2022/03/17)`.
fn version(said: &[u8]) -> Option<(u32, u32)> {
    let text = String::from_utf8_lossy(said);
    let number = text.lines().next()?.split_once(" version ")?.1.split([' ', '-']).next()?;
    let mut parts = number.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_tools_print_them() {
        assert_eq!(version(b"mksquashfs version 4.5.1 (2022/03/17)\ncopyright"), Some((4, 5)));
        assert_eq!(version(b"mksquashfs version 4.10 (2030/01/01)\n"), Some((4, 10)));
        assert_eq!(version(b"mksquashfs version 4.7-4.7.5 (2025)\n"), Some((4, 7)));
        assert_eq!(version(b"nonsense"), None);
    }
}
