//! An action set as text: stable, for people and for golden tests.

use std::fmt::{self, Write};

use units::SegmentIndex;

use crate::{Action, ActionSet, Teacher, VERSION};

/// Writes `set` as text: a line an action, a line a segment. A page is `inode:index`; neighbours
/// are written as a range; a page carries `+` if a run that was not exact added it and `-` for each
/// exact run that missed it.
///
/// # Errors
/// Those of `out`.
pub fn dump(set: &ActionSet, out: &mut dyn Write) -> fmt::Result {
    let (count, pages) = (set.len(), set.pages_total());
    writeln!(out, "actions version {VERSION} image {} actions {count} pages {pages}", set.image())?;
    for action in set.iter() {
        let Action { id, revision, uses, pushes, score, last_used, runs, stable, .. } = action;
        let stable = if *stable { "stable" } else { "learning" };
        write!(out, "action {id} revision {revision} {stable} runs {runs} uses {uses} pushes {pushes} ")?;
        write!(out, "score {score} last-used {last_used} ")?;
        if action.teacher != Teacher::ANYBODY {
            write!(out, "teacher {:016x} ", action.teacher.0)?;
        }
        writeln!(out, "pages {}", action.pages.len())?;
        for segment in 0..action.segments() {
            write!(out, "  segment {segment}:")?;
            dump_segment(action, SegmentIndex(segment), out)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

fn dump_segment(action: &Action, segment: SegmentIndex, out: &mut dyn Write) -> fmt::Result {
    let mut at = action.segment(segment);
    while let Some(start) = at.next() {
        let (page, mark) = (action.pages[start], action.marks[start]);
        write!(out, " {page}")?;
        let mut last = page;
        while let Some(next) = at.clone().next() {
            if last.next() != Some(action.pages[next]) || action.marks[next] != mark {
                break;
            }
            last = action.pages[next];
            at.next();
        }
        if last != page {
            write!(out, "-{}", last.index)?;
        }
        if mark.extra {
            write!(out, "+")?;
        }
        (0..mark.misses).try_for_each(|_| write!(out, "-"))?;
    }
    Ok(())
}
