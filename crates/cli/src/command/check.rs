//! `runnel check`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use image::{Limits, Metadata};

use crate::{failure, progress};

/// Verify every byte of an image file
#[derive(clap::Args)]
pub struct Args {
    /// The image file
    image: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Checks the metadata, the hash of every block and of every chunk, and the actions that travel
/// with the image.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::no_address(&args.image)?;
    let name = args.image.display().to_string();
    let file = client::ImageFile(host::file::open(&args.image).with_context(|| name.clone())?);
    let bar = progress::bytes(1, "checking");
    let report = image::check(&file, &Limits::default(), &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })
    .with_context(|| name.clone());
    bar.finish_and_clear();
    let report = report?;
    let metadata = Metadata::open(&file, &Limits::default()).with_context(|| name.clone())?;
    super::dump::packed_actions(&file, &metadata).with_context(|| name.clone())?;
    if args.json {
        let json = serde_json::json!({
            "id": report.id.to_string(), "file_bytes": report.file_bytes, "metadata_bytes": report.metadata_bytes,
            "inodes": report.inodes, "chunks": report.chunks, "blocks": report.blocks,
            "stored_bytes": report.stored_bytes, "raw_bytes": report.raw_bytes,
        });
        outln!("{json}");
    } else {
        outln!("{name}: ok, {}", report.id);
        outln!("{} inodes, {} chunks in {} blocks", report.inodes, report.chunks, report.blocks);
    }
    Ok(ExitCode::SUCCESS)
}
