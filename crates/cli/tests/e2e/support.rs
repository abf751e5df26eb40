//! Servers, mounts and commands as values that clean up after themselves.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};

/// How long anything may take to become ready before a test gives up on it.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long one command may take before it counts as hanging; on a busy machine the slowest takes
/// two minutes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);

/// The binary under test. It keeps nothing in the device cache of this machine.
pub fn runnel() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runnel"));
    command.env("RUNNEL_CACHE", "none");
    command
}

/// A user without rights.
pub const NOBODY: u32 = 65534;

/// A runnel of its own, which may be replaced while it runs.
pub struct Installed {
    /// Others may look into it.
    pub folder: tempfile::TempDir,
}

impl Installed {
    /// A copy of the binary under test.
    pub fn new() -> Installed {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("opened to others");
        let installed = Installed { folder };
        installed.install(env!("CARGO_BIN_EXE_runnel").as_ref());
        installed
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("runnel")
    }

    /// Puts a copy of `file` in its place, as a package manager does: another file of that name.
    pub fn install(&self, file: &Path) {
        let new = self.folder.path().join("runnel.new");
        std::fs::copy(file, &new).expect("copied");
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).expect("executable");
        std::fs::rename(&new, self.path()).expect("renamed");
    }

    pub fn remove(&self) {
        std::fs::remove_file(self.path()).expect("removed");
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(self.path());
        command.env("RUNNEL_CACHE", "none");
        command
    }

    /// The same for a user, root if none is given.
    pub fn command_of(&self, user: Option<u32>) -> Command {
        let mut command = self.command();
        if let Some(user) = user {
            command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/").current_dir("/").uid(user).gid(user);
        }
        command
    }

    /// Whether a process runs from the file that is there now.
    pub fn runs(&self, process: u32) -> bool {
        let number = |path: &Path| std::fs::metadata(path).map(|about| (about.dev(), about.ino())).expect("a file");
        number(&self.path()) == number(Path::new(&format!("/proc/{process}/exe")))
    }
}

/// The first child of a process.
pub fn child_of(process: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).expect("a process");
    children.split_whitespace().next().expect("a child").parse().expect("a number")
}

/// Runs `runnel ARGS…` and fails the test with its output unless it succeeds.
pub fn ok<I: AsRef<OsStr>>(arguments: &[I]) -> String {
    let output = run(arguments);
    assert!(
        output.status.success(),
        "runnel {:?} ended with {}\n{}{}",
        arguments.iter().map(|argument| argument.as_ref()).collect::<Vec<_>>(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `runnel ARGS…` whatever comes of it.
pub fn run<I: AsRef<OsStr>>(arguments: &[I]) -> Output {
    output(runnel().args(arguments))
}

/// Runs a command and collects what it says. One that hangs is killed, and fails the test by its
/// name.
pub fn output(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the command starts");
    let process = Pid::from_child(&child);
    let (ended, watched) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let hangs = watched.recv_timeout(COMMAND_TIMEOUT) == Err(RecvTimeoutError::Timeout);
        if hangs {
            // It may have ended this very moment.
            let _ = kill_process(process, Signal::KILL);
        }
        hangs
    });
    let output = child.wait_with_output().expect("the command can be waited for");
    drop(ended);
    let hung = watch.join().expect("the watch ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!hung, "{command:?} did not end in {COMMAND_TIMEOUT:?}: {said}");
    output
}

/// Waits for the end of a child; one that hangs is killed, and fails the test.
pub fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            return status;
        }
        if start.elapsed() > READY_TIMEOUT {
            let _ = child.kill();
            panic!("process {} did not end in {READY_TIMEOUT:?}", child.id());
        }
        // Its end is told by no descriptor that the standard library has; a short pause keeps the
        // poll cheap.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Sends a signal to a child. No program `kill` is used: a fresh machine has none.
pub fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the child is there");
}

/// Waits for a line of a program.
pub fn hear(child: &mut Child, expected: &str) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it speaks");
    assert_eq!(line.trim_end(), expected);
}

/// Runs `runnel ARGS…`, which must fail with `code`, print no panic and name `what`. Returns the
/// message.
pub fn fails<I: AsRef<OsStr>>(arguments: &[I], code: i32, what: &str) -> String {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let shown = arguments.iter().map(|argument| argument.as_ref()).collect::<Vec<_>>();
    assert_eq!(output.status.code(), Some(code), "runnel {shown:?}: {text}");
    assert!(!text.contains("panicked"), "runnel {shown:?} panicked: {text}");
    assert!(text.contains(what), "runnel {shown:?} does not name {what:?}: {text}");
    text
}

/// Whether mounts can be tried here; prints the reason if not.
pub fn can_mount(test: &str) -> bool {
    let root = is_root();
    let fuse = Path::new("/dev/fuse").exists();
    if !root || !fuse {
        eprintln!("skipped {test}: needs {}", if root { "/dev/fuse" } else { "root" });
    }
    root && fuse
}

/// Whether who is not root can mount as well; prints the reason if not. In some containers
/// /dev/fuse is for root alone.
pub fn others_can_mount(test: &str) -> bool {
    let opened =
        Command::new("sh").args(["-c", ": <>/dev/fuse"]).uid(NOBODY).gid(NOBODY).stderr(Stdio::null()).status();
    let can = can_mount(test) && opened.is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped {test}: needs a /dev/fuse that is open to all");
    }
    can
}

/// Whether who is not root may have name spaces of its own here; prints the reason if not. The
/// kernel refuses it in a chroot.
pub fn can_be_alone(test: &str) -> bool {
    let tried = Command::new("unshare").args(["--user", "--mount", "true"]).uid(NOBODY).gid(NOBODY).output();
    let can = tried.is_ok_and(|tried| tried.status.success());
    if !can {
        eprintln!("skipped {test}: needs user namespaces");
    }
    can
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|text| {
        text.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}

/// Waits until `path` holds text, as long as `child` lives.
pub fn wait_for_file(path: &Path, child: &mut Child, what: &str) -> String {
    let start = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(path)
            && !text.trim().is_empty()
        {
            return text.trim().to_string();
        }
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            let mut text = String::new();
            if let Some(mut pipe) = child.stderr.take() {
                let _ = pipe.read_to_string(&mut text);
            }
            panic!("{what} ended with {status} before it was ready: {text}");
        }
        assert!(start.elapsed() < READY_TIMEOUT, "{what} is not ready after {READY_TIMEOUT:?}");
        // Readiness is a file appearing in another process; a short pause keeps the poll from
        // eating the processor.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A server of one store.
pub struct Server {
    child: Child,
    /// host:port it listens on.
    pub address: String,
}

impl Server {
    /// Starts a server of `store` on a free port.
    pub fn start(store: &Path) -> Server {
        Server::start_at(store, "127.0.0.1:0", &[])
    }

    /// Starts a server of `store` on `listen` with more arguments.
    pub fn start_at(store: &Path, listen: &str, more: &[&str]) -> Server {
        Server::start_with(store, listen, more, Stdio::inherit())
    }

    /// Starts a server of `store` on a free port whose lines go to the file `log`.
    pub fn start_logged(store: &Path, log: &Path, more: &[&str]) -> Server {
        let log = std::fs::File::create(log).expect("the log");
        Server::start_with(store, "127.0.0.1:0", more, log.into())
    }

    fn start_with(store: &Path, listen: &str, more: &[&str], log: Stdio) -> Server {
        let mut command = runnel();
        command.arg("serve").arg(store).args(["--listen", listen]).args(more);
        Server::start_by(command, log)
    }

    /// Starts a server by a command that lacks only the file that says when it is ready.
    pub fn start_by(mut command: Command, log: Stdio) -> Server {
        let ready = tempfile::NamedTempFile::new().expect("a temporary file");
        command.arg("--ready-file").arg(ready.path()).stdin(Stdio::null()).stderr(log);
        let mut child = command.spawn().expect("the server starts");
        let address = wait_for_file(ready.path(), &mut child, "runnel serve");
        Server { child, address }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, such as the two that stop it and let it go on.
    pub fn send(&self, signal: Signal) {
        send(&self.child, signal);
    }

    /// SIGTERM, and its end, which must be a success.
    pub fn terminate(mut self) {
        self.send(Signal::TERM);
        assert!(wait(&mut self.child).success());
    }

    /// The URL of an image on this server.
    pub fn url(&self, name: &str) -> String {
        format!("runnel://{}/{name}", self.address)
    }

    /// kill -9.
    pub fn kill(mut self) -> String {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("the server can be waited for");
        self.address.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A mount in the foreground of a child process.
pub struct Mount {
    child: Child,
    /// Where it is mounted.
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mount {
    /// Mounts `target` on a new directory.
    pub fn start(target: impl AsRef<OsStr>, more: &[&str]) -> Mount {
        Mount::start_by(runnel(), None, target, more)
    }

    /// Mounts by another binary, and for another user than root.
    pub fn start_by(mut runnel: Command, user: Option<u32>, target: impl AsRef<OsStr>, more: &[&str]) -> Mount {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("mnt");
        std::fs::create_dir(&path).expect("the mount point");
        for path in [folder.path(), &path] {
            std::os::unix::fs::chown(path, user, user).expect("given to the user");
        }
        let ready = folder.path().join("ready");
        let mut child = runnel
            .arg("mount")
            .arg(target)
            .arg(&path)
            .args(["--foreground", "--ready-file"])
            .arg(&ready)
            .args(more)
            // As a mount in the background has it.
            .envs([("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_TRIM_THRESHOLD_", "65536")])
            .stdin(Stdio::null())
            .spawn()
            .expect("the mount starts");
        wait_for_file(&ready, &mut child, "runnel mount");
        Mount { child, path, _folder: folder }
    }

    /// The counters of the mount.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&ok(&["status".as_ref(), "--json".as_ref(), self.path.as_os_str()])).expect("JSON")
    }

    /// The process id of the daemon: the child of the keeper, or the process itself if it has none.
    pub fn daemon(&self) -> u32 {
        let keeper = self.keeper();
        let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
        children.split_whitespace().last().map_or(keeper, |child| child.parse().expect("a number"))
    }

    /// The process id of the keeper.
    pub fn keeper(&self) -> u32 {
        self.child.id()
    }

    /// kill -9 of the daemon. Its keeper starts another one, or ends.
    pub fn kill_daemon(&self) {
        let daemon = Pid::from_raw(self.daemon().cast_signed()).expect("a process");
        kill_process(daemon, Signal::KILL).expect("the daemon can be killed");
    }

    /// kill -9 of all processes of the mount, which stays as a dead one.
    pub fn kill(&mut self) {
        let daemon = pidfd_open(Pid::from_raw(self.daemon().cast_signed()).expect("a process"), PidfdFlags::empty());
        let daemon = daemon.expect("the daemon lives");
        self.child.kill().expect("the keeper can be killed");
        self.child.wait().expect("the keeper can be waited for");
        // Without a keeper it has ended with that.
        let _ = pidfd_send_signal(&daemon, Signal::KILL);
        let limit = Timespec { tv_sec: READY_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&limit)).expect("it can be waited for");
        assert!(ended > 0, "the daemon does not end");
    }

    /// Waits for the end of the keeper.
    pub fn wait_ended(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// Waits until nothing is mounted there any more.
    pub fn wait_unmounted(&self) {
        let table = std::fs::File::open("/proc/self/mountinfo").expect("a mount table");
        while mount::mountpoint::mounted_at(&self.path).expect("a mount table").is_some() {
            // The kernel tells of each change since the table was opened, or since the last time it
            // told.
            let limit = Timespec { tv_sec: READY_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
            let told = poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&limit)).expect("it can be waited for");
            assert!(told > 0, "{} stays mounted", self.path.display());
        }
    }

    /// SIGTERM, and the end of the daemon, which must be a success.
    pub fn terminate(&mut self) {
        send(&self.child, Signal::TERM);
        assert!(wait(&mut self.child).success());
    }

    /// The resident memory of the daemon that is not file-backed, in kB.
    pub fn resident_kilobytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.daemon())).expect("the daemon lives");
        let field = |name: &str| -> u64 {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
                .unwrap_or_default()
        };
        field("RssAnon:")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run(&["umount".as_ref(), self.path.as_os_str()]);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").args(["-l".as_ref(), self.path.as_os_str()]).stderr(Stdio::null()).status();
    }
}

/// Packs Debian's python3 with its libraries and modules into `folder`/python.rnl, once for all
/// tests of this process.
pub fn python_image() -> &'static Path {
    static IMAGE: std::sync::OnceLock<(tempfile::TempDir, PathBuf)> = std::sync::OnceLock::new();
    &IMAGE
        .get_or_init(|| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("python.rnl");
            let mut arguments: Vec<&OsStr> = vec!["pack".as_ref(), "--closure".as_ref(), "/usr/bin/python3".as_ref()];
            for included in ["/usr/lib/python3.11", "/usr/lib/python3", "/etc/python3.11"] {
                if Path::new(included).exists() {
                    arguments.extend::<[&OsStr; 2]>(["--include".as_ref(), included.as_ref()]);
                }
            }
            arguments.extend::<[&OsStr; 2]>(["--output".as_ref(), path.as_os_str()]);
            ok(&arguments);
            (folder, path)
        })
        .1
}
