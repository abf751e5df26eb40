//! The other sources, held against the same known pages.

use record::{ReadsChoice, SourceChoice};
use trace::Source;

use crate::check;
use crate::support::{self, PAGES, ProgramFolder, faulted, pages};

#[test]
fn filemap_touched_pages_are_recorded() {
    let Some(folder) = ProgramFolder::new("filemap") else { return };
    let mut request = folder.request(&["map", "DATA", "3", "100", "517"]);
    (request.source, request.reads) = (SourceChoice::Filemap, ReadsChoice::None);
    check(&folder, request, &faulted(&[3, 100, 517]));
}

#[test]
fn filemap_reads_are_recorded_by_their_ranges() {
    let Some(folder) = ProgramFolder::new("filemap") else { return };
    let mut request = folder.request(&["pread", "DATA", "8000", "9000"]);
    request.source = SourceChoice::Filemap;
    request.library = support::library();
    if request.library.is_some() {
        check(&folder, request, &pages(1..=4));
    }
}

#[test]
fn filemap_leaves_nothing_behind() {
    let Some(folder) = ProgramFolder::new("filemap") else { return };
    let mut request = folder.request(&["map", "DATA", "3"]);
    request.source = SourceChoice::Filemap;
    folder.record(request);
    let mine = format!("runnel-{}-", std::process::id());
    let left = std::fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    let left: Vec<_> = left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&mine)).collect();
    // Other tests of this process may be recording.
    assert!(left.len() <= 3, "{left:?}");
}

#[test]
fn residency_holds_at_least_what_was_touched() {
    let Some(folder) = ProgramFolder::new("residency") else { return };
    let mut request = folder.request(&["map", "DATA", "3", "100"]);
    request.source = SourceChoice::Residency;
    let (outcome, events) = folder.record(request);
    assert_eq!((outcome.exit.code(), outcome.source), (0, Source::Residency));
    let pages = folder.pages_of_data(&events);
    assert!(pages.contains(&3) && pages.contains(&100), "{pages:?}");
    assert!(pages.iter().all(|page| *page < PAGES));
    support::assert_sound(&events);
}
