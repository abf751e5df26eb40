//! `runnel dump`.

use ::launch::learn::LocalFiles;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use image::{Limits, Metadata, ReadAt};
use profile::ActionSet;

use crate::command::caching;
use crate::config::DeviceConfig;
use crate::{failure, progress};

/// Print a file of ours as text: an image, learned actions, a trace, a launch plan, a flow graph or
/// a kernel's coverage
#[derive(clap::Args)]
pub struct Args {
    /// The file
    file: PathBuf,

    /// The key of an encrypted file of an outbox, which is written as it was before (also:
    /// RUNNEL_CACHE_KEY)
    #[arg(long, value_name = "FILE|credential:NAME")]
    cache_key: Option<PathBuf>,
}

/// The kind of file is told by its first bytes.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::no_address(&args.file)?;
    let name = args.file.display().to_string();
    let mut magic = [0u8; 8];
    let mut file = host::file::open(&args.file).with_context(|| name.clone())?;
    let length = file.read(&mut magic).with_context(|| name.clone())?;
    if magic == stream::SEALED_MAGIC {
        let key = caching::key(args.cache_key.as_deref(), DeviceConfig::load()?.cache_key)?;
        let key =
            key.ok_or_else(|| failure::usage(format!("{name} is encrypted\nhint: give its key: --cache-key FILE")))?;
        let bytes = stream::unseal(&key, &host::file::read(&args.file)?).with_context(|| name)?;
        std::io::stdout().write_all(&bytes).context("standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if magic == image::format::MAGIC {
        let (source, metadata) = client::open_file(&args.file, &Limits::default())?;
        image::dump(&metadata, &mut text)?;
        match packed_actions(&source, &metadata) {
            Ok(Some(actions)) => profile::dump(&actions, &mut text)?,
            Ok(None) => {}
            Err(error) => {
                // The image works without it, and its tables may show what happened.
                progress::all(&text)?;
                return Err(error.context(name));
            }
        }
    } else if magic == profile::format::MAGIC {
        let bytes = host::file::read(&args.file).with_context(|| name.clone())?;
        let set = profile::decode(&bytes, &profile::Limits::default())
            .map_err(|error| failure::corrupt(format!("{name}: {error}")))?;
        profile::dump(&set, &mut text)?;
    } else if magic == trace::format::MAGIC {
        let bytes = host::file::read(&args.file).with_context(|| name.clone())?;
        let trace = trace::read(&bytes, &trace::Limits::default())
            .map_err(|error| failure::corrupt(format!("{name}: {error}")))?;
        trace::dump(&trace, &mut text)?;
    } else if magic == profile::plan::format::MAGIC {
        let bytes = host::file::read(&args.file).with_context(|| name.clone())?;
        let plan = profile::plan::decode(&bytes, &profile::plan::Limits::default())
            .map_err(|error| failure::corrupt(format!("{name}: {error}")))?;
        let files = LocalFiles;
        profile::plan::dump(&plan, &|file, offset| files.symbol(file, offset), &mut text)?;
    } else if magic == profile::flow::format::MAGIC {
        let bytes = std::fs::read(&args.file).with_context(|| name.clone())?;
        let graph = profile::flow::decode(&bytes).map_err(|error| failure::corrupt(format!("{name}: {error}")))?;
        profile::flow::text::print(&graph, &mut text)?;
    } else if magic == coverage::format::MAGIC {
        let bytes = host::file::read(&args.file).with_context(|| name.clone())?;
        let coverage = coverage::read(&bytes).with_context(|| name.clone())?;
        coverage::dump(&coverage, &mut text)?;
    } else {
        let found = &magic[..length];
        return Err(failure::corrupt(format!(
            "{name}: neither an image, nor learned actions, nor a trace, nor a plan, nor a flow graph, nor a coverage (it begins with {found:02x?})"
        )));
    }
    progress::all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The actions that travel with an image.
pub fn packed_actions(source: &dyn ReadAt, image: &Metadata) -> anyhow::Result<Option<ActionSet>> {
    let Some(bytes) = image.optional_section(source, image::format::SECTION_PROFILE)? else { return Ok(None) };
    let actions = profile::decode(&bytes, &profile::Limits::default());
    actions.map(Some).map_err(|error| failure::corrupt(format!("the profile: {error}")))
}
