//! `runnel bench`.

mod hostile;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use ::bench::lab::guest::data::Helper;
use ::bench::lab::guest::data::work::How;
use ::bench::lab::guest::exec::Exec;
use clap::Subcommand;

/// Measure, side by side with other systems
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Stream(Stream),
    Predict(Predict),
    Pack(Pack),
    Launch(Launch),
    Lab(Lab),
    Sio(Sio),
    Specialise(Specialise),
    Processor(Processor),
    Hostile(hostile::Hostile),
    Compare(Compare),
    #[command(hide = true)]
    HostileGood(hostile::Good),
    #[command(hide = true)]
    HostileBad(hostile::Bad),
    #[command(hide = true)]
    LabGuest(LabGuest),
    #[command(hide = true)]
    LabData(LabData),
    #[command(hide = true)]
    LabExec(LabExec),
    #[command(hide = true)]
    LabHttp(LabHttp),
}

/// Images of real trees beside SquashFS, EROFS, DwarFS and one compressed stream
///
/// Makes the trees from Debian packages (kept in a cache folder; needs root), packs each with this binary and with the tools
/// of the other systems, decodes every image of ours and compares it with its tree, and measures what a start reads. Rows
/// that were measured before with the same binary are known. Ends with an error that names the rows that failed.
#[derive(clap::Args)]
struct Pack {
    /// The first tree and few rows: some minutes
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// One tree more, and every codec and block size on every tree: some hours
    #[arg(long)]
    full: bool,
    /// Only these trees: debian-amd64, debian-arm64, jdk, node, gimp
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    trees: Vec<String>,
    /// A tree of your own; may be given several times
    #[arg(long = "tree", value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Only rows whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure again what was measured already
    #[arg(long)]
    fresh: bool,
    /// Cache folder (default: runnel/pack in the user's caches); about 10 GB
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Where the report goes (default: report.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON line per row instead of tables
    #[arg(long)]
    json: bool,
    /// Measure this runnel instead of the one that runs
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Add a line with all figures to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Starts of local programs from slow disks: cold, warm, prefetched perfectly, and by `runnel launch`
///
/// Makes a Debian system with all programs (kept in a cache folder; needs root), serves it as a disk whose reads take as long
/// as a model of a hard disk, SATA SSD, eMMC or network disk says, and starts programs from it. Ends with an error that names
/// what failed, after the report.
#[derive(clap::Args)]
struct Launch {
    /// Programs without windows on a hard disk and a SATA SSD: about half an hour (default)
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All programs on all disks: some hours
    #[arg(long)]
    full: bool,
    /// Only these disks: hdd, sata, emmc, net
    #[arg(long = "disk", value_name = "NAME", value_delimiter = ',')]
    disks: Vec<String>,
    /// Only these programs: python, java, gxx, office, gimp, inkscape, later-0.5, later-2, later-4
    #[arg(long = "program", value_name = "NAME", value_delimiter = ',')]
    programs: Vec<String>,
    /// Only these modes: cold, warm, perfect, readahead-512, files, preload, runnel, runnel-warm
    #[arg(long = "mode", value_name = "NAME", value_delimiter = ',')]
    modes: Vec<String>,
    /// Runs of each program in each mode on each disk
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Cache folder (default: runnel/launch in the user's caches); up to 8 GB while the system is made
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Where the report goes (default: report.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON line per row instead of tables
    #[arg(long)]
    json: bool,
    /// Measure this runnel instead of the one that runs
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Every claim beside NFS, an SD card and other systems, in a reproducible guest
///
/// Sets up a QEMU guest from Debian packages (kept in a cache folder), measures what was not measured before with the same
/// binary, and writes a report. Needs root. Ends with an error that names the rows that failed, after the report.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").args(["quick", "full", "smoke", "plan"]))]
struct Lab {
    /// The programs of the paper over the usual links: a few minutes after set-up (default)
    #[arg(long)]
    quick: bool,
    /// Everything: up to an hour after set-up
    #[arg(long)]
    full: bool,
    /// The cheapest rows only, to see that the lab works
    #[arg(long)]
    smoke: bool,
    /// A plan of your own: lines EXPERIMENT LINK SYSTEM[:MODE] PROGRAM RUNS
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Only rows whose line contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure again what was measured already
    #[arg(long)]
    fresh: bool,
    /// Cache folder (default: $RUNNEL_LAB, or runnel/lab in the user's caches); about 8 GB
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Where the report goes (default: report.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON line per run instead of tables
    #[arg(long)]
    json: bool,
    /// Guests at once (default: one per core)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Add a line with all medians to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// A static binary with everything to measure, instead of building one from the source folder
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Build Nydus for its rows if it is not there (18 minutes, once); --full does so too
    #[arg(long)]
    nydus: bool,
}

/// Data files as in the SIO paper: volumes beside a whole download, NFS, sshfs and rclone
///
/// Runs in the lab's guest (see `bench lab`, whose cache it shares), over 128 kbit/s and 40 ms as the paper's modem. Needs
/// root. Rows that were measured before with the same binary are known. Ends with an error that names the rows that failed,
/// after the report.
#[derive(clap::Args)]
struct Sio {
    /// Each case once, without the sweep of computing: a few minutes after set-up
    #[arg(long)]
    quick: bool,
    /// Only these cases: seq, seq-text, rand1k, stat-0.25, stat-0.5, stat-1, stat-2, bsearch, game, files1000, files1000-text
    #[arg(long = "case", value_name = "NAMES", value_delimiter = ',')]
    cases: Vec<String>,
    /// Only these systems: runnel, runnel:mount, runnel:program, download, nfs, sshfs, rclone; bars need all
    #[arg(long = "peer", value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<String>,
    /// Measure again what was measured already
    #[arg(long)]
    fresh: bool,
    /// Cache folder (default: that of `bench lab`)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Where the report goes (default: sio.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON line per value instead of tables
    #[arg(long)]
    json: bool,
    /// Guests at once (default: one per core)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// A static binary with everything to measure, instead of building one from the source folder
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Kernels for one device: sizes beside stock and the linker's own collection, instructions, and system calls of Debian's programs
///
/// Builds Linux 6.12 once (minutes; kept in a cache folder), reduces and links it with one pass more each time, and starts stock
/// and reduced kernels in a QEMU guest that counts instructions.
#[derive(clap::Args)]
struct Specialise {
    /// The small configuration, stock, gc-sections and all passes only
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// The mainstream configuration too
    #[arg(long)]
    full: bool,
    /// Source of Linux 6.12 (default: `source` in the cache folder, where `./x bench specialise` puts it)
    #[arg(long, value_name = "DIR")]
    kernel_source: Option<PathBuf>,
    /// Cache folder (default: runnel/kernel in the user's caches); about 4 GB
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// One JSON line per value instead of tables
    #[arg(long)]
    json: bool,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Compare two results: medians, ratio, and which changes are larger than the spread
#[derive(clap::Args)]
struct Compare {
    /// Results of a lab, or a history file, of which @COMMIT chooses a line
    #[arg(value_name = "A[@COMMIT]")]
    a: String,
    /// The same, to compare with A
    #[arg(value_name = "B[@COMMIT]")]
    b: String,
    /// One JSON line per value
    #[arg(long)]
    json: bool,
}

/// Measure the rows of a plan inside the lab's guest
#[derive(clap::Args)]
struct LabGuest {
    /// The plan
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
}

/// Do the work of a case on data files in the lab's guest
#[derive(clap::Args)]
struct LabData {
    /// Name of the case
    case: String,
    /// Folder with its files
    folder: String,
    /// Number of the run, from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    run: u32,
    /// Look up something else than measured runs do
    #[arg(long)]
    learning: bool,
    /// Processor time spent on each block, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    compute: f64,
}

/// Start a program in another control group, network name space or root folder of the lab's guest
#[derive(clap::Args)]
struct LabExec {
    /// Network name space
    #[arg(long, value_name = "NAME")]
    space: Option<String>,
    /// Control group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Folder that becomes the root
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Write the time of the start to this file
    #[arg(long, value_name = "FILE")]
    stamp: Option<PathBuf>,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Serve a folder over HTTP in the lab's guest
#[derive(clap::Args)]
struct LabHttp {
    /// The folder
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Address and port
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Write the number of requests to this file; it is there when connections are accepted
    #[arg(long, value_name = "FILE")]
    count: PathBuf,
}

/// Predictors on the same traces, without a network: actions, Linux readahead, majority trend
#[derive(clap::Args)]
struct Predict {
    /// Trace files; starts of the cases are recorded if there are none
    traces: Vec<PathBuf>,
    #[command(flatten)]
    stream: Stream,
}

/// Cold and warm program starts over a shaped link
#[derive(clap::Args)]
struct Stream {
    /// Few cases; ends within 5 minutes
    #[arg(long)]
    quick: bool,
    /// Also squashfs over NBD and Nydus, where they are installed
    #[arg(long)]
    peers: bool,
    /// Only these programs: python-200, python-pass, perl, openssl, gcc, jvm; may be given several times
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only these links: lan, wifi, thin, 20ms-25mbit, or RTT-RATE[-LOSS]; may be given several times
    #[arg(long = "link", value_name = "LINK")]
    links: Vec<String>,
    /// Measured runs of each row, at least 5
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Starts from which the server learns
    #[arg(long, value_name = "N", default_value_t = 3)]
    learning_runs: usize,
    /// Connections of our client
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// A further option for `runnel mount`, for ablations; may be given several times
    #[arg(long = "mount-option", value_name = "OPTION", allow_hyphen_values = true)]
    mount_options: Vec<String>,
    /// Leave the page cache of this machine alone between runs
    #[arg(long)]
    keep_caches: bool,
    /// Seed of the link's losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep trees and images in this folder for the next bench
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// One JSON line per row
    #[arg(long)]
    json: bool,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// What starts cost the server's processor, beside nginx
///
/// A program that varies is started five times, cold, from one server, over loopback; then nginx sends as many bytes. Needs
/// root, FUSE, and the Debian packages nginx-light and python3. About two minutes.
#[derive(clap::Args)]
struct Processor {
    /// Runs of five starts, each with a server that knows nothing
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Keep the tree and the image in this folder for the next bench
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// One JSON line per row instead of a table
    #[arg(long)]
    json: bool,
    /// Measure this runnel instead of the one that runs
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Runs the bench; rows go to standard output.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = &mut std::io::stdout();
    match args.bench {
        Bench::Stream(stream) => ::bench::stream::run(&stream.options(), out)?,
        Bench::Predict(predict) => ::bench::predictors::run(&predict.stream.options(), &predict.traces, out)?,
        Bench::Pack(pack) => ::bench::pack::run::run(&pack.options(), out)?,
        Bench::Launch(launch) => ::bench::launch::run::run(&launch.options(), out)?,
        Bench::Lab(lab) => ::bench::lab::run::run(&lab.options(), out)?,
        Bench::Sio(sio) => ::bench::sio::run::run(&sio.options(), out)?,
        Bench::Specialise(specialise) => ::bench::specialise::run(&specialise.options(), out)?,
        Bench::Processor(processor) => ::bench::processor::run(&processor.options(), out)?,
        Bench::Hostile(hostile) => ::bench::hostile::run(&hostile.options(), out)?,
        Bench::HostileGood(good) => ::bench::hostile::work(&good.work())?,
        Bench::HostileBad(bad) => ::bench::hostile::attack(&bad.orders())?,
        Bench::Compare(Compare { a, b, json }) => ::bench::lab::compare::run(&a, &b, json, out).map(drop)?,
        Bench::LabGuest(guest) => ::bench::lab::guest::run(&guest.plan)?,
        Bench::LabData(LabData { case, folder, run, learning, compute }) => {
            ::bench::lab::guest::data::help(&Helper {
                case,
                folder,
                how: How { run, learning, compute_seconds: compute },
            })?;
        }
        Bench::LabExec(exec) => {
            let LabExec { space, group, root, stamp, command } = exec;
            ::bench::lab::guest::exec::exec(&Exec { space, group, root, stamp, command })?;
        }
        Bench::LabHttp(LabHttp { folder, listen, count }) => {
            ::bench::lab::guest::peer::http::serve(&folder, listen, &count)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Pack {
    fn options(self) -> ::bench::pack::options::Options {
        use ::bench::pack::options::{Options, Size};
        let size = match (self.quick, self.full) {
            (true, _) => Size::Quick,
            (_, true) => Size::Full,
            _ => Size::Usual,
        };
        Options {
            runnel: self.binary.unwrap_or(Options::default().runnel),
            size,
            trees: self.trees,
            folders: self.folders,
            only: self.only,
            work: self.work,
            fresh: self.fresh,
            json: self.json,
            report: self.report,
            history: self.history,
        }
    }
}

impl Launch {
    fn options(self) -> ::bench::launch::options::Options {
        use ::bench::launch::options::{Options, Size};
        Options {
            runnel: self.binary.unwrap_or(Options::default().runnel),
            // `--quick` is what happens without it.
            size: if self.full && !self.quick { Size::Full } else { Size::Quick },
            disks: self.disks,
            programs: self.programs,
            modes: self.modes,
            runs: self.runs,
            work: self.work,
            json: self.json,
            report: self.report,
            history: self.history,
        }
    }
}

impl Lab {
    fn options(self) -> ::bench::lab::options::Options {
        use ::bench::lab::options::{Options, Size};
        let size = match (self.smoke, self.full) {
            (true, _) => Size::Smoke,
            (_, true) => Size::Full,
            _ => Size::Quick,
        };
        Options {
            binary: self.binary,
            size,
            plan: self.plan,
            only: self.only,
            fresh: self.fresh,
            work: self.work,
            report: self.report,
            json: self.json,
            jobs: self.jobs,
            history: self.history,
            nydus: self.nydus || self.full,
            ..Options::default()
        }
    }
}

impl Sio {
    fn options(self) -> ::bench::lab::options::Options {
        use ::bench::lab::options::{Options, Size};
        Options {
            binary: self.binary,
            size: if self.quick { Size::SioQuick } else { Size::Sio },
            systems: self.peers,
            programs: self.cases,
            fresh: self.fresh,
            work: self.work,
            report: self.report,
            json: self.json,
            jobs: self.jobs,
            history: self.history,
            ..Options::default()
        }
    }
}

impl Specialise {
    fn options(self) -> ::bench::specialise::Options {
        use ::bench::specialise::{Options, Size};
        let size = match (self.quick, self.full) {
            (true, _) => Size::Quick,
            (_, true) => Size::Full,
            _ => Size::Usual,
        };
        Options { size, source: self.kernel_source, work: self.work, json: self.json, history: self.history }
    }
}

impl Processor {
    fn options(self) -> ::bench::processor::Options {
        let Processor { runs, work, json, binary, history } = self;
        let runnel = binary.unwrap_or(::bench::options::Options::default().runnel);
        ::bench::processor::Options { runnel, runs, work, json, history }
    }
}

impl Stream {
    fn options(self) -> ::bench::options::Options {
        ::bench::options::Options {
            cases: self.cases,
            links: self.links,
            quick: self.quick,
            runs: self.runs,
            learning_runs: self.learning_runs,
            peers: self.peers,
            keep_caches: self.keep_caches,
            connections: self.connections,
            mount_options: self.mount_options,
            seed: self.seed,
            work: self.work,
            json: self.json,
            history: self.history,
            ..::bench::options::Options::default()
        }
    }
}
