//! A folder with a program and a data file, and what tests ask of traces.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

use record::{Outcome, Request, SourceChoice};
use trace::{Event, Found, Limits};

/// Pages of the data file; its last one is not full.
pub const PAGES: u32 = 1024;

/// Pages around a fault.
const WINDOW_PAGES: u32 = 16;

pub struct ProgramFolder {
    folder: tempfile::TempDir,
    program: &'static str,
}

impl ProgramFolder {
    /// `None`, with a word why, if there is no C compiler or the source does not work here.
    pub fn new(source: &str) -> Option<ProgramFolder> {
        if source == "perf" && probe::perf::Rings::open(1 << 16).is_err() {
            eprintln!("skipped: perf events are not allowed here");
            return None;
        }
        if source == "filemap" && !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: trace points need root");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let folder = ProgramFolder { folder, program: "touch" };
        // In small pieces: of one large write the kernel makes folios of 2 MiB, which one fault
        // maps whole and unseen.
        let mut data = fs::File::create(folder.path("data")).expect("made");
        let bytes = vec![7; PAGES as usize * 4096 - 100];
        bytes.chunks(16 << 10).for_each(|piece| std::io::Write::write_all(&mut data, piece).expect("written"));
        folder.compile("touch", &["-pthread"]).then_some(folder)
    }

    /// The same with a static program.
    pub fn with_static_program(mut self) -> Option<ProgramFolder> {
        let done = self.compile("touch-static", &["-pthread", "-static"]);
        self.program = "touch-static";
        done.then_some(self)
    }

    fn compile(&self, name: &str, options: &[&str]) -> bool {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recording/touch.c");
        let compiled = Command::new("cc").arg("-O1").args(options).arg("-o").arg(self.path(name)).arg(source).output();
        let done = compiled.as_ref().is_ok_and(|output| output.status.success());
        if !done {
            eprintln!("skipped: cc cannot make {name}: {compiled:?}");
        }
        done
    }

    pub fn path(&self, name: &str) -> String {
        let folder = self.folder.path().canonicalize().expect("a folder");
        folder.join(name).to_str().expect("plain").to_string()
    }

    pub fn program(&self) -> String {
        self.path(self.program)
    }

    /// touch.c with these arguments; DATA is the data file. Without reads.
    pub fn request(&self, arguments: &[&str]) -> Request {
        let mut request = Request::new(self.program());
        let data = self.path("data");
        request.arguments = arguments.iter().map(|text| if *text == "DATA" { &data } else { *text }.into()).collect();
        request.source = SourceChoice::Perf;
        request.library = Some("/nonexistent".into());
        request
    }

    pub fn record(&self, request: Request) -> (Outcome, Vec<Event>) {
        let outcome = record::record(&request).expect("recorded");
        let events = trace::read(&outcome.trace, &Limits::default()).expect("a good trace").events;
        (outcome, events)
    }

    pub fn pages_of_data(&self, events: &[Event]) -> BTreeSet<u32> {
        let path = self.path("data");
        let inode = events.iter().find_map(|event| match event {
            Event::File { inode, path: other, .. } if *other == path.as_bytes()[1..] => Some(*inode),
            _ => None,
        });
        let pages = events.iter().filter_map(|event| match event {
            Event::Touch { page, .. } if Some(page.inode) == inode => Some(page.index),
            _ => None,
        });
        pages.collect()
    }
}

/// The pages of whole windows around these.
pub fn windows(pages: &[u32]) -> BTreeSet<u32> {
    pages
        .iter()
        .flat_map(|page| {
            let first = page / WINDOW_PAGES * WINDOW_PAGES;
            first..(first + WINDOW_PAGES).min(PAGES)
        })
        .collect()
}

/// What page faults on these pages tell: the pages, or their windows on a kernel that cannot do
/// better.
pub fn faulted(pages: &[u32]) -> BTreeSet<u32> {
    match probe::exact::probe() {
        Ok(()) => pages.iter().copied().collect(),
        Err(error) => {
            println!("windows of 64 KiB, not pages, are tested here: {error}");
            windows(pages)
        }
    }
}

pub fn pages(range: RangeInclusive<u32>) -> BTreeSet<u32> {
    range.collect()
}

/// What holds for every trace of ours.
pub fn assert_sound(events: &[Event]) {
    let mut touched = HashSet::new();
    let mut named = HashSet::new();
    for event in events {
        match event {
            Event::File { inode, size, .. } => {
                assert!(named.insert(*inode));
                assert!(*size > 0);
            }
            Event::Touch { page, .. } => {
                assert!(named.contains(&page.inode), "a touch of a file without a name");
                assert!(touched.insert(*page), "{page} twice");
            }
            Event::Code { inode, .. } => assert!(named.contains(inode), "code of a file without a name"),
            _ => {}
        }
    }
}

/// What a look-up of `path` found.
pub fn found(events: &[Event], path: &str) -> Option<Found> {
    events.iter().find_map(|event| match event {
        Event::Lookup { found, path: other, .. } if *other == path.as_bytes()[1..] => Some(*found),
        _ => None,
    })
}

pub fn name(event: &Event) -> Option<&[u8]> {
    match event {
        Event::Start { name, .. } => Some(name),
        _ => None,
    }
}

/// Where in the file the first instruction of a program lies: position-independent programs are
/// mapped as they lie.
pub fn entry_offset(program: &str) -> u64 {
    let bytes = fs::read(program).expect("readable");
    u64::from_le_bytes(*bytes[24..].first_chunk().expect("an ELF header"))
}

/// Addresses that a disassembler gives to instructions; empty without one.
pub fn instruction_starts(program: &str) -> BTreeSet<u64> {
    let Ok(output) = Command::new("objdump").args(["-d", program]).output() else {
        eprintln!("skipped: no objdump to compare with");
        return BTreeSet::new();
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let address = |line: &str| u64::from_str_radix(line.split_once(":\t")?.0.trim(), 16).ok();
    text.lines().filter_map(address).collect()
}

/// The preloaded library, built if it is not there.
pub fn library() -> Option<PathBuf> {
    build(&[], None)
}

/// The same with the feature `calls`.
pub fn library_with_calls() -> Option<PathBuf> {
    build(&["--features", "calls"], Some("calls"))
}

fn build(options: &[&str], folder: Option<&str>) -> Option<PathBuf> {
    let profile = std::env::current_exe().ok()?.parent()?.parent()?.to_path_buf();
    let target = folder.map_or(profile.parent()?.to_path_buf(), |folder| profile.join(folder));
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "-q", "-p", "runnel-preload", "--target-dir"])
        .arg(&target)
        .args(options)
        .output();
    let path = target.join(profile.file_name()?).join(record::LIBRARY);
    let path = if path.is_file() { path } else { target.join("debug").join(record::LIBRARY) };
    if !path.is_file() {
        eprintln!("skipped: no {}: {built:?}", path.display());
        return None;
    }
    Some(path)
}

/// Records as the user `nobody`: this test program starts itself again as that user, with what to
/// do in its environment.
pub fn as_nobody(folder: &ProgramFolder, arguments: &[&str], expected: &BTreeSet<u32>) {
    use std::os::unix::fs::PermissionsExt;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can become somebody else");
        return;
    }
    fs::set_permissions(folder.path(""), fs::Permissions::from_mode(0o777)).expect("opened");
    let me = folder.path("recorder");
    fs::copy(std::env::current_exe().expect("a path"), &me).expect("copied");
    let out = folder.path("trace");
    let data = folder.path("data");
    let arguments: Vec<&str> = arguments.iter().map(|text| if *text == "DATA" { &data } else { *text }).collect();
    let status = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", &me, "helper_as_nobody", "--ignored"])
        .env("RECORD_AS_NOBODY", format!("{out}\n{}\n{}", folder.program(), arguments.join("\n")))
        .output();
    let Ok(output) = status else {
        eprintln!("skipped: no setpriv");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let events = trace::read(&fs::read(out).expect("a trace"), &Limits::default()).expect("a good trace").events;
    assert_eq!(&folder.pages_of_data(&events), expected);
}

#[test]
#[ignore = "started by perf_nobody_can_record_too"]
fn helper_as_nobody() {
    let Ok(plan) = std::env::var("RECORD_AS_NOBODY") else { return };
    let mut lines = plan.lines();
    let (out, program) = (lines.next().expect("a path"), lines.next().expect("a program"));
    let mut request = Request::new(program);
    request.arguments = lines.map(Into::into).collect();
    let outcome = record::record(&request).expect("recorded");
    assert_eq!(outcome.exit.code(), 0);
    fs::write(out, outcome.trace).expect("written");
}
