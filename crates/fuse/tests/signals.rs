//! Waits that signals end, over a real mount of a file system that never answers.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, UNIX_EPOCH};

use fuse::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo, KernelConfig, Read, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, Request, Session, open_flag,
};
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Files, named after the operation on them that is never answered; a READ of "slow" is answered
/// when the test says so.
const NAMES: [&str; 6] = ["open", "read", "fsync", "flush", "slow", "plain"];

/// How long anything may take before a test counts it as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is never answered, until the mount ends.
enum Held {
    Open(ReplyOpen),
    Slow(ReplyData),
    Other { _reply: Box<dyn Send> },
}

struct Silent {
    held: Arc<Mutex<Vec<Held>>>,
    /// Told the name of the file of each operation that waits.
    waits: Sender<&'static str>,
}

impl Silent {
    fn hold(&self, name: &'static str, held: Held) {
        self.held.lock().unwrap().push(held);
        // The test may be over.
        let _ = self.waits.send(name);
    }

    fn attributes(inode: INodeNo) -> FileAttr {
        let is_root = inode == INodeNo::ROOT;
        FileAttr {
            ino: inode,
            size: 4096,
            blocks: 8,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }
}

fn name(inode: INodeNo) -> &'static str {
    NAMES[inode.0 as usize - 2]
}

impl Filesystem for Silent {
    fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()> {
        config.set_max_write(1 << 17);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match NAMES.iter().position(|known| name == *known) {
            Some(index) => {
                let _ = reply.entry(&PATIENCE, &Silent::attributes(INodeNo(index as u64 + 2)), 0);
            }
            None => reply.error(Errno::NOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&PATIENCE, &Silent::attributes(inode));
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: i32, reply: ReplyOpen) {
        match name(inode) {
            "open" => self.hold("open", Held::Open(reply)),
            _ => assert!(reply.opened(FileHandle(1), open_flag::DIRECT_IO)),
        }
    }

    fn read(&self, request: &Request, inode: INodeNo, read: Read, reply: ReplyData) {
        assert_ne!(request.pid(), 0);
        match name(inode) {
            "read" => self.hold("read", Held::Other { _reply: Box::new(reply) }),
            "slow" => self.hold("slow", Held::Slow(reply)),
            _ => reply.data(if read.offset == 0 { b"text" } else { b"" }),
        }
    }

    fn flush(&self, _request: &Request, inode: INodeNo, _handle: FileHandle, _owner: u64, reply: ReplyEmpty) {
        match name(inode) {
            "flush" => self.hold("flush", Held::Other { _reply: Box::new(reply) }),
            _ => reply.ok(),
        }
    }

    fn fsync(&self, _request: &Request, inode: INodeNo, _handle: FileHandle, _: bool, reply: ReplyEmpty) {
        match name(inode) {
            "fsync" => self.hold("fsync", Held::Other { _reply: Box::new(reply) }),
            _ => reply.ok(),
        }
    }
}

struct Mount {
    path: PathBuf,
    held: Arc<Mutex<Vec<Held>>>,
    waits: Receiver<&'static str>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
    _folder: tempfile::TempDir,
}

impl Mount {
    /// `None`, with a line that says why, where mounts cannot be tested.
    fn start(test: &str) -> Option<Mount> {
        let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let (Ok(device), true) = (device, rustix::process::geteuid().is_root()) else {
            eprintln!("skipped {test}: needs root and /dev/fuse");
            return None;
        };
        let device = OwnedFd::from(device);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_path_buf();
        let text = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&device));
        let text = std::ffi::CString::new(text).expect("no zero byte");
        rustix::mount::mount("silent", &path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(text.as_c_str()))
            .expect("mounted");
        let (held, (waits, told)) = (Arc::default(), channel());
        let filesystem = Silent { held: Arc::clone(&held), waits };
        let session = Session::new(filesystem, device.into(), 3).expect("the handshake");
        let serving = Some(thread::spawn(move || session.run()));
        Some(Mount { path, held, waits: told, serving, _folder: folder })
    }

    fn file(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Starts a shell command, and waits until the file system holds what it asks for.
    fn blocked(&self, name: &str, script: &str) -> Child {
        let child = shell(script);
        assert_eq!(self.waits.recv_timeout(PATIENCE), Ok(NAMES.into_iter().find(|known| *known == name).unwrap()));
        child
    }

    /// Answers the READ of "slow".
    fn answer(&self) {
        match self.held.lock().unwrap().pop() {
            Some(Held::Slow(reply)) => reply.data(b"late"),
            _ => panic!("nobody reads it"),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // What is held is answered with an error, so that nobody waits whatever failed.
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
        let served = self.serving.take().map(JoinHandle::join);
        if !thread::panicking() {
            served.expect("it was served").expect("no panic").expect("it ends when the mount is gone");
        }
    }
}

fn shell(script: &str) -> Child {
    Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for the end of a child that should end.
fn ends(child: &Child) {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ended, 1, "process {} hangs", child.id());
}

fn check_killed(name: &str, script: impl Fn(&str) -> String) {
    let Some(mount) = Mount::start(&format!("fuse_killed_in_{name}")) else { return };
    let mut child = mount.blocked(name, &script(&mount.file(name)));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    child.kill().unwrap();
    ends(&child);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    // The mount serves on.
    assert_eq!(fs::read(mount.path.join("plain")).unwrap(), b"text");
    // The file system learns that nobody got what it answers now.
    if let Some(Held::Open(reply)) = mount.held.lock().unwrap().pop() {
        assert!(!reply.opened(FileHandle(9), 0));
    }
}

#[test]
fn fuse_killed_in_open() {
    check_killed("open", |file| format!("exec cat {file}"));
}

#[test]
fn fuse_killed_in_a_direct_read() {
    check_killed("read", |file| format!("exec cat {file}"));
}

#[test]
fn fuse_killed_in_fsync() {
    check_killed("fsync", |file| format!("exec sync {file}"));
}

#[test]
fn fuse_killed_in_close() {
    check_killed("flush", |file| format!("exec 3<{file}; exec 3<&-"));
}

/// A process that is killed closes its files, one after the other, and no signal reaches it then.
#[test]
fn fuse_killed_with_open_files() {
    let Some(mount) = Mount::start("fuse_killed_with_open_files") else { return };
    let (file, read) = (mount.file("flush"), mount.file("read"));
    let mut child = mount.blocked("read", &format!("exec 3<{file} 4<{file} 5<{file}; exec cat {read}"));
    child.kill().unwrap();
    ends(&child);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

/// One that ends by itself waits a moment for what it wrote, not for ever.
#[test]
fn fuse_ends_with_open_files() {
    let Some(mount) = Mount::start("fuse_ends_with_open_files") else { return };
    let file = mount.file("flush");
    let mut child = mount.blocked("flush", &format!("exec 3<{file} 4<{file} 5<{file}; exit 0"));
    ends(&child);
    assert!(child.wait().unwrap().success());
}

/// Executing another program closes files, too, and holds up whoever reads some files in /proc.
#[test]
fn regress_fuse_a_program_that_waits_in_execve_holds_up_nobody() {
    let Some(mount) = Mount::start("regress_fuse_a_program_that_waits_in_execve") else { return };
    let file = mount.file("flush");
    let mut first = mount.blocked("flush", &format!("exec perl -e 'open(F, \"<\", \"{file}\"); exec(\"true\")'"));
    let mut second = mount.blocked("flush", &format!("exec 3<{file}; exit 0"));
    // The first one is looked at before it.
    ends(&second);
    assert!(second.wait().unwrap().success() && first.try_wait().unwrap().is_none());
    first.kill().unwrap();
    ends(&first);
    assert_eq!(first.wait().unwrap().signal(), Some(9));
}

/// SIGQUIT makes a core file, so the kernel does not turn it into SIGKILL.
#[test]
fn fuse_ended_by_quit_in_a_direct_read() {
    let Some(mount) = Mount::start("fuse_ended_by_quit_in_a_direct_read") else { return };
    // Who starts tests in the background may ignore the signal, and so would the program.
    let script = format!("ulimit -c 0; exec env --default-signal=QUIT cat {}", mount.file("read"));
    let mut child = mount.blocked("read", &script);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGQUIT).unwrap();
    ends(&child);
    assert_eq!(child.wait().unwrap().signal(), Some(3));
}

/// A process that is stopped and continued does not notice it.
#[test]
fn fuse_stopped_in_a_slow_read() {
    let Some(mount) = Mount::start("fuse_stopped_in_a_slow_read") else { return };
    let mut child = mount.blocked("slow", &format!("test \"$(head -c 4 {})\" = late", mount.file("slow")));
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    // Not SIGTSTP, which does nothing in a process group without a shell that waits for it.
    nix::sys::signal::kill(pid, Signal::SIGSTOP).unwrap();
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    nix::sys::signal::kill(pid, Signal::SIGCONT).unwrap();
    mount.answer();
    ends(&child);
    assert!(child.wait().unwrap().success());
}

extern "C" fn handle(_signal: i32) {}

/// Reads a file in this process while SIGALRM, which has a handler, comes again and again. `after`
/// so many signals the read is answered.
fn read_under_alarms(mount: &Mount, name: &str, after: usize) -> std::io::Result<Vec<u8>> {
    let action = SigAction::new(SigHandler::Handler(handle), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGALRM, &action) }.expect("a handler");
    let path = mount.path.join(name);
    let (tell, told) = channel();
    let (over, ended) = channel::<()>();
    let reading = thread::spawn(move || {
        let _over = over;
        tell.send(pthread_self()).unwrap();
        let mut file = fs::File::open(path)?;
        let mut buffer = [0; 100];
        // Not read_to_end, which would try again.
        let read = file.read(&mut buffer).map(|count| buffer[..count].to_vec());
        Ok::<_, std::io::Error>(read)
    });
    let thread = told.recv().unwrap();
    assert_eq!(mount.waits.recv_timeout(PATIENCE).ok(), NAMES.into_iter().find(|known| *known == name));
    // The pace of the signals.
    let pace = Duration::from_millis(50);
    for number in 1.. {
        let _ = pthread_kill(thread, Signal::SIGALRM);
        if ended.recv_timeout(pace) == Err(RecvTimeoutError::Disconnected) {
            break;
        }
        if number == after {
            mount.answer();
        }
        assert!(pace * number as u32 <= PATIENCE, "the read does not end");
    }
    reading.join().unwrap().expect("it opens")
}

#[test]
fn fuse_caught_signals_do_not_end_a_read_of_a_second() {
    let Some(mount) = Mount::start("fuse_caught_signals_do_not_end_a_read_of_a_second") else { return };
    assert_eq!(read_under_alarms(&mount, "slow", 20).unwrap(), b"late");
}

#[test]
fn fuse_caught_signals_end_a_read_that_lasts() {
    let Some(mount) = Mount::start("fuse_caught_signals_end_a_read_that_lasts") else { return };
    let error = read_under_alarms(&mount, "read", usize::MAX).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
}

#[test]
fn fuse_the_path_of_a_mount_is_free_when_it_ends() {
    let Some(mount) = Mount::start("fuse_the_path_of_a_mount_is_free_when_it_ends") else { return };
    let path: &Path = &mount.path.clone();
    assert!(path.join("plain").exists());
    drop(mount);
    assert!(!path.exists());
}
