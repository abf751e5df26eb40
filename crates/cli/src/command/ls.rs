//! `runnel ls`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use client::{Config, Session};
use connection::{Target, Waiting};
use image::{Kind, Metadata};
use units::InodeId;

use crate::command::signed::NameArgs;
use crate::command::trust::TrustArgs;
use crate::failure;

/// List a directory of an image, local or on a server
///
/// Names are printed as the bytes they are; on a terminal, control and bidirectional characters of
/// names as escapes.
#[derive(clap::Args)]
pub struct Args {
    /// app.rnl, runnel://host/name (runnels:// for TLS), or http://host/path/app.rnl
    image: String,
    /// Path inside the image
    #[arg(default_value = "/")]
    path: String,
    /// Modes, owners, sizes and times of change (UTC)
    #[arg(short, long)]
    long: bool,
    /// The whole tree below the path
    #[arg(short = 'R', long)]
    recursive: bool,

    #[command(flatten)]
    names: NameArgs,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Prints names, one a line, as the bytes they are.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config {
        connections: 1,
        waiting: Waiting::SOFT_DEFAULT,
        connection: args.trust.connection()?,
        signed: args.names.signed()?,
        ..Config::default()
    };
    let session = Session::open(&Target::parse(&args.image)?, config)?;
    let metadata = session.metadata();
    let inode = metadata
        .resolve_following(args.path.as_bytes())
        .ok_or_else(|| failure::not_found(format!("{}: {} is not in the image", args.image, args.path)))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let is_directory = metadata.inode(inode).is_some_and(|inode| inode.kind() == Kind::Dir);
    if is_directory {
        list(metadata, inode, b"", &args, &mut out)?;
    } else {
        line(metadata, inode, args.path.as_bytes(), &args, &mut out)?;
    }
    out.flush().context("standard output")?;
    session.shutdown();
    Ok(ExitCode::SUCCESS)
}

fn list(metadata: &Metadata, top: InodeId, prefix: &[u8], args: &Args, out: &mut dyn Write) -> std::io::Result<()> {
    // An explicit stack: an image may be as deep as it likes.
    let mut open = vec![(top, prefix.to_vec())];
    while let Some((directory, prefix)) = open.pop() {
        let mut below = Vec::new();
        for entry in metadata.entries(directory) {
            let mut path = prefix.clone();
            path.extend_from_slice(entry.name);
            line(metadata, entry.inode, &path, args, out)?;
            if args.recursive && entry.kind == Kind::Dir {
                path.push(b'/');
                below.push((entry.inode, path));
            }
        }
        open.extend(below.into_iter().rev());
    }
    Ok(())
}

fn line(metadata: &Metadata, id: InodeId, path: &[u8], args: &Args, out: &mut dyn Write) -> std::io::Result<()> {
    if args.long
        && let Some(inode) = metadata.inode(id)
    {
        write!(
            out,
            "{}{} {:>3} {:>5}:{:<5} {:>12} {} ",
            letter(inode.kind()),
            permissions(inode.mode()),
            inode.nlink(),
            inode.uid(),
            inode.gid(),
            inode.size(),
            units::date(inode.mtime().0),
        )?;
    }
    write_name(path, out)?;
    if args.long
        && let Some(target) = metadata.symlink(id)
    {
        out.write_all(b" -> ")?;
        write_name(target, out)?;
    }
    out.write_all(b"\n")
}

/// A name as the bytes it is; on a terminal with escapes for what would steer that.
fn write_name(name: &[u8], out: &mut dyn Write) -> std::io::Result<()> {
    match std::io::stdout().is_terminal() {
        true => out.write_all(units::printable_line(name).as_bytes()),
        false => out.write_all(name),
    }
}

/// The twelve permission bits as `ls` writes them.
fn permissions(mode: u32) -> String {
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    let mut text = String::with_capacity(9);
    for (shift, (bit, with, without)) in [6, 3, 0].into_iter().zip(special) {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & bit != 0) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn letter(kind: Kind) -> char {
    match kind {
        Kind::File => '-',
        Kind::Dir => 'd',
        Kind::Symlink => 'l',
        Kind::Char => 'c',
        Kind::Block => 'b',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
    }
}
