//! Real mounts, over a source in memory that can be told to stall.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use client::{Counters, Done, PageSink, ReadError, StoreOutcome};
use image::fixture::{Body, Fixture, Node, Part};
use image::{Content, Limits, Metadata};
use rustix::fs::{SeekFrom, XattrFlags};
use rustix::io::Errno;
use units::{InodeId, PAGE_BYTES, PageId, Token};

use super::*;
use crate::mountpoint;

/// Why real mounts cannot be tested here, if so.
fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err().then_some("no /dev/fuse")
}

macro_rules! need_fuse {
    () => {
        if let Some(why) = obstacle() {
            eprintln!("skipped: {why}");
            return;
        }
    };
}

mod contents;
mod hints;
mod recording;

/// An image and its contents, in memory.
struct Memory {
    metadata: Arc<Metadata>,
    contents: BTreeMap<Vec<u8>, Vec<u8>>,
    sink: Mutex<Option<Arc<dyn PageSink>>>,
    tokens: Mutex<Vec<Token>>,
    ended: Mutex<Vec<Token>>,
    hinted: Mutex<Vec<PageId>>,
    /// While set, READs wait here, and each is announced.
    stalled: Mutex<Option<Sender<()>>>,
    waiting: Mutex<Vec<Done>>,
    closed: std::sync::atomic::AtomicBool,
}

impl Memory {
    fn new(nodes: &[Node]) -> Arc<Memory> {
        let image = Fixture::default().pack(nodes).expect("packed");
        let metadata = Arc::new(Metadata::open(&image, &Limits::default()).expect("valid"));
        let contents = nodes.iter().filter_map(|node| match &node.body {
            Body::File(parts) => {
                let bytes = parts.iter().flat_map(|part| match part {
                    Part::Data(bytes) => bytes.clone(),
                    Part::Hole(bytes) => vec![0; *bytes as usize],
                });
                Some(([b"/", node.path.as_slice()].concat(), bytes.collect()))
            }
            _ => None,
        });
        Arc::new(Memory {
            metadata,
            contents: contents.collect(),
            sink: Mutex::default(),
            tokens: Mutex::default(),
            ended: Mutex::default(),
            hinted: Mutex::default(),
            stalled: Mutex::default(),
            waiting: Mutex::default(),
            closed: false.into(),
        })
    }

    fn inode(&self, path: &str) -> InodeId {
        self.metadata.resolve(path.as_bytes()).expect("in the image")
    }

    fn sink(&self) -> Arc<dyn PageSink> {
        self.sink.lock().expect("unpoisoned").clone().expect("attached")
    }

    fn stall(&self) -> Receiver<()> {
        let (sender, receiver) = mpsc::channel();
        *self.stalled.lock().expect("unpoisoned") = Some(sender);
        receiver
    }
}

impl Source for Memory {
    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn attach(&self, sink: Arc<dyn PageSink>) {
        *self.sink.lock().expect("unpoisoned") = Some(sink);
    }

    fn is_local(&self) -> bool {
        false
    }

    fn read(&self, token: Token, inode: InodeId, offset: u64, bytes: u32, done: Done) -> bool {
        self.tokens.lock().expect("unpoisoned").push(token);
        if self.closed.load(std::sync::atomic::Ordering::SeqCst) {
            done(Err(ReadError::Shutdown));
            return true;
        }
        if let Some(announce) = self.stalled.lock().expect("unpoisoned").as_ref() {
            self.waiting.lock().expect("unpoisoned").push(done);
            announce.send(()).expect("listened to");
            return false;
        }
        let path = self.metadata.path(inode).expect("known");
        let start = offset as usize;
        done(Ok(&self.contents[&path][start..start + bytes as usize]));
        true
    }

    fn end(&self, token: Token) {
        self.ended.lock().expect("unpoisoned").push(token);
    }

    fn hint(&self, pages: &[PageId]) -> usize {
        self.hinted.lock().expect("unpoisoned").extend(pages);
        pages.len()
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn shutdown(&self) {
        self.closed.store(true, std::sync::atomic::Ordering::SeqCst);
        for done in self.waiting.lock().expect("unpoisoned").drain(..) {
            done(Err(ReadError::Shutdown));
        }
    }
}

struct Mount {
    mounted: Mounted,
    source: Arc<Memory>,
    folder: tempfile::TempDir,
}

fn mount_with(nodes: &[Node], options: Options) -> Mount {
    let folder = tempfile::tempdir().expect("tempdir");
    let source = Memory::new(nodes);
    let mounted = Mounted::start_source(source.clone(), folder.path(), options).expect("mounts");
    Mount { mounted, source, folder }
}

fn mount(nodes: &[Node]) -> Mount {
    mount_with(nodes, Options { control: false, ..Options::default() })
}

impl Mount {
    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn requests(&self) -> u64 {
        self.mounted.fuse_counters().requests()
    }
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8 ^ (at >> 8) as u8 ^ seed).collect()
}

/// One of everything.
fn zoo() -> Vec<Node> {
    let mut odd = Node::file(b"dir/\xff\xfe not utf-8", &pattern(10_000, 1));
    odd.permissions = 0o4751;
    (odd.uid, odd.gid, odd.mtime) = (1000, 60_000, (-5, 250_000_000));
    let mut capable = Node::file(b"dir/capable", b"#!/bin/sh\n");
    // Version 2, cap_net_raw permitted and effective.
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    capable.xattrs = vec![(b"security.capability".to_vec(), capability), (b"user.colour".to_vec(), b"red".to_vec())];
    let hole = 64 * PAGE_BYTES as u64;
    let parts = vec![Part::Data(pattern(PAGE_BYTES, 2)), Part::Hole(hole), Part::Data(pattern(100, 3))];
    let mut far = Node::file(b"far", b"x");
    far.mtime = (1 << 33, 999_999_999);
    vec![
        Node::dir(b"dir"),
        odd,
        capable,
        Node::new(b"dir/sparse", Body::File(parts)),
        Node::file(b"dir/empty", b""),
        Node::dir(b"dir/none"),
        Node::new(b"dir/link", Body::HardLink(b"dir/capable".to_vec())),
        Node::symlink(b"dir/absolute", b"/dir/capable"),
        Node::symlink(b"relative", b"dir/../dir/empty"),
        Node::symlink(b"long", &[b'l'; 4000]),
        Node::new(b"null", Body::Other(Content::Char(image::device_number(1, 3).expect("fits")))),
        Node::new(b"disk", Body::Other(Content::Block(image::device_number(259, 70_000).expect("fits")))),
        Node::new(b"pipe", Body::Other(Content::Fifo)),
        Node::new(b"socket", Body::Other(Content::Socket)),
        far,
    ]
}

#[test]
fn fuse_a_warm_program_asks_the_daemon_nothing() {
    need_fuse!();
    let mut nodes = zoo();
    let program = fs::canonicalize("/bin/cat").expect("cat");
    let mut cat = Node::file(b"cat", &fs::read(program).expect("readable"));
    cat.permissions = 0o755;
    nodes.push(cat);
    let mount = mount(&nodes);
    let run = || {
        let program = mount.at("cat");
        let inputs = ["dir/sparse", "relative", "dir/capable", "dir/link"].map(|path| mount.at(path));
        let output = Command::new(program).args(inputs).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::symlink_metadata(mount.at("dir/no such name")).is_err());
        let names = fs::read_dir(mount.at("dir")).expect("listed").count();
        (output.stdout, names)
    };
    let first = run();
    assert_eq!(first.1, 7);
    let asked = mount.requests();
    // The kernel may have to drop pages if the machine is short of memory; it cannot be so at every
    // one of these.
    let mut later: Vec<u64> = Vec::new();
    for _ in 0..5 {
        let before = mount.requests();
        assert_eq!(run(), first);
        later.push(mount.requests() - before);
    }
    assert!(asked > 0 && later.contains(&0), "{asked} requests at first, later {later:?}");
    let counters = mount.mounted.fuse_counters();
    assert!(counters.open <= 1 && counters.opendir <= 1, "{counters:?}");
}

#[test]
fn fuse_stored_pages_are_never_read() {
    need_fuse!();
    let content = pattern(70 * PAGE_BYTES + 123, 9);
    let mount = mount(&[Node::dir(b"d"), Node::file(b"d/file", &content), Node::file(b"other", b"abc")]);
    let sink = mount.source.sink();
    let inode = mount.source.inode("/d/file");
    let page = |at: usize| &content[at * PAGE_BYTES..content.len().min((at + 32) * PAGE_BYTES)];
    assert_eq!(sink.store(inode, 0, page(0)), StoreOutcome::UnknownInode, "nobody has looked it up");
    assert!(sink.look_up(inode));
    for first in [0, 32, 64] {
        assert_eq!(sink.store(inode, first as u32, page(first)), StoreOutcome::Stored);
    }
    assert_eq!(fs::read(mount.at("d/file")).expect("readable"), content);
    let reads = mount.mounted.fuse_counters().read;
    // Pages may be evicted at once on a machine short of memory, so a few may be asked for again.
    assert!(reads <= 2, "{reads} READs although everything was stored");
    // What would make the file grow, leave a page half filled, or is no file at all is refused.
    assert_eq!(sink.store(inode, 70, &pattern(PAGE_BYTES, 0)), StoreOutcome::Failed);
    assert_eq!(sink.store(inode, 0, b"short"), StoreOutcome::Failed);
    assert_eq!(sink.store(inode, 71, &[0; PAGE_BYTES]), StoreOutcome::Failed);
    assert_eq!(sink.store(inode, 0, b""), StoreOutcome::Failed);
    assert_eq!(sink.store(InodeId::ROOT, 0, b"abc"), StoreOutcome::Failed);
    assert_eq!(sink.store(InodeId(9999), 0, b"abc"), StoreOutcome::Failed);
    assert_eq!(fs::metadata(mount.at("d/file")).expect("there").len(), content.len() as u64);
    assert!(!sink.look_up(InodeId(9999)));
    mount.mounted.unmount().expect("unmounts; nothing of ours keeps it busy");
    assert!(!sink.look_up(inode));
    assert_eq!(sink.store(inode, 0, page(0)), StoreOutcome::Failed);
}

#[test]
fn fuse_a_process_has_one_token_and_its_end_is_told() {
    need_fuse!();
    let content = pattern(40 * PAGE_BYTES, 4);
    let mount = mount(&[Node::file(b"a", &content), Node::file(b"b", &content)]);
    for file in ["a", "b"] {
        assert!(Command::new("cat").arg(mount.at(file)).output().expect("runs").status.success());
    }
    let tokens: BTreeSet<Token> = mount.source.tokens.lock().expect("unpoisoned").iter().copied().collect();
    assert_eq!(tokens.len(), 2, "one for each cat");
    // The mount's end joins the thread that tells of exits, and it has seen both by then or it
    // never will.
    let until = Instant::now() + Duration::from_secs(20);
    while mount.source.ended.lock().expect("unpoisoned").len() < 2 && Instant::now() < until {
        thread::yield_now();
    }
    let ended: BTreeSet<Token> = mount.source.ended.lock().expect("unpoisoned").iter().copied().collect();
    assert_eq!(ended, tokens);
}

#[test]
fn fuse_the_kernel_asks_for_single_pages() {
    need_fuse!();
    let content = pattern(64 * PAGE_BYTES, 5);
    let mount = mount(&[Node::file(b"file", &content)]);
    let file = fs::File::open(mount.at("file")).expect("opens");
    let mut byte = [0];
    for page in [3, 40, 11] {
        file.read_exact_at(&mut byte, page * PAGE_BYTES as u64).expect("reads");
        assert_eq!(byte[0], content[page as usize * PAGE_BYTES]);
    }
    assert_eq!(mount.mounted.fuse_counters().read, 3);
    assert_eq!(mount.source.tokens.lock().expect("unpoisoned").len(), 3);
}

#[test]
fn fuse_unmounting_ends_waiting_reads_with_an_error() {
    need_fuse!();
    let mount = mount(&[Node::file(b"file", &pattern(PAGE_BYTES, 6))]);
    let announced = mount.source.stall();
    let path = mount.at("file");
    let reader = thread::spawn(move || fs::read(path));
    announced.recv().expect("a READ waits");
    mount.mounted.unmount().expect("unmounts although a READ waits");
    assert!(reader.join().expect("no panic").is_err());
    assert!(mount.mounted.is_over());
    mount.mounted.wait().expect("over without fault");
}

#[test]
fn fuse_a_detached_mount_serves_its_last_user() {
    need_fuse!();
    let content = pattern(20 * PAGE_BYTES, 7);
    let mount = mount(&[Node::file(b"file", &content)]);
    let mut file = fs::File::open(mount.at("file")).expect("opens");
    crate::umount(mount.folder.path()).expect("detaches");
    assert!(!mount.at("file").exists());
    let mut read = Vec::new();
    file.read_to_end(&mut read).expect("still served");
    assert_eq!(read, content);
    assert!(!mount.mounted.is_over());
    drop(file);
    mount.mounted.wait().expect("ends with its last user");
}

#[test]
fn fuse_the_connection_can_be_aborted_from_the_side() {
    need_fuse!();
    let mount = mount(&[Node::file(b"file", &pattern(PAGE_BYTES, 6))]);
    let announced = mount.source.stall();
    let path = mount.at("file");
    let reader = thread::spawn(move || fs::read(path));
    announced.recv().expect("a READ waits");
    mount.mounted.shared.served.abort();
    assert!(reader.join().expect("no panic").is_err());
    mount.mounted.wait().expect("the loops end");
    // What is left behind is a stale mount, and says so.
    let folder = mount.folder.path();
    assert!(mountpoint::is_stale(folder));
    assert!(matches!(mountpoint::validate(folder), Err(MountError::Stale { .. })));
    crate::umount(folder).expect("removed");
    assert!(mountpoint::validate(folder).is_ok());
}

#[test]
fn fuse_dropped_answers_become_errors() {
    need_fuse!();
    let mount = mount(&[Node::file(b"file", &pattern(PAGE_BYTES, 6))]);
    let announced = mount.source.stall();
    let path = mount.at("file");
    let reader = thread::spawn(move || fs::read(path));
    // As if the session's thread had panicked, each time: the kernel asks once more when reading
    // ahead failed.
    while !reader.is_finished() {
        if announced.recv_timeout(Duration::from_millis(10)).is_ok() {
            mount.source.waiting.lock().expect("unpoisoned").clear();
        }
    }
    assert_eq!(reader.join().expect("no panic").unwrap_err().raw_os_error(), Some(5));
}

#[test]
fn fuse_a_mount_point_in_use_is_refused() {
    need_fuse!();
    let mount = mount_with(&zoo(), Options { name: "zoo".into(), control: false, ..Options::default() });
    let again = Mounted::start_source(mount.source.clone(), mount.folder.path(), Options::default());
    match again.err() {
        Some(MountError::AlreadyMounted { image, path }) => {
            assert_eq!(image, "zoo");
            assert_eq!(path, mount.folder.path());
        }
        other => panic!("{other:?}"),
    }
    let inside = Mounted::start_source(mount.source.clone(), &mount.at("far"), Options::default());
    assert!(matches!(inside.err(), Some(MountError::NotDirectory { .. })));
}

#[test]
fn fuse_an_overlay_keeps_changes_and_goes_with_the_mount() {
    need_fuse!();
    let changes = tempfile::tempdir().expect("tempdir");
    let options = Options { overlay: Some(changes.path().into()), name: "zoo".into(), ..Options::default() };
    let mount = mount_with(&zoo(), options);
    assert_eq!(fs::read(mount.at("far")).expect("from the image"), b"x");
    fs::write(mount.at("far"), b"changed").expect("written");
    fs::remove_file(mount.at("relative")).expect("removed");
    assert_eq!(fs::read(mount.at("far")).expect("from the overlay"), b"changed");
    assert_eq!(fs::read(changes.path().join("upper/far")).expect("kept"), b"changed");
    let lower = mount.mounted.shared.served.live.path.clone();
    assert_ne!(lower, mount.folder.path());
    let listed = crate::mounts().expect("listed");
    let status = listed.iter().find(|status| status.mountpoint == mount.folder.path()).expect("is listed");
    assert_eq!((status.name.as_str(), status.overlay.as_deref()), ("zoo", Some(changes.path())));
    crate::umount(mount.folder.path()).expect("by its socket");
    mount.mounted.wait().expect("both are gone");
    assert!(mountpoint::mounted_at(&lower).expect("table").is_none());
    // What was kept is there again.
    let source = Memory::new(&zoo());
    let options = Options { overlay: Some(changes.path().into()), control: false, ..Options::default() };
    let again = Mounted::start_source(source, mount.folder.path(), options).expect("mounts again");
    assert_eq!(fs::read(mount.at("far")).expect("kept"), b"changed");
    assert!(!mount.at("relative").is_symlink());
    // Taken away by somebody who does not know of the image below.
    mountpoint::detach(mount.folder.path()).expect("detached");
    again.wait().expect("the image below goes too");
}
