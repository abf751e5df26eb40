//! The trace file as a recorder leaves it, with an image in memory and no mount.

use image::fixture::{Fixture, Node};
use trace::{Limits, Tail, Trace};

use super::*;

fn image() -> Arc<Metadata> {
    let long = [vec![b'p'; 250], vec![b'/'; 1]].concat();
    let mut nodes = vec![Node::dir(b"bin"), Node::file(b"bin/sh", &[1; 9000]), Node::file(b"data", &[2; 4096 * 5])];
    // A file so deep that its path is longer than any that Linux takes.
    let mut path = Vec::new();
    for _ in 0..17 {
        path.extend_from_slice(&long);
        nodes.push(Node::dir(&path[..path.len() - 1]));
    }
    path.push(b'f');
    nodes.push(Node::file(&path, &[3; 10]));
    let bytes = Fixture::default().pack(&nodes).unwrap();
    Arc::new(Metadata::open(&bytes, &image::Limits::default()).unwrap())
}

fn read(path: &Path) -> Trace {
    trace::read(&std::fs::read(path).unwrap(), &Limits::default()).unwrap()
}

/// Everything but the times.
fn shown(trace: &Trace) -> Vec<String> {
    let event = |event: &Event| match event {
        Event::Start { token, name, .. } => format!("start {} {}", token.0, name.escape_ascii()),
        Event::Touch { token, page, how, .. } => format!("touch {} {page} {how}", token.0),
        Event::End { token, .. } => format!("end {}", token.0),
        Event::File { size, path, .. } => format!("file {} {size}", path.escape_ascii()),
        Event::Lookup { .. } | Event::Code { .. } => unreachable!("a mount sees neither"),
    };
    trace.events.iter().map(event).collect()
}

#[test]
fn first_touches_are_written_with_names_and_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let image = image();
    let [sh, data] = ["/bin/sh", "/data"].map(|path| image.resolve(path.as_bytes()).unwrap());
    let recording = Recording::create(&path, false).unwrap();
    recording.begin(&image);
    recording.start(Token(1), b"/bin/sh".to_vec());
    recording.touch(Token(1), sh, 2..3, Answer::Later);
    recording.start(Token(2), Vec::new());
    recording.touch(Token(2), data, 1..4, Answer::AtOnce);
    recording.touch(Token(1), data, 0..2, Answer::Later);
    recording.end(Token(1));
    recording.touch(Token(2), sh, 2..3, Answer::AtOnce);
    let summary = recording.finish().unwrap();
    let trace = read(&path);
    assert_eq!((trace.tail, trace.header.image, trace.header.source), (Tail::Whole, image.id(), Source::Mount));
    let touch = |token: u32, file: InodeId, page: u32, how: &str| format!("touch {token} {file}:{page} {how}");
    let expected = [
        "start 1 /bin/sh".to_string(),
        "file bin/sh 9000".into(),
        touch(1, sh, 2, "demand"),
        "start 2 ".into(),
        "file data 20480".into(),
        touch(2, data, 1, "local"),
        touch(2, data, 2, "local"),
        touch(2, data, 3, "local"),
        touch(1, data, 0, "demand"),
        "end 1".into(),
        "end 2".into(),
    ];
    assert_eq!(shown(&trace), expected);
    assert_eq!((summary.files, summary.pages, summary.processes), (2, 5, 2));
    assert_eq!(summary.bytes, (9000 - 8192) + 4 * 4096);
    assert_eq!(summary.trace_bytes, std::fs::metadata(&path).unwrap().len());
    // Late calls change nothing.
    recording.end(Token(2));
    assert_eq!(read(&path), trace);
}

#[test]
fn a_path_that_no_trace_can_hold_leaves_its_file_unnamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let image = image();
    let deep = (1..=image.inode_count()).map(InodeId).find(|id| image.path(*id).is_some_and(|path| path.len() > 4096));
    let recording = Recording::create(&path, false).unwrap();
    recording.begin(&image);
    recording.start(Token(1), vec![b'n'; 5000]);
    recording.touch(Token(1), deep.unwrap(), 0..1, Answer::Later);
    assert_eq!(recording.finish().unwrap().files, 1);
    let named = read(&path).events.iter().any(|event| matches!(event, Event::File { .. }));
    assert!(!named);
}

#[test]
fn what_was_flushed_is_readable_when_the_recorder_dies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let image = image();
    let recording = Recording::create(&path, false).unwrap();
    recording.begin(&image);
    assert_eq!(read(&path).events, [], "the header is there before anything runs");
    for token in 0..FLUSH_RECORDS as u128 + 3 {
        recording.start(Token(token), Vec::new());
    }
    drop(recording);
    let trace = read(&path);
    assert_eq!(trace.events.len(), FLUSH_RECORDS);
    assert!(matches!(trace.tail, Tail::Cut { .. }));
}

#[test]
fn files_are_not_overwritten_unasked_and_a_run_that_never_began_leaves_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    Recording::create(&path, false).unwrap().discard();
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let error = Recording::create(&path, false).unwrap_err().to_string();
    assert!(error.contains("--force"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    Recording::create(&path, true).unwrap().discard();
    assert_eq!(std::fs::read(&path).unwrap(), b"precious", "until there is something better");
    let recording = Recording::create(&path, true).unwrap();
    recording.begin(&image());
    assert_eq!(read(&path).events, [], "a trace of its own");
    let error = Recording::create(&folder.path().join("none/t"), false).unwrap_err();
    assert!(error.to_string().contains("none/t"), "{error}");
}

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        eprintln!("skipped: no /dev/full");
        return;
    }
    let image = image();
    let data = image.resolve(b"/data").unwrap();
    let recording = Recording::create(full, true).unwrap();
    recording.begin(&image);
    recording.start(Token(1), Vec::new());
    recording.touch(Token(1), data, 0..3, Answer::Later);
    recording.end(Token(1));
    let error = format!("{:#}", recording.finish().unwrap_err());
    assert!(error.contains("/dev/full is not complete") && error.contains("No space left"), "{error}");
    recording.discard();
    assert!(full.exists());
}
