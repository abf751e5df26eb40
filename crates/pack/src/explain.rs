//! What each stage saves: makes the blocks again, once for each stage that is switched on, and only
//! counts their bytes.
//!
//! Costs one compression of everything for each line, so it happens only when asked for.

use rayon::ThreadPool;

use crate::arrange::arrange;
use crate::dictionary::Dictionaries;
use crate::emit::{Emitted, Emitter};
use crate::options::Stages;
use crate::report::StageReport;
use crate::sort::Method;
use crate::{PackError, Phase, Progress};

/// The stages of `whole`'s options, one after the other; the last line is what was written.
pub(crate) fn stages(
    pool: &ThreadPool,
    whole: &Emitter<'_>,
    emitted: &Emitted,
    progress: &dyn Progress,
) -> Result<Vec<StageReport>, PackError> {
    let wanted = whole.options.stages;
    let mut now = Stages {
        group: false,
        sort: Method::None,
        filter: false,
        dictionary: false,
        hot: false,
        recompress: false,
        ..wanted
    };
    let mut next = now;
    let mut lines = vec![measure(pool, whole, now, "file order", progress)?];
    let mut add = |stage, next: Stages| -> Result<(), PackError> {
        if next != now {
            now = next;
            let is_all = now == wanted;
            lines.push(if is_all {
                written(whole, emitted, stage)
            } else {
                measure(pool, whole, now, stage, progress)?
            });
        }
        Ok(())
    };
    next.group = wanted.group;
    add("groups", next)?;
    next.sort = wanted.sort;
    add("similarity", next)?;
    next.filter = wanted.filter;
    add("filters", next)?;
    next.dictionary = wanted.dictionary;
    add("dictionaries", next)?;
    next.hot = wanted.hot;
    add("hot chunks apart", next)?;
    next.recompress = wanted.recompress;
    add("deflate as text", next)?;
    Ok(lines)
}

fn measure(
    pool: &ThreadPool,
    whole: &Emitter<'_>,
    stages: Stages,
    stage: &'static str,
    progress: &dyn Progress,
) -> Result<StageReport, PackError> {
    let (options, files, survey) = (whole.options, whole.files, whole.survey);
    progress.phase(Phase::Explain(stage), survey.bytes());
    let arrangement = pool.install(|| arrange(survey, whole.kept, options, &stages, &|_| {}));
    let mut dictionaries = Dictionaries::default();
    if Dictionaries::fit(options, &stages) {
        let emitter = Emitter { options, files, survey, kept: whole.kept, dictionaries: &dictionaries };
        dictionaries = pool.install(|| Dictionaries::learn(&emitter, &arrangement))?;
    }
    let emitter = Emitter { options, files, survey, kept: whole.kept, dictionaries: &dictionaries };
    let emitted = emitter.emit(pool, &arrangement, progress, &mut |_| Ok(()))?;
    Ok(written(&emitter, &emitted, stage))
}

fn written(emitter: &Emitter<'_>, emitted: &Emitted, stage: &'static str) -> StageReport {
    let blocks: u64 = emitted.blocks.iter().map(|block| u64::from(block.stored_bytes)).sum();
    let dictionaries = emitter.dictionaries.stored_bytes();
    let block_of: Vec<u32> = emitted.chunks.iter().map(|chunk| chunk.block.0).collect();
    StageReport {
        stage,
        bytes: blocks + dictionaries,
        blocks_per_file: emitter.survey.blocks_per_file(&block_of, |_| true),
    }
}
