//! The steps from a tree to an image: number, survey, arrange, learn dictionaries, emit, finish.
//!
//! There are two passes over the source. The survey keeps descriptions of chunks and no data; the
//! arrangement decides which chunks share a block; the emitter reads the chunks again, block by
//! block. The output does not depend on batches or threads.

use std::path::Path;
use std::time::{Duration, Instant};

use image::BuilderParams;
use image::format::{SECTION_PROFILE, SUPERBLOCK_BYTES};
use rayon::ThreadPool;

use crate::arrange::arrange;
use crate::base::{Base, Kept};
use crate::bootable;
use crate::dictionary::Dictionaries;
use crate::emit::Emitter;
use crate::hot::HotPages;
use crate::inodes::{Inodes, number};
use crate::notes::Notes;
use crate::report::{Report, SourceReport, Times};
use crate::sort::Describer;
use crate::source::check_unchanged;
use crate::survey::survey;
use crate::tree::Tree;
use crate::{FileOutput, Options, Output, PackError, Phase, Progress, Source, explain, memory, recompress, spool};

/// Packs `source` into an image at `output`. An existing file there is replaced when the new one is
/// complete, and untouched if anything fails.
///
/// With [`Options::base`] a block of that image of which three quarters are still needed stays as
/// it is, with its hash; a device that has it fetches the others. At most 2 % of the raw bytes are
/// of files that are gone; beyond that, blocks with the largest part of it are made anew. The
/// base may be packed with any codec, level, block size or stage; its chunk size is taken over, and
/// its dictionaries are kept if a block needs one.
///
/// # Errors
/// The first thing that goes wrong; see [`PackError`].
pub fn pack(source: Source, output: &Path, options: &Options, progress: &dyn Progress) -> Result<Report, PackError> {
    options.validate()?;
    let mut output = FileOutput::create(output)?;
    let skipped = output.identities();
    pack_skipping(source, &skipped, &mut output, options, progress)
}

/// Packs `source` into any [`Output`].
///
/// # Errors
/// As [`pack`].
pub fn pack_to(
    source: Source,
    output: &mut dyn Output,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, PackError> {
    options.validate()?;
    pack_skipping(source, &[], output, options, progress)
}

fn pack_skipping(
    source: Source,
    skipped: &[(u64, u64)],
    output: &mut dyn Output,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, PackError> {
    let start = Instant::now();
    let base = options.base.as_deref().map(Base::open).transpose()?;
    let fitted = base.as_ref().map(|base| base.options(options)).transpose()?;
    let options = fitted.as_ref().unwrap_or(options);
    let mut notes = Notes::default();
    let directory = options.spool_directory.clone().unwrap_or_else(spool::default_directory);
    let tree = source.read(&directory, skipped, &mut notes, progress)?;
    bootable::check(&tree, options)?;
    let threads = options.effective_threads();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| PackError::Threads { count: threads, problem: error.to_string() })?;
    let mut report = write_tree(&tree, base.as_ref(), &pool, output, options, &mut notes, progress)?;
    report.seconds = start.elapsed().as_secs_f64();
    report.notes = notes.lines().collect();
    Ok(report)
}

fn write_tree(
    tree: &Tree,
    base: Option<&Base>,
    pool: &ThreadPool,
    output: &mut dyn Output,
    options: &Options,
    notes: &mut Notes,
    progress: &dyn Progress,
) -> Result<Report, PackError> {
    let params = BuilderParams {
        chunk_shift: options.chunk_bytes().ilog2() as u8,
        derive_hashes: options.derive_hashes,
        ..BuilderParams::default()
    };
    let mut inodes = number(tree, params)?;
    let actions = HotPages::actions(&options.hot, tree, &inodes);
    let hot = HotPages::resolve(&options.hot, &actions, tree, &inodes, notes)?;
    let Inodes { ref mut builder, ref files, bytes, count, .. } = inodes;
    let failed = |output: &dyn Output, source| PackError::write(output.path(), source);
    output.append(&[0; SUPERBLOCK_BYTES]).map_err(|source| failed(output, source))?;

    let mut times = Times::default();
    memory::ensure_survey()?;
    progress.phase(Phase::Survey, bytes);
    let mut survey =
        timed(&mut times.survey, || pool.install(|| survey(files, bytes, &hot, builder, options, progress)))?;
    let kept = match base {
        Some(base) => pool.install(|| base.keep(&survey, options))?,
        None => Kept::default(),
    };
    if options.stages.recompress {
        progress.phase(Phase::Expand, 0);
        let find = || recompress::find(files, &survey.chunks, &kept, Describer::new(options, bytes), options, progress);
        survey.streams = timed(&mut times.expand, || pool.install(find))?;
    }
    memory::ensure_sort(survey.chunks.list.len() as u64, &survey.features)?;
    progress.phase(Phase::Sort, kept.new_chunks(survey.chunks.list.len()));
    let sorted = |chunks| progress.advance(chunks);
    let arrangement =
        timed(&mut times.sort, || pool.install(|| arrange(&survey, &kept, options, &options.stages, &sorted)));
    memory::ensure_blocks(options)?;
    let mut dictionaries = Dictionaries::kept(&kept, &survey, options)?;
    if dictionaries.raw.is_empty() && Dictionaries::fit(options, &options.stages) {
        progress.phase(Phase::Learn, 0);
        let emitter = Emitter { options, files, survey: &survey, kept: &kept, dictionaries: &dictionaries };
        dictionaries = timed(&mut times.learn, || pool.install(|| Dictionaries::learn(&emitter, &arrangement)))?;
    }
    progress.phase(Phase::Pack, survey.bytes());
    let emitter = Emitter { options, files, survey: &survey, kept: &kept, dictionaries: &dictionaries };
    let emitted = timed(&mut times.compress, || {
        emitter.emit(pool, &arrangement, progress, &mut |bytes| {
            output.append(bytes).map_err(|source| PackError::write(output.path(), source))
        })
    })?;
    let explained = if options.explain { Some(explain::stages(pool, &emitter, &emitted, progress)?) } else { None };

    check_unchanged(tree)?;

    let mut report = Report::new(&survey, &kept, &emitted);
    report.source = SourceReport { inodes: count, files: files.len() as u64, bytes };
    report.bytes_dictionaries = dictionaries.raw.iter().map(|raw| raw.len() as u64).sum();
    (report.times, report.stages) = (times, explained);
    let Inodes { mut builder, .. } = inodes;
    builder.set_hot_blocks(emitted.hot_blocks);
    builder.set_dictionaries(dictionaries.raw)?;
    if !actions.is_empty() {
        builder.add_optional_section(SECTION_PROFILE, actions.encode())?;
    }
    let built = builder.finish(&emitted.blocks, &emitted.chunks)?;
    progress.phase(Phase::Finish, built.metadata.len() as u64);
    output.append(&built.metadata).map_err(|source| failed(output, source))?;
    output.write_start(&built.superblock).map_err(|source| failed(output, source))?;
    output.commit().map_err(|source| failed(output, source))?;
    progress.advance(built.metadata.len() as u64);
    (report.id, report.bytes_out, report.bytes_metadata) = (built.id, built.file_bytes, built.metadata.len() as u64);
    Ok(report)
}

fn timed<T>(time: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    *time = start.elapsed();
    done
}
