//! `runnel bench hostile`, and the processes that it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How far one bad peer hurts twenty good devices of the same server
///
/// Twenty devices read, commit and push at a modest pace: alone, beside a peer that never reads,
/// floods, or announces what it does not send, and while the same peer attacks another server on
/// this machine. Needs the Debian package python3. About twenty minutes. Ends with an error that
/// names the runs that failed, after the report.
#[derive(clap::Args)]
pub struct Hostile {
    /// Short runs: about four minutes for one of each kind
    #[arg(long)]
    quick: bool,
    /// Only these kinds: never-reads, slow-readers, pings, connects, half-hellos, idle-uploads,
    /// slow-uploads, leases, stops-and-touches, garbage; may be given several times
    #[arg(long = "kind", value_name = "NAME", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Runs of each kind (default: 3, with --quick 1)
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Keep images in this folder for the next bench
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

/// Be the good devices of `bench hostile`
#[derive(clap::Args)]
pub struct Good {
    /// Address of the server
    server: SocketAddr,
    /// The image that it serves
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Folder of images to push
    #[arg(long, value_name = "DIR")]
    pushes: PathBuf,
    /// Time that is measured
    #[arg(long, value_name = "SECONDS")]
    seconds: f64,
    /// Write the times to this file
    #[arg(long, value_name = "FILE")]
    result: PathBuf,
}

/// Be the bad peer of `bench hostile`
#[derive(clap::Args)]
pub struct Bad {
    /// What it does
    kind: String,
    /// Address of the server
    server: SocketAddr,
    /// The image that it serves
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// End after this time
    #[arg(long, value_name = "SECONDS")]
    seconds: f64,
    /// Write counts to this file
    #[arg(long, value_name = "FILE")]
    result: PathBuf,
}

impl Hostile {
    /// What the bench is told.
    pub fn options(self) -> ::bench::hostile::Options {
        let Hostile { quick, kinds, runs, work, json, binary, history } = self;
        let runnel = binary.unwrap_or(::bench::options::Options::default().runnel);
        let runs = runs.unwrap_or(if quick { 1 } else { 3 });
        ::bench::hostile::Options { runnel, quick, kinds, runs, work, json, history }
    }
}

impl Good {
    /// What the process is to do.
    pub fn work(self) -> ::bench::hostile::Work {
        let Good { server, image, pushes, seconds, result } = self;
        ::bench::hostile::Work { server, image, pushes, seconds, result }
    }
}

impl Bad {
    /// What the process is to do.
    pub fn orders(self) -> ::bench::hostile::Orders {
        let Bad { kind, server, image, seconds, result } = self;
        ::bench::hostile::Orders { kind, server, image, seconds, result }
    }
}
