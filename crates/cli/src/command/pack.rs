//! `runnel pack`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use ::pack::{Layout, Options, Phase, Progress, Source, TarInput};
use clap::ValueEnum;
use image::Codec;
use indicatif::ProgressBar;

use crate::{failure, progress};

/// Pack a directory, a tar archive, a container image or the closure of a program into an image
#[derive(clap::Args)]
pub struct Args {
    /// Directory, tar archive (- for standard input), OCI layout or docker-save archive
    #[arg(required_unless_present = "closure", conflicts_with = "closure")]
    source: Option<PathBuf>,

    /// The image file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Pack this program with its interpreter and shared libraries; may be given several times
    #[arg(long, value_name = "PROGRAM")]
    closure: Vec<PathBuf>,

    /// With --closure: pack this path too, with all below it
    #[arg(long, value_name = "PATH", requires = "closure")]
    include: Vec<PathBuf>,

    /// With --closure: the directory that is / for the programs
    #[arg(long, value_name = "DIR", default_value = "/", requires = "closure")]
    root: PathBuf,

    /// How to understand the source
    #[arg(long, value_enum, default_value_t = As::Detect, conflicts_with = "closure")]
    layout: As,

    /// Which image of a container archive: a tag, digest or platform such as linux/arm64
    #[arg(long, value_name = "NAME", conflicts_with = "closure")]
    select: Option<String>,

    /// Leave out other file systems mounted in the directory
    #[arg(long)]
    one_file_system: bool,

    /// How blocks are compressed
    #[arg(long, value_enum, default_value_t = Compression::Zstd)]
    codec: Compression,

    /// Compression level (zstd 1 to 22, xz 0 to 19)
    #[arg(long, value_name = "N")]
    level: Option<i32>,

    /// Bytes of a block before compression: 4096 to 1 MiB, a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value_t = ::pack::BLOCK_BYTES_DEFAULT)]
    block_bytes: u32,

    /// Worker threads (0: one per core); the image does not depend on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// Folder for contents of compressed or piped archives meanwhile [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// See [`Layout`].
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum As {
    /// A container image if it is one, else plain files
    Detect,
    /// Plain files
    Files,
    /// A container image: its layers are applied
    Oci,
}

/// See [`Codec`].
#[derive(Clone, Copy, ValueEnum)]
enum Compression {
    Zstd,
    Lz4,
    Xz,
    Stored,
}

/// Packs and reports.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        codec: match args.codec {
            Compression::Zstd => Codec::Zstd,
            Compression::Lz4 => Codec::Lz4,
            Compression::Xz => Codec::Xz,
            Compression::Stored => Codec::Stored,
        },
        level: args.level,
        block_bytes: args.block_bytes,
        threads: args.threads,
        spool_directory: args.spool.clone(),
    };
    options.validate().map_err(|error| failure::usage(error.to_string()))?;
    let source = source(&args)?;
    let bars = Bars(Mutex::new(ProgressBar::hidden()));
    let report = ::pack::pack(source, &args.output, &options, &bars);
    bars.0.lock().expect("no bar panics").finish_and_clear();
    let report = report?;
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    if args.json {
        outln!("{}", serde_json::to_string(&report)?);
        return Ok(ExitCode::SUCCESS);
    }
    let rate = report.bytes_in as f64 / 1e6 / report.seconds.max(1e-9);
    outln!("{}: {}", args.output.display(), report.id);
    outln!(
        "{} files, {} -> {} ({:.1} %), {} of {} chunks unique, {} blocks, {:.1} s, {rate:.0} MB/s",
        report.files,
        progress::human(report.bytes_in),
        progress::human(report.bytes_out),
        100.0 * report.bytes_out as f64 / report.bytes_in.max(1) as f64,
        report.chunks_unique,
        report.chunks,
        report.blocks,
        report.seconds,
    );
    Ok(ExitCode::SUCCESS)
}

fn source(args: &Args) -> anyhow::Result<Source> {
    let Some(path) = &args.source else {
        let (root, programs) = (args.root.clone(), args.closure.clone());
        return Ok(Source::Closure { root, programs, includes: args.include.clone() });
    };
    let layout = match (args.layout, &args.select) {
        (As::Files, Some(_)) => return Err(failure::usage("--select needs a container image, not --layout files")),
        (As::Files, None) => Layout::Files,
        (As::Detect, None) => Layout::Detect,
        (As::Oci, select) | (As::Detect, select) => Layout::Image { select: select.clone() },
    };
    if path == Path::new("-") {
        let input = TarInput::Stream { reader: Box::new(std::io::stdin()), name: "standard input".into() };
        return Ok(Source::Tar { input, layout });
    }
    Ok(match Source::detect(path)? {
        Source::Directory { path, .. } => Source::Directory { path, one_file_system: args.one_file_system, layout },
        Source::Tar { input, .. } => Source::Tar { input, layout },
        other => other,
    })
}

/// Draws a bar per phase.
pub struct Bars(pub Mutex<ProgressBar>);

impl Progress for Bars {
    fn phase(&self, phase: Phase, total: u64) {
        let what = match phase {
            Phase::Scan => "listing",
            Phase::Pack => "packing",
            Phase::Finish => "finishing",
            Phase::Extract => "extracting",
        };
        let mut bar = self.0.lock().expect("no bar panics");
        bar.finish_and_clear();
        *bar = progress::bytes(total, what);
    }

    fn advance(&self, amount: u64) {
        self.0.lock().expect("no bar panics").inc(amount);
    }
}
