//! Events out of made-up faults and mappings of a real file.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::*;

const BASE: u64 = 0x7f00_0000_0000;

struct Fixture {
    assembler: Assembler,
    path: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new(source: Source) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, vec![1; 50 * 4096 - 1]).unwrap();
        let assembler = Assembler::new(Files::new([]), source, CandidatesChoice::Faults, 0);
        Fixture { assembler, path, _folder: folder }
    }

    fn push(&mut self, at: u64, process: u32, what: What) {
        self.assembler.push(Raw { at: at * 1000, process, what: Did::Perf(what) });
    }

    fn map(&self, start: u64, pages: u64, offset: u64) -> What {
        let metadata = std::fs::metadata(&self.path).unwrap();
        let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let path = self.path.as_os_str().as_bytes().to_vec();
        What::Map(Map {
            start,
            bytes: pages * 4096,
            offset,
            device,
            inode: metadata.ino(),
            protection: PROTECTION_EXECUTE,
            path,
        })
    }

    fn finish(self) -> (Vec<String>, Summary) {
        let (bytes, summary) = self.assembler.finish(99_000).unwrap();
        let trace = trace::read(&bytes, &trace::Limits::default()).unwrap();
        let mut tokens = Vec::new();
        let mut shown = |event: &Event| {
            let mut number = |token: &Token| {
                tokens.iter().position(|known| known == token).unwrap_or_else(|| {
                    tokens.push(*token);
                    tokens.len() - 1
                })
            };
            match event {
                Event::Start { token, at, .. } => format!("{} start {}", at.0, number(token)),
                Event::Touch { token, at, page, how } => format!("{} {} touch {page} {how}", at.0, number(token)),
                Event::End { token, at } => format!("{} end {}", at.0, number(token)),
                Event::Code { token, at, offset, .. } => format!("{} {} code {offset}", at.0, number(token)),
                Event::Lookup { token, at, found, .. } => format!("{} {} lookup {found}", at.0, number(token)),
                Event::File { inode, size, .. } => format!("file {inode} {size}"),
            }
        };
        (trace.events.iter().map(&mut shown).collect(), summary)
    }
}

fn fault(address: u64, instruction: u64, major: bool) -> What {
    What::Fault { address, instruction, major }
}

#[test]
fn a_fault_stands_for_its_window_cut_to_mapping_and_file() {
    let mut fixture = Fixture::new(Source::Perf);
    fixture.push(1, 7, What::Exec);
    // Pages 40 to 59 of a file of 50, at an address three pages before the end of a window.
    let map = fixture.map(BASE + 13 * 4096, 20, 40 * 4096);
    fixture.push(2, 7, map);
    fixture.push(3, 7, fault(BASE + 14 * 4096 + 5, 1, true));
    fixture.push(4, 7, fault(BASE + 16 * 4096, BASE + 16 * 4096, false));
    fixture.push(5, 7, fault(BASE + 17 * 4096, BASE + 17 * 4096, false));
    fixture.push(5, 7, fault(BASE + 17 * 4096 + 9, BASE + 17 * 4096 + 9, false));
    fixture.push(6, 7, fault(BASE + 40 * 4096, 1, false));
    fixture.push(7, 7, What::Exit);
    let (shown, summary) = fixture.finish();
    let mut expected = vec!["2 start 0", "file 1 204799", "2 0 touch 1:0 local", "2 0 lookup file"];
    expected.extend(["3 0 touch 1:40 local", "3 0 touch 1:41 demand", "3 0 touch 1:42 local"]);
    let rest: Vec<String> = (43..50).map(|page| format!("4 0 touch 1:{page} local")).collect();
    expected.extend(rest.iter().map(String::as_str));
    let (first, second) = (format!("4 0 code {}", 43 * 4096), format!("5 0 code {}", 44 * 4096));
    expected.extend([first.as_str(), second.as_str(), "7 end 0"]);
    assert_eq!(shown, expected);
    assert_eq!((summary.pages, summary.bytes), (11, 11 * 4096 - 1));
}

#[test]
fn processes_threads_and_execs_have_their_tokens() {
    let mut fixture = Fixture::new(Source::Perf);
    fixture.push(1, 7, What::Exec);
    let map = fixture.map(BASE, 50, 0);
    fixture.push(2, 7, map.clone());
    fixture.push(3, 7, What::Fork { parent: 7 });
    fixture.push(4, 8, What::Fork { parent: 7 });
    fixture.push(5, 8, fault(BASE + 32 * 4096, 1, false));
    fixture.push(6, 7, What::Exit);
    fixture.push(7, 8, What::Exec);
    fixture.push(8, 8, fault(BASE, 1, false));
    fixture.push(9, 8, map);
    fixture.push(10, 7, What::Exit);
    let (shown, summary) = fixture.finish();
    let of_tokens: Vec<&String> = shown.iter().filter(|line| line.contains("start") || line.contains("end")).collect();
    assert_eq!(of_tokens, ["2 start 0", "4 start 1", "7 end 1", "9 start 2", "10 end 0", "99 end 2"]);
    assert!(shown.contains(&"5 1 touch 1:32 local".to_string()), "a child has its parent's mappings: {shown:?}");
    assert_eq!(summary.processes, 3);
}

#[test]
fn a_file_that_changed_is_left_out() {
    let mut fixture = Fixture::new(Source::Perf);
    fixture.push(1, 7, What::Exec);
    let map = fixture.map(BASE, 50, 0);
    fixture.push(2, 7, map);
    std::fs::write(&fixture.path, b"other").unwrap();
    let (shown, summary) = fixture.finish();
    assert!(shown.iter().all(|line| !line.contains("touch") && !line.contains("file 1")), "{shown:?}");
    assert_eq!((summary.changed, summary.pages), (1, 0));
}

#[test]
fn what_comes_without_a_beginning_is_taken_in() {
    let mut fixture = Fixture::new(Source::Perf);
    fixture.push(1, 4_000_000, fault(BASE, 1, false));
    let map = fixture.map(BASE, 50, 0);
    fixture.push(2, 4_000_000, map);
    fixture.push(3, 4_000_000, fault(BASE, 1, false));
    fixture.push(4, 4_000_001, What::Exit);
    fixture.push(5, 4_000_002, What::Lost(3));
    let (shown, summary) = fixture.finish();
    assert_eq!(shown[0], "2 start 0");
    assert_eq!((summary.pages, summary.lost), (16, 3));
}

#[test]
fn trace_points_say_ranges_and_perf_what_was_missing() {
    let mut fixture = Fixture::new(Source::Filemap);
    fixture.push(1, 7, What::Exec);
    let map = fixture.map(BASE, 50, 0);
    fixture.push(2, 7, map);
    fixture.push(3, 7, fault(BASE + 20 * 4096, 1, false));
    fixture.push(4, 7, fault(BASE + 30 * 4096, 1, true));
    let metadata = std::fs::metadata(&fixture.path).unwrap();
    let identity = Identity { device: metadata.dev(), inode: metadata.ino() };
    let what = Did::Range { identity, offset: 47 * 4096 + 9, bytes: 1 << 40, missing: false };
    fixture.assembler.push(Raw { at: 5000, process: 7, what });
    let (shown, _) = fixture.finish();
    let touches: Vec<&String> = shown.iter().filter(|line| line.contains("touch")).collect();
    let expected = ["2 0 touch 1:0 local", "4 0 touch 1:30 demand", "5 0 touch 1:47 local", "5 0 touch 1:48 local"];
    assert_eq!(touches[..4], expected);
    assert_eq!(touches.len(), 5);
}

#[test]
fn a_call_is_a_candidate_while_it_came_once() {
    let mut fixture = Fixture::new(Source::Perf);
    fixture.assembler.candidates = CandidatesChoice::Calls;
    fixture.push(1, 7, What::Exec);
    let map = fixture.map(BASE, 50, 0);
    fixture.push(2, 7, map);
    for (at, address, again) in [(3, BASE + 10, false), (4, BASE + 20, false), (5, BASE + 10, true), (6, 12, false)] {
        fixture.assembler.push(Raw { at: at * 1000, process: 7, what: Did::Called { address, again } });
    }
    let (shown, _) = fixture.finish();
    let code: Vec<&String> = shown.iter().filter(|line| line.contains("code")).collect();
    assert_eq!(code, ["4 0 code 20"]);
}
