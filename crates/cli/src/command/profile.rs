//! `runnel profile`.

mod edit;
mod learn;
mod show;

use std::ffi::{OsStr, OsString};
use std::io::Read;
#[cfg(feature = "full")]
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use profile::flow::{self, FlowGraph};

use crate::recording::output;
use crate::{failure, progress};

/// Flow graphs of data files: in which order their blocks are used. Learn, show, write by hand
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print a summary, the order of the blocks, and the stages; or a picture
    Show(show::Args),
    /// Write a graph as text
    Export {
        /// The flow graph
        file: PathBuf,

        /// As text, the only form so far
        #[arg(long)]
        text: bool,

        /// Write to this file (default: standard output)
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,

        /// Replace the output if it is there
        #[arg(long)]
        force: bool,
    },
    /// Make a graph from text (docs/formats/flow.md says how to write it)
    Import {
        /// The text; `-` for standard input
        text: PathBuf,

        /// The flow graph to write
        #[arg(short, long, value_name = "FILE", required_unless_present = "volume")]
        output: Option<PathBuf>,

        /// Put it into a server's store, as the profile of the file PATH of the volume NAME
        #[arg(long, num_args = 3, value_names = ["STORE", "NAME", "PATH"], conflicts_with = "output")]
        volume: Option<Vec<OsString>>,

        /// Replace the output if it is there
        #[arg(long)]
        force: bool,
    },
    /// Change a graph as text, in $VISUAL or $EDITOR
    Edit {
        /// The flow graph
        file: PathBuf,
    },
    /// Learn a graph from traces of `runnel record`
    Learn(learn::Args),
}

/// Longest graph that is read: more than the limits of its format add up to.
const FILE_BYTES_MAX: u64 = 128 << 20;

/// Does what the action says.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Show(args) => show::run(&args)?,
        Action::Export { file, output, force, .. } => {
            let text = text_of(&read(&file)?)?;
            match output {
                Some(output) => create(&output, text.as_bytes(), force)?,
                None => progress::all(&text)?,
            }
        }
        Action::Import { text, output, volume, force } => {
            let place = match (output, volume.as_deref()) {
                (Some(output), _) => output,
                (None, Some([store, name, path])) => in_store(Path::new(store), name, path)?,
                (None, _) => return Err(failure::usage("--output or --volume says where the graph goes".to_owned())),
            };
            let name = text.display().to_string();
            let graph = parse(&read_text(&text)?, &name)?;
            create(&place, &graph.encode(), force)?;
        }
        Action::Edit { file } => edit::run(&file)?,
        Action::Learn(args) => learn::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A build for devices has no server, and so no store.
#[cfg(not(feature = "full"))]
fn in_store(_store: &Path, _name: &OsStr, _path: &OsStr) -> anyhow::Result<PathBuf> {
    Err(failure::usage("--volume: this is the device's runnel, without a server; import on the server".to_owned()))
}

/// Where a store keeps the profile of a file of a volume; its folder is made.
#[cfg(feature = "full")]
fn in_store(store: &Path, name: &OsStr, path: &OsStr) -> anyhow::Result<PathBuf> {
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let name =
        name.to_str().filter(|name| !name.starts_with('.') && !name.is_empty() && name.bytes().all(|b| good(&b)));
    let name = name.ok_or_else(|| failure::usage("NAME cannot be the name of a volume".to_owned()))?;
    if !store.is_dir() {
        return Err(failure::usage(format!("{}: no folder, so no store", store.display())));
    }
    // As a server would look for it: from the top of the volume.
    let path = path.as_bytes().strip_prefix(b"/").unwrap_or(path.as_bytes());
    let names = || path.split(|byte| *byte == b'/');
    if names().any(|name| name.is_empty() || name == b"." || name == b"..") {
        return Err(failure::usage(format!("{}: not the path of a file in a volume", String::from_utf8_lossy(path))));
    }
    let place = store.join(server::volumes::profile_key(name, path));
    if let Some(folder) = place.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    Ok(place)
}

/// The bytes of a file of at most `bytes_max` bytes.
fn bytes_of(path: &Path, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let file: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(std::fs::File::open(path).with_context(|| name.clone())?),
    };
    file.take(bytes_max + 1).read_to_end(&mut bytes).with_context(|| name.clone())?;
    if bytes.len() as u64 > bytes_max {
        return Err(failure::corrupt(format!("{name}: longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

fn read(path: &Path) -> anyhow::Result<FlowGraph> {
    decode(&bytes_of(path, FILE_BYTES_MAX)?, path)
}

fn decode(bytes: &[u8], path: &Path) -> anyhow::Result<FlowGraph> {
    let name = path.display();
    if bytes.starts_with(b"flow ") {
        return Err(failure::corrupt(format!(
            "{name} is the text of a flow graph: `runnel profile import` makes a graph of it"
        )));
    }
    flow::decode(bytes).map_err(|error| failure::corrupt(format!("{name}: {error}")))
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = bytes_of(path, flow::format::TEXT_BYTES_MAX as u64)?;
    let name = path.display();
    if bytes.starts_with(&flow::format::MAGIC) {
        return Err(failure::corrupt(format!(
            "{name} is a flow graph already: `runnel profile export` makes text of it"
        )));
    }
    String::from_utf8(bytes).map_err(|_| failure::corrupt(format!("{name}: no text, it is not UTF-8")))
}

fn parse(text: &str, name: &str) -> anyhow::Result<FlowGraph> {
    flow::text::parse(text).map_err(|error| failure::corrupt(format!("{name}: {error}")))
}

fn text_of(graph: &FlowGraph) -> anyhow::Result<String> {
    let mut text = String::new();
    flow::text::print(graph, &mut text)?;
    Ok(text)
}

/// Writes a new file, or with `force` replaces the one there.
fn create(path: &Path, bytes: &[u8], force: bool) -> anyhow::Result<()> {
    if !force && path.symlink_metadata().is_ok() {
        return Err(failure::usage(format!(
            "{}: exists; --force replaces it, --output names another file",
            path.display()
        )));
    }
    output::replace(path, bytes)
}
