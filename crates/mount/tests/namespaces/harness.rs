//! Runs the cases one after the other in this one thread, and what they share: an image with a
//! shell in it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use image::fixture::{Fixture, Node};

use crate::cases::CASES;

/// Runs all cases whose name contains the first argument that is no option.
pub fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        CASES.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let chosen: Vec<_> = CASES.iter().filter(|(name, _)| name.contains(&filter)).collect();
    println!("\nrunning {} tests", chosen.len());
    if let Some(why) = obstacle() {
        println!("skipped: {why}");
        return;
    }
    let world = World::new();
    for (name, case) in &chosen {
        // A failed case panics, which ends this process with an error.
        println!("test {name} ...");
        case(&world);
        println!("test {name} ... ok");
    }
    println!("\ntest result: ok. {} passed; 0 failed\n", chosen.len());
}

/// Why nothing can be tested here, if so.
fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err().then_some("no /dev/fuse")
}

/// What the cases share.
pub struct World {
    /// Readable to everyone.
    pub folder: tempfile::TempDir,
    /// This program, where everyone can execute it.
    pub program: PathBuf,
    /// An image with a shell.
    pub image: PathBuf,
}

/// Where an ordinary user finds programs: that of the tests may lie below a home directory.
const PATH_OF_ALL: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// What the image's marker holds.
pub const MARKER: &str = "from the image\n";

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().expect("tempdir");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let program = folder.path().join("program");
        fs::copy(std::env::current_exe().expect("own path"), &program).expect("copied");
        let image = folder.path().join("shell.rnl");
        fs::write(&image, Fixture::default().pack(&tree()).expect("packed")).expect("written");
        World { folder, program, image }
    }

    /// A new empty directory that everyone may enter.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    }

    /// This program with arguments.
    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    /// The same as an ordinary user.
    pub fn command_as_nobody<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&self.program);
        command.args(arguments).current_dir(self.folder.path()).env("HOME", "/nonexistent");
        command.env_remove("XDG_RUNTIME_DIR").env("PATH", PATH_OF_ALL);
        command
    }

    /// `program` as an ordinary user, with a FUSE device as distributions have it, which this
    /// machine may not. In a mount table of its own.
    pub fn command_with_device<'a>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Command {
        let device = self.folder.path().join("device");
        let prepare = format!(
            "set -e; mkdir -p {0}; mount -t tmpfs none {0}; mknod {0}/fuse c 10 229; chmod 666 {0}/fuse; \
             mount --bind {0}/fuse /dev/fuse; export HOME=/nonexistent; unset XDG_RUNTIME_DIR; \
             exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"",
            device.display()
        );
        let mut command = Command::new(&self.program);
        command.args(["own-mounts", "sh", "-c", &prepare, "sh"]).arg(program).args(arguments);
        command.current_dir(self.folder.path()).env("PATH", PATH_OF_ALL);
        command
    }

    /// Starts a daemon of ours and waits until it says that it is ready.
    pub fn daemon<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Daemon {
        Daemon::start(&mut self.command(arguments))
    }
}

impl Daemon {
    /// Starts it and waits until it says that it is ready.
    pub fn start(command: &mut Command) -> Daemon {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        assert_eq!(line, "ready\n");
        Daemon { child }
    }
}

/// A process that is killed when dropped.
pub struct Daemon {
    pub child: Child,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes a mount away whatever happened before.
pub struct Unmount(pub PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = mount::umount(&self.0);
    }
}

/// Standard output of a command that must succeed.
#[track_caller]
pub fn text(command: &mut Command) -> String {
    let output = command.output().expect("starts");
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Exit code and standard error of a command that must fail.
#[track_caller]
pub fn failure(command: &mut Command) -> (i32, String) {
    let Output { status, stderr, .. } = command.output().expect("starts");
    assert!(!status.success());
    (status.code().unwrap_or(-1), String::from_utf8(stderr).expect("text"))
}

/// A shell and a few tools with the libraries they need, and marked files.
fn tree() -> Vec<Node> {
    let mut files = BTreeSet::new();
    let tools = ["sh", "cat", "ls", "id", "env", "sleep", "touch", "stat"];
    for tool in tools {
        let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(tool));
        let found = found.iter().find(|path| path.exists()).expect("this machine has the usual tools");
        let output = Command::new("ldd").arg(found).output().expect("ldd starts");
        let listed = String::from_utf8(output.stdout).expect("text");
        files.extend(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    let mut nodes = vec![];
    let mut made = BTreeSet::new();
    let mut add = |path: &str, bytes: &[u8], permissions: u16| {
        let mut parents: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents {
            let name = parent.to_str().expect("text");
            if !name.is_empty() && made.insert(name.to_string()) {
                nodes.push(Node::dir(name.as_bytes()));
            }
        }
        let mut node = Node::file(path.as_bytes(), bytes);
        node.permissions = permissions;
        nodes.push(node);
    };
    for file in files {
        let path = file.to_str().expect("text").trim_start_matches('/').to_string();
        add(&path, &fs::read(&file).expect("readable"), 0o755);
    }
    for tool in tools {
        let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(tool));
        let found = found.iter().find(|path| path.exists()).expect("found above");
        add(&format!("usr/bin/{tool}"), &fs::read(found).expect("readable"), 0o755);
    }
    add("usr/share/marker", MARKER.as_bytes(), 0o644);
    add("usr/share/broken", b"#!/no/such/interpreter\n", 0o755);
    add("etc/passwd", b"imaginary:x:65534:65534::/:/bin/sh\n", 0o644);
    add("etc/secret", b"of the image's root\n", 0o600);
    nodes.push(Node::dir(b"home"));
    nodes.push(Node::dir(b"srv"));
    nodes.push(Node::symlink(b"bin", b"usr/bin"));
    nodes
}
