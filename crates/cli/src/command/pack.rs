//! `runnel pack`.

mod print;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use ::pack::{Layout, Method, Options, Source, Stages, TarInput};
use ::sandbox::{Role, Sandbox};
use clap::ValueEnum;
use image::Codec;
use indicatif::ProgressBar;

pub use self::print::{Bars, print};
use crate::command::sandboxed::{SandboxArgs, folders_of};
use crate::{failure, hot};

/// Pack a directory, a tar archive, a container image or the closure of a program into an image
///
/// A tree that changes meanwhile is refused.
///
/// Memory: about 30 MB, 24 blocks a thread (1.5 MB with blocks of 64k, 24 MB with 1m), 150 bytes a
/// chunk of 4k, and with --small 0.6 bytes for each byte packed up to 512 MB, less beyond. Measured
/// with --small on two threads: 127 MB for a tree of 161 MB, 216 MB for one of 305 MB, 326 MB for
/// one of 1.3 GB.
#[derive(clap::Args)]
pub struct Args {
    /// Directory, tar archive (- for standard input), OCI layout or docker-save archive
    #[arg(required_unless_present = "closure", conflicts_with = "closure")]
    pub source: Option<PathBuf>,

    /// The image file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// Pack this program with its interpreter and shared libraries; may be given several times
    #[arg(long, value_name = "PROGRAM", help_heading = "Source")]
    pub closure: Vec<PathBuf>,

    /// With --closure: pack this path too, with all below it
    #[arg(long, value_name = "PATH", requires = "closure", help_heading = "Source")]
    include: Vec<PathBuf>,

    /// With --closure: the directory that is / for the programs
    #[arg(long, value_name = "DIR", default_value = "/", requires = "closure", help_heading = "Source")]
    root: PathBuf,

    /// How to understand the source
    #[arg(long, value_enum, default_value_t = As::Detect, conflicts_with = "closure", help_heading = "Source")]
    layout: As,

    /// Which image of a container archive: a tag, digest or platform such as linux/arm64
    #[arg(long, value_name = "NAME", conflicts_with = "closure", help_heading = "Source")]
    select: Option<String>,

    /// Leave out other file systems mounted in the directory
    #[arg(long, help_heading = "Source")]
    one_file_system: bool,

    /// Replace the output even if it is not an image
    #[arg(short, long)]
    force: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub sandbox: SandboxArgs,

    #[command(flatten)]
    tuning: Tuning,
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
    #[value(alias = "lzma")]
    Xz,
    Stored,
}

/// How to pack, whatever the source.
#[derive(clap::Args)]
pub struct Tuning {
    #[command(flatten)]
    blocks: Blocks,

    #[command(flatten)]
    traces: Traces,

    #[command(flatten)]
    small: Small,

    #[command(flatten)]
    packing: Packing,
}

/// Blocks and chunks.
#[derive(clap::Args)]
#[command(next_help_heading = "Blocks")]
struct Blocks {
    /// How blocks are compressed
    #[arg(long, value_enum, default_value_t = Compression::Zstd)]
    codec: Compression,

    /// Compression level (zstd 1 to 22, xz 0 to 19, lz4 0 to 12). Levels 10 to 19 of xz are 0 to 9
    /// with a slower, more thorough search, as `xz -0e` to `xz -9e`
    #[arg(long, value_name = "N")]
    level: Option<i32>,

    /// Size of a block before compression: 4k to 1m, a multiple of 4096
    #[arg(long, alias = "block-bytes", value_name = "SIZE", value_parser = size, default_value_t = ::pack::BLOCK_BYTES_DEFAULT)]
    block_size: u32,

    /// Size of a block of what traces call hot, the block size at least; such blocks are read all
    /// together [default: 1m with --small, else a block's size]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "trace")]
    hot_block_size: Option<u32>,

    /// Size of a chunk: 256 to 4k [default: a sixteenth of a block, at most 4k]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk_size: Option<u32>,
}

/// Traces of programs.
#[derive(clap::Args)]
#[command(next_help_heading = "Traces")]
struct Traces {
    /// What programs read when they start, from `runnel record` or a server; may be given several
    /// times. Their pages lie together, and a server pushes by their order until it has learned
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,

    /// The image that the traces were recorded on, for traces that name no files
    #[arg(long, value_name = "IMAGE", requires = "trace")]
    trace_image: Option<PathBuf>,

    /// Leave out pages that fewer runs than this touched
    #[arg(long, value_name = "N", default_value_t = 1, requires = "trace")]
    min_runs: u32,
}

/// Small images, and the parts of that to leave out.
#[derive(clap::Args)]
#[command(next_help_heading = "Making it small")]
struct Small {
    /// Make the image small instead of quick to stream: kinds of data apart, similar chunks
    /// together, machine code filtered, dictionaries, no hashes of single pages; the switches below
    /// leave parts of this out
    #[arg(long)]
    small: bool,

    /// Keep .gz files as their text, compressed anew when they are read, bit for bit; for those
    /// that gzip or zlib made and that fit in a block. They take two thirds of the space, but 8 ms
    /// to read where others take 0.2 (blocks of 64k, a PC)
    #[arg(long)]
    recompress: bool,

    /// How chunks are sorted [default: greedy with --small, else none]
    #[arg(long, value_enum)]
    sort: Option<Sort>,

    /// How much keeping a file together counts against size, in per cent of the default; 0 sorts
    /// for size alone
    #[arg(long, value_name = "N", default_value_t = ::pack::LOCALITY_DEFAULT)]
    locality: u32,

    /// Keep equal chunks as often as they come
    #[arg(long)]
    no_dedup: bool,

    /// Do not keep kinds of data apart
    #[arg(long)]
    no_group: bool,

    /// Do not filter machine code
    #[arg(long)]
    no_filter: bool,

    /// With --small: filter machine code that traces call hot too; smaller by 1 % of it, and slower
    /// to start
    #[arg(long, requires = "trace", conflicts_with = "no_filter")]
    filter_hot: bool,

    /// Do not use dictionaries
    #[arg(long)]
    no_dictionary: bool,

    /// Do not keep hot chunks apart
    #[arg(long)]
    no_hot: bool,

    /// Leave out the hashes of single pages, 1 to 2 % of the image; a server derives them when a
    /// device first asks
    #[arg(long, conflicts_with = "page_hashes")]
    derive_hashes: bool,

    /// With --small: keep the hashes of single pages in the image
    #[arg(long)]
    page_hashes: bool,
}

/// How packing itself runs.
#[derive(clap::Args)]
#[command(next_help_heading = "Packing")]
struct Packing {
    /// An older image: blocks of which three quarters are still needed stay as they are, byte for
    /// byte, so that devices that have them fetch only the others. At most 2 % of the data are
    /// of files that are gone; they can be read from it. Any image will do; its chunk size is taken
    /// over
    #[arg(long, value_name = "OLD", conflicts_with_all = ["explain", "no_dedup"])]
    base: Option<PathBuf>,

    /// For a root file system: refuse a tree that no system can start from (needed are /dev, /proc,
    /// /sys, /run and a first program), leave out other file systems that are mounted in it, and
    /// use nothing that a kernel with runnelfs may lack (dictionaries, recompression)
    #[arg(long, conflicts_with_all = ["recompress", "closure"])]
    bootable: bool,

    /// Print what each stage saved; compresses everything once more for each
    #[arg(long)]
    explain: bool,

    /// Worker threads (0: one per core); the image does not depend on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// Folder for contents of compressed or piped archives meanwhile [default: $TMPDIR, else
    /// /var/tmp]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
}

/// See [`Method`].
#[derive(Clone, Copy, ValueEnum)]
enum Sort {
    /// Blocks filled with what shares most with them
    Greedy,
    /// Similar files one after the other
    Files,
    /// In the order of the tree
    None,
}

impl Args {
    /// The sandbox for packing, without the source.
    pub fn sandbox(&self, role: Role) -> Sandbox {
        let Tuning { traces, packing, .. } = &self.tuning;
        let spool = packing.spool.clone().unwrap_or_else(::pack::spool_directory);
        let written = folders_of([self.output.as_path()]).into_iter().chain([spool]);
        Sandbox::new(role)
            .read(traces.trace.iter().chain(&traces.trace_image).chain(&packing.base))
            // A missing folder is reported when the file is written.
            .write(written.filter(|folder| folder.is_dir()))
    }

    /// Archives come from others; a directory or a closure is of this machine, and what only root
    /// sees in it is packed.
    fn source_sandbox(&self) -> Sandbox {
        match &self.source {
            None => self.sandbox(Role::Tree).read([&self.root]),
            Some(path) if path == Path::new("-") => self.sandbox(Role::Archive),
            Some(path) => {
                let is_layout = self.layout != As::Files && path.join("oci-layout").is_file();
                let role = if path.is_dir() && !is_layout { Role::Tree } else { Role::Archive };
                self.sandbox(role).read([path])
            }
        }
    }

    fn one_file_system(&self) -> bool {
        self.one_file_system || self.tuning.packing.bootable
    }

    /// The first option given that says where files come from, beside the path of the source.
    pub fn source_option(&self) -> Option<&'static str> {
        let given = [
            (!self.closure.is_empty(), "--closure"),
            (!self.include.is_empty(), "--include"),
            (self.root != Path::new("/"), "--root"),
            (self.layout != As::Detect, "--layout"),
            (self.select.is_some(), "--select"),
            (self.one_file_system, "--one-file-system"),
        ];
        given.into_iter().find(|(given, _)| *given).map(|(_, name)| name)
    }
}

impl Tuning {
    /// The options; reads the traces.
    pub fn options(&self) -> anyhow::Result<Options> {
        let Tuning { blocks, traces, small, packing } = self;
        let base = if small.small { Stages::SMALL } else { Stages::STREAM };
        let options = Options {
            codec: match blocks.codec {
                Compression::Zstd => Codec::Zstd,
                Compression::Lz4 => Codec::Lz4,
                Compression::Xz => Codec::Xz,
                Compression::Stored => Codec::Stored,
            },
            level: blocks.level,
            block_bytes: blocks.block_size,
            hot_block_bytes: blocks.hot_block_size.or(small.small.then_some(::pack::HOT_BLOCK_BYTES_SMALL)),
            chunk_bytes: blocks.chunk_size,
            stages: Stages {
                deduplicate: !small.no_dedup,
                sort: match small.sort {
                    None => base.sort,
                    Some(Sort::Greedy) => Method::Greedy,
                    Some(Sort::Files) => Method::Files,
                    Some(Sort::None) => Method::None,
                },
                group: base.group && !small.no_group,
                filter: base.filter && !small.no_filter,
                filter_hot: small.filter_hot,
                dictionary: base.dictionary && !small.no_dictionary && !packing.bootable,
                hot: base.hot && !small.no_hot,
                recompress: base.recompress || small.recompress,
            },
            base: packing.base.clone(),
            hot: Default::default(),
            locality: small.locality,
            sorter: None,
            derive_hashes: (small.small || small.derive_hashes) && !small.page_hashes,
            bootable: packing.bootable,
            explain: packing.explain,
            threads: packing.threads,
            spool_directory: packing.spool.clone(),
        };
        options.validate().map_err(|error| failure::usage(error.to_string()))?;
        Ok(Options { hot: hot::load(&traces.trace, traces.trace_image.as_deref(), traces.min_runs)?, ..options })
    }
}

/// A number of bytes: 65536, 64k or 1m.
fn size(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.trim_end_matches(['b', 'B', 'i']).to_ascii_lowercase() {
        lower if lower.ends_with('k') => (lower[..lower.len() - 1].to_string(), 1u32 << 10),
        lower if lower.ends_with('m') => (lower[..lower.len() - 1].to_string(), 1 << 20),
        lower => (lower, 1),
    };
    let number: u32 = number.parse().map_err(|_| format!("'{text}' is no size such as 65536, 64k or 1m"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}

/// Packs and reports.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.sandbox.enter(&args.source_sandbox())?;
    run_from(args, source)
}

/// The same with another way to come from arguments to a source.
pub fn run_from(args: Args, source: impl FnOnce(&Args) -> anyhow::Result<Source>) -> anyhow::Result<ExitCode> {
    check_output(&args.output, args.force)?;
    let options = args.tuning.options()?;
    let source = source(&args)?;
    let is_bootable = args.tuning.packing.bootable;
    let bars = Bars(Mutex::new(ProgressBar::hidden()));
    let report = ::pack::pack(source, &args.output, &options, &bars);
    bars.0.lock().expect("no bar panics").finish_and_clear();
    let report = report?;
    for note in &report.notes {
        tell!("note: {note}");
    }
    if args.json {
        outln!("{}", serde_json::to_string(&report)?);
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{}: {}", args.output.display(), report.id);
    print(&report)?;
    if is_bootable {
        outln!("to boot it: root=DEVICE rootfstype=runnelfs rootflags=id={} ro", report.id);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a regular file begins as an image does.
pub fn is_image(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; image::format::MAGIC.len()];
    path.metadata().is_ok_and(|about| about.is_file())
        && std::fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok())
        && magic == image::format::MAGIC
}

/// Refuses to replace a file that is no image, which can only be a slip of the fingers, and `-`.
fn check_output(path: &Path, force: bool) -> anyhow::Result<()> {
    if path == Path::new("-") {
        // Its first block is written last.
        return Err(failure::usage("an image cannot be written to a pipe; give a file (./- for one of that name)"));
    }
    let holds_something = path.metadata().is_ok_and(|about| about.is_file() && about.len() > 0);
    if !force && holds_something && !is_image(path) {
        return Err(failure::usage(format!(
            "{} is there and is not an image; give another --output, or --force to replace it",
            path.display()
        )));
    }
    Ok(())
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
    if is_image(path) {
        let path = path.display();
        return Err(failure::usage(format!(
            "{path} is an image already\nhint: `runnel push {path} runnel://HOST/NAME` puts it on a server; `runnel extract \
             {path} -C DIR` unpacks it"
        )));
    }
    Ok(match Source::detect(path)? {
        Source::Directory { path, .. } => Source::Directory { path, one_file_system: args.one_file_system(), layout },
        Source::Tar { input, .. } => Source::Tar { input, layout },
        other => other,
    })
}
