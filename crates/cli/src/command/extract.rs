//! `runnel extract`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use ::pack::ExtractOptions;
use anyhow::Context;
use image::{Limits, Metadata};
use indicatif::ProgressBar;

use crate::command::pack::Bars;
use crate::{failure, progress};

/// Write all files of an image into a directory
#[derive(clap::Args)]
pub struct Args {
    /// The image file
    image: PathBuf,
    /// The directory, made if it is not there; it must be empty
    #[arg(short = 'C', long, value_name = "DIR")]
    directory: PathBuf,
    /// Leave owners as they come
    #[arg(long)]
    no_owners: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Restores everything the caller may restore; notes say what could not be.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::no_address(&args.image)?;
    let name = args.image.display().to_string();
    let file = ::pack::FileImage::open(&args.image)?;
    let metadata = Metadata::open(&file, &Limits::default()).with_context(|| name.clone())?;
    let mut options = ExtractOptions::default();
    options.owners &= !args.no_owners;
    let bars = Bars(Mutex::new(ProgressBar::hidden()));
    let report = ::pack::extract(&metadata, &file, &args.directory, &options, &bars);
    bars.0.lock().expect("no bar panics").finish_and_clear();
    let report = report?;
    for note in &report.notes {
        tell!("note: {note}");
    }
    if args.json {
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        outln!("{} entries, {} in {:.1} s", report.entries, progress::human(report.bytes), report.seconds);
    }
    Ok(ExitCode::SUCCESS)
}
