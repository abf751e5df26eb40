//! `runnel cat`.

use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc;

use anyhow::Context;
use client::{Config, Session};
use connection::{Target, Waiting};
use image::Kind;
use units::Token;

use crate::command::signed::NameArgs;
use crate::command::trust::TrustArgs;
use crate::failure;

/// Bytes read at a time: some blocks, so that readahead has something to do.
const READ_BYTES: u32 = 256 * 1024;

/// Write a file of an image, local or on a server, to standard output
#[derive(clap::Args)]
pub struct Args {
    /// app.rnl, runnel://host/name (runnels:// for TLS), or http://host/path/app.rnl
    image: String,
    /// Path inside the image; symbolic links are followed
    path: String,

    #[command(flatten)]
    names: NameArgs,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Reads through the same session as a mount, so every byte is verified.
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
    let id = metadata
        .resolve_following(args.path.as_bytes())
        .ok_or_else(|| failure::not_found(format!("{}: {} is not in the image", args.image, args.path)))?;
    let inode = metadata.inode(id).context("the path leads to no inode")?;
    if inode.kind() != Kind::File {
        return Err(failure::usage(format!("{}: {} is not a regular file", args.image, args.path)));
    }
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    while offset < inode.size() {
        let bytes = u64::from(READ_BYTES).min(inode.size() - offset) as u32;
        let (answer, answers) = mpsc::sync_channel(1);
        let done = Box::new(move |result: Result<&[u8], client::ReadError>| {
            // The receiver lives until the answer arrived.
            let _ = answer.send(result.map(<[u8]>::to_vec));
        });
        session.read(Token::default(), id, offset, bytes, done);
        let data = answers
            .recv()
            .context("the session ended")?
            .with_context(|| format!("{}: {} at byte {offset}", args.image, args.path))?;
        out.write_all(&data).context("standard output")?;
        offset += u64::from(bytes);
    }
    session.shutdown();
    Ok(ExitCode::SUCCESS)
}
