//! `runnel profile learn`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use profile::flow::{self, FileRuns};
use trace::{Event, Tail, Trace};

use crate::failure;

/// Longest trace that is read: hundreds of millions of touches.
const TRACE_BYTES_MAX: u64 = 256 << 20;

/// Files that a message names.
const NAMED_MAX: usize = 5;

#[derive(clap::Args)]
pub struct Args {
    /// Traces of `runnel record`, best one for each run of the program: a page that is read again
    /// in a trace is not in it again
    #[arg(required = true)]
    traces: Vec<PathBuf>,

    /// The data file: its path from the root of the image, or of the machine
    #[arg(long, value_name = "PATH")]
    file: PathBuf,

    /// Bytes of a block: a power of two, 512 to 1048576
    #[arg(long, value_name = "BYTES", default_value_t = flow::format::BLOCK_BYTES_DEFAULT)]
    block: u32,

    /// The flow graph to write (default: the name of the data file with .flow, in this folder)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the output if it is there
    #[arg(long)]
    force: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    flow::Layout::new(args.block, 0).map_err(|error| failure::usage(format!("--block: {error}")))?;
    let Some(name) = args.file.file_name() else {
        return Err(failure::usage(format!("--file: {} names no file", args.file.display())));
    };
    let mut usual = name.to_os_string();
    usual.push(".flow");
    let output = args.output.clone().unwrap_or_else(|| PathBuf::from(usual));
    let path = path_in_trace(&args.file);
    let mut all: Vec<FileRuns> = Vec::new();
    for trace in &args.traces {
        let read = read(trace)?;
        match flow::file_runs(&read, &path) {
            Some(runs) => all.push(runs),
            None => tell!("warning: {}: {}", trace.display(), absent(&read, &args.file)),
        }
    }
    let runs: usize = all.iter().map(|runs| runs.runs.len()).sum();
    let hidden: usize = all.iter().map(|runs| runs.hidden).sum();
    if hidden > 0 {
        tell!("warning: {hidden} runs are left out: pushes hid some of their touches; `runnel record` sees all");
    }
    if runs == 0 {
        return Err(failure::not_found(format!("no run in these traces reads {}", args.file.display())));
    }
    let graph = flow::learn(&all, args.block).map_err(|error| failure::usage(format!("{error} (--block)")))?;
    super::create(&output, &graph.encode(), args.force)?;
    tell!("learned from {runs} runs: {} blocks used, {} edges", graph.used().len(), graph.edge_count());
    outln!("{}", output.display());
    Ok(())
}

/// As traces write it: without leading slashes. A file of this machine is named by where it really
/// is.
fn path_in_trace(path: &Path) -> Vec<u8> {
    let path = match path.is_absolute() {
        true => path.to_path_buf(),
        false => std::path::absolute(path).ok().filter(|path| path.is_file()).unwrap_or_else(|| path.to_path_buf()),
    };
    let bytes = path.as_os_str().as_bytes();
    let slashes = bytes.iter().take_while(|byte| **byte == b'/').count();
    bytes[slashes..].to_vec()
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let name = path.display();
    let bytes = super::bytes_of(path, TRACE_BYTES_MAX)?;
    let trace =
        trace::read(&bytes, &trace::Limits::default()).map_err(|error| failure::corrupt(format!("{name}: {error}")))?;
    if trace.tail != Tail::Whole {
        tell!("warning: {name}: {}", trace.tail);
    }
    Ok(trace)
}

/// Why a trace says nothing of a file, and of which files of that name it does.
fn absent(trace: &Trace, file: &Path) -> String {
    let files = || {
        trace.events.iter().filter_map(|event| match event {
            Event::File { path, .. } => Some(path.as_slice()),
            _ => None,
        })
    };
    if files().next().is_none() {
        return "it names no files; record it with `runnel record`".to_string();
    }
    let name = file.file_name().unwrap_or_default().as_bytes();
    let alike: Vec<String> = files()
        .filter(|path| path.rsplit(|byte| *byte == b'/').next() == Some(name))
        .take(NAMED_MAX)
        .map(|path| path.escape_ascii().to_string())
        .collect();
    match alike.is_empty() {
        true => format!("it does not name {}", file.display()),
        false => format!("it does not name {}, but {}", file.display(), alike.join(", ")),
    }
}
