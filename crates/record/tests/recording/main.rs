//! Programs that touch known pages, recorded.

mod sources;
mod stops;
mod support;

use std::collections::BTreeSet;

use record::{MapsChoice, ReadsChoice, Request};
use support::{PAGES, ProgramFolder, faulted, pages, windows};
use trace::{Event, Found};

/// A trace of touch.c with these arguments holds exactly these pages of the data file.
fn check(folder: &ProgramFolder, request: Request, expected: &BTreeSet<u32>) -> Vec<Event> {
    let (outcome, events) = folder.record(request);
    assert_eq!(outcome.exit.code(), 0, "{outcome:?}");
    assert_eq!(outcome.summary.lost, 0);
    assert_eq!(&folder.pages_of_data(&events), expected);
    support::assert_sound(&events);
    events
}

#[test]
fn perf_touched_pages_are_recorded() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let last = PAGES - 1;
    let request = folder.request(&["map", "DATA", "3", "100", "101", "517", &last.to_string()]);
    check(&folder, request, &faulted(&[3, 100, 101, 517, last]));
}

#[test]
fn perf_without_stops_sees_windows() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let mut request = folder.request(&["map", "DATA", "3", "100", "101"]);
    request.maps = MapsChoice::Perf;
    check(&folder, request, &windows(&[3, 100]));
}

#[test]
fn perf_threads_and_children_are_followed() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    check(&folder, folder.request(&["thread", "DATA", "200"]), &faulted(&[200]));
    let events = check(&folder, folder.request(&["fork", "DATA", "300"]), &faulted(&[300]));
    let names: Vec<&[u8]> = events.iter().filter_map(support::name).collect();
    assert_eq!(names.len(), 2, "a child has a token of its own");
    assert_eq!(names[0], names[1]);
}

#[test]
fn perf_each_program_of_an_exec_chain_has_a_token() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let program = folder.program();
    let request = folder.request(&["exec", &program, "exec", &program, "map", "DATA", "40"]);
    let events = check(&folder, request, &faulted(&[40]));
    assert_eq!(events.iter().filter_map(support::name).count(), 3);
    let ends = events.iter().filter(|event| matches!(event, Event::End { .. })).count();
    assert_eq!(ends, 3);
}

#[test]
fn perf_code_is_where_instructions_start() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let (_, events) = folder.record(folder.request(&["map", "DATA", "1"]));
    let entry = support::entry_offset(&folder.program());
    let name = folder.program();
    let inode = events.iter().find_map(|event| match event {
        Event::File { inode, path, .. } if *path == name.as_bytes()[1..] => Some(*inode),
        _ => None,
    });
    let code: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Code { inode: file, offset, .. } if Some(*file) == inode => Some(*offset),
            _ => None,
        })
        .collect();
    // The first of the program's own code that runs is its entry point, or a function that the
    // linker calls before on that page.
    assert!(!code.is_empty());
    let starts = support::instruction_starts(&folder.program());
    for offset in &code {
        assert!(starts.is_empty() || starts.contains(offset), "{offset:#x} is no instruction of {starts:x?}");
    }
    let page = |offset: u64| offset / 4096;
    assert!(code.iter().any(|offset| page(*offset) == page(entry)), "{code:x?} {entry:#x}");
}

#[test]
fn perf_static_programs_are_recorded() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let Some(folder) = folder.with_static_program() else { return };
    check(&folder, folder.request(&["map", "DATA", "64"]), &faulted(&[64]));
}

#[test]
fn perf_a_tiny_ring_loses_records_and_says_so() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let mut request = Request::new("sh");
    request.arguments = vec!["-c".into(), "for i in 1 2 3 4 5 6 7 8; do (:); ls / >/dev/null; done".into()];
    request.ring_bytes = 4096;
    request.reads = ReadsChoice::None;
    let (outcome, events) = folder.record(request);
    assert_eq!(outcome.exit.code(), 0);
    support::assert_sound(&events);
    if outcome.summary.lost == 0 {
        eprintln!("skipped: the reader kept up with a ring of a page");
    } else {
        assert!(outcome.notes.iter().any(|note| note.contains("lost")), "{:?}", outcome.notes);
    }
}

#[test]
fn perf_nobody_can_record_too() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    support::as_nobody(&folder, &["map", "DATA", "3", "100"], &faulted(&[3, 100]));
}

#[test]
fn perf_reads_are_recorded_by_their_ranges() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let Some(library) = support::library() else { return };
    for call in ["pread", "read"] {
        let mut request = folder.request(&[call, "DATA", "8000", "9000"]);
        request.library = Some(library.clone());
        check(&folder, request, &pages(1..=4));
    }
    let mut request = folder.request(&["fread", "DATA", "40960", "20480"]);
    request.library = Some(library);
    check(&folder, request, &pages(10..=14));
}

#[test]
fn perf_lookups_are_recorded_with_what_they_found() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let Some(library) = support::library() else { return };
    let data = folder.path("data");
    let inner = folder.path("folder");
    std::fs::create_dir_all(&inner).expect("made");
    std::os::unix::fs::symlink(&inner, folder.path("link")).expect("linked");
    let mut request = folder.request(&["open", "DATA", &inner, &folder.path("link/../link/none")]);
    request.library = Some(library);
    let (_, events) = folder.record(request);
    assert_eq!(support::found(&events, &data), Some(Found::File));
    assert_eq!(support::found(&events, &inner), Some(Found::Directory));
    assert_eq!(support::found(&events, &folder.path("folder/none")), Some(Found::Nothing));
}

#[test]
fn perf_files_that_change_are_left_out() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let mut request = folder.request(&["write", "DATA"]);
    request.library = support::library();
    let (outcome, events) = folder.record(request);
    assert_eq!(outcome.exit.code(), 0);
    assert_eq!(folder.pages_of_data(&events), BTreeSet::new());
}

#[test]
fn perf_a_killed_program_leaves_a_whole_trace() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let (outcome, events) = folder.record(folder.request(&["raise", "9"]));
    assert_eq!(outcome.exit.code(), 128 + 9);
    support::assert_sound(&events);
    assert!(outcome.summary.pages > 0);
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let result = record::record(&Request::new("/nonexistent/program"));
    assert!(matches!(result, Err(record::RecordError::Start { .. } | record::RecordError::Source { .. })));
}

#[test]
fn perf_calls_are_candidates_where_they_were_made_once() {
    let Some(folder) = ProgramFolder::new("perf") else { return };
    let Some(library) = support::library_with_calls() else { return };
    let mut request = folder.request(&["map", "DATA", "1"]);
    request.library = Some(library);
    request.candidates = record::CandidatesChoice::Calls;
    let (outcome, events) = folder.record(request);
    assert_eq!(outcome.exit.code(), 0);
    support::assert_sound(&events);
    // The program itself makes no such call; the dynamic linker's are not seen, the C library's own
    // are.
    let addresses = events.iter().filter(|event| matches!(event, Event::Code { .. }));
    assert_eq!(addresses.count(), outcome.summary.code);
}
