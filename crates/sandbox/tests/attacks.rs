//! What code that runs inside a parser can do: this program starts itself once for each role,
//! enters the role's sandbox, and tries what an attacker would. The commands enter the same roles.
//!
//! Its processes have one thread, as a command has when it enters, so it runs without the usual
//! harness.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use sandbox::{Role, Sandbox};

/// Names the role that the started process is to try.
const ROLE: &str = "RUNNEL_TEST_ROLE";
/// Names the folder that its parent prepared.
const FOLDER: &str = "RUNNEL_TEST_FOLDER";

const ROLES: [(&str, Role); 7] = [
    ("server", Role::Server),
    ("remote-server", Role::RemoteServer),
    ("archive", Role::Archive),
    ("tree", Role::Tree),
    ("converter", Role::Converter),
    ("local-mount", Role::LocalMount),
    ("remote-mount", Role::RemoteMount),
];

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(ROLE) {
        let role = ROLES.iter().find(|(known, _)| *known == name).expect("a role").1;
        attack(role, Path::new(&std::env::var_os(FOLDER).expect("a folder")));
        return ExitCode::SUCCESS;
    }
    for (name, role) in ROLES {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        let mut bystander = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep is there");
        let status = Command::new(std::env::current_exe().expect("this program"))
            .env(ROLE, name)
            .env(FOLDER, folder.path())
            .env("RUNNEL_TEST_BYSTANDER", bystander.id().to_string())
            .status()
            .expect("it starts");
        bystander.kill().expect("it runs");
        bystander.wait().expect("it ends");
        assert!(status.success(), "{name}: {status}");
        assert_eq!(fs::read(folder.path().join("secret")).expect("there"), b"secret", "{role:?}");
        println!("test attacks of code in role {name} ... ok");
    }
    ExitCode::SUCCESS
}

fn prepare(folder: &Path) {
    for name in ["data", "output"] {
        fs::create_dir(folder.join(name)).expect("a folder");
    }
    fs::write(folder.join("secret"), b"secret").expect("a file");
    fs::write(folder.join("data/file"), b"data").expect("a file");
    std::os::unix::fs::symlink("../secret", folder.join("data/link")).expect("a link");
    fs::copy("/bin/true", folder.join("output/program")).expect("a program");
    fs::set_permissions(folder.join("output/program"), fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn attack(role: Role, folder: &Path) {
    let server = TcpListener::bind("127.0.0.1:0").expect("a server");
    let other = TcpListener::bind("127.0.0.1:0").expect("another");
    let local = folder.join("data/socket");
    let _listener = UnixListener::bind(&local).expect("a socket");
    let (server_at, other_at) = (server.local_addr().expect("bound"), other.local_addr().expect("bound"));
    let shell = fs::canonicalize("/bin/true").expect("a program");
    let interpreter = fs::canonicalize("/lib64/ld-linux-x86-64.so.2").unwrap_or_else(|_| shell.clone());
    let mounts = matches!(role, Role::LocalMount | Role::RemoteMount);
    let entered = Sandbox::new(role)
        .read([folder.join("data")])
        // As the daemon of a mount has it, which looks whose thread reads.
        .read(mounts.then_some("/proc"))
        .write([folder.join("output")])
        .execute([shell.clone(), interpreter])
        .connect([server_at.port()])
        .enter()
        .expect("the sandbox can be entered");
    if let Some(missing) = entered.missing() {
        println!("skipped in part: this kernel or container has no {missing}");
    }
    work(folder);
    assert!(!mounts || fs::read(bystander().join("stat")).is_ok());
    let refused = |what: &str, outcome: io::Result<()>| {
        let error = outcome.map(|()| format!("{role:?}: {what} was possible")).expect_err("refused");
        let known = [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::ENOENT].map(Some);
        assert!(known.contains(&error.raw_os_error()), "{role:?}: {what}: {error}");
    };
    if entered.landlock {
        files(folder, &refused);
    }
    if entered.seccomp {
        sockets(role, &refused);
        kernel(&refused);
        if role != Role::Converter {
            refused("a program", Command::new(&shell).status().map(drop));
        }
    }
    if entered.landlock && entered.seccomp {
        refused("a program that was written", Command::new(folder.join("output/program")).status().map(drop));
        refused("a shell", Command::new("/bin/sh").arg("-c").arg(":").status().map(drop));
        connections(role, server_at, other_at, &local, &refused);
    }
    if role == Role::Converter {
        assert!(Command::new(&shell).status().expect("it starts").success());
    }
    privileges(role);
}

type Refused<'a> = &'a dyn Fn(&str, io::Result<()>);

/// What each role needs.
fn work(folder: &Path) {
    assert_eq!(fs::read(folder.join("data/file")).expect("readable"), b"data");
    let (new, named) = (folder.join("output/new"), folder.join("output/named"));
    let mut file = File::create(&new).expect("writable");
    file.write_all(b"text").and_then(|()| file.sync_all()).expect("written");
    fs::rename(&new, &named).expect("renamed");
    fs::create_dir(folder.join("output/below")).expect("made");
    fs::rename(&named, folder.join("output/below/named")).expect("moved");
    fs::remove_dir_all(folder.join("output/below")).expect("removed");
    let threads: Vec<_> = (0..4).map(|number| std::thread::spawn(move || number * 2)).collect();
    let sum: i32 = threads.into_iter().map(|thread| thread.join().expect("it ends")).sum();
    assert_eq!(sum, 12);
    assert!(std::thread::available_parallelism().is_ok());
}

/// A process that is none of this one's business.
fn bystander() -> PathBuf {
    PathBuf::from("/proc").join(std::env::var("RUNNEL_TEST_BYSTANDER").expect("a process"))
}

fn files(folder: &Path, refused: Refused<'_>) {
    let bystander = bystander();
    for path in [
        Path::new("/etc/shadow"),
        Path::new("/etc/passwd"),
        Path::new("/"),
        Path::new("/proc/self/root/etc/shadow"),
        &folder.join("secret"),
        &folder.join("data/link"),
        &folder.join("data/../secret"),
        &bystander.join("mem"),
        &bystander.join("environ"),
        &bystander.join("root/etc/shadow"),
    ] {
        refused(&format!("reading {}", path.display()), File::open(path).map(drop));
    }
    for path in [folder.join("secret"), folder.join("data/file"), folder.join("new"), "/dev/mem".into()] {
        let opened = File::options().write(true).create(true).truncate(false).open(&path);
        refused(&format!("writing {}", path.display()), opened.map(drop));
    }
    refused("a name outside", fs::hard_link(folder.join("data/file"), folder.join("copy")));
    refused("removing", fs::remove_file(folder.join("data/file")));
    let secret = CString::new(folder.join("secret").to_str().expect("UTF-8")).expect("no zero");
    refused("cutting off", call(libc::SYS_truncate, [secret.as_ptr() as usize, 0, 0, 0, 0]));
}

fn connects(role: Role) -> bool {
    matches!(role, Role::RemoteMount | Role::RemoteServer)
}

fn sockets(role: Role, refused: Refused<'_>) {
    let kinds = [
        ("AF_UNIX", libc::AF_UNIX, libc::SOCK_STREAM, true),
        ("AF_UNIX, datagrams", libc::AF_UNIX, libc::SOCK_DGRAM, true),
        ("AF_NETLINK", libc::AF_NETLINK, libc::SOCK_RAW, true),
        ("AF_PACKET", libc::AF_PACKET, libc::SOCK_RAW, true),
        ("AF_VSOCK", libc::AF_VSOCK, libc::SOCK_STREAM, true),
        ("AF_INET, raw", libc::AF_INET, libc::SOCK_RAW, true),
        ("AF_INET", libc::AF_INET, libc::SOCK_STREAM, !connects(role)),
        ("AF_INET6, datagrams", libc::AF_INET6, libc::SOCK_DGRAM, !connects(role)),
    ];
    for (name, family, kind, is_refused) in kinds {
        let made = call(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0]);
        if is_refused {
            refused(&format!("a socket of {name}"), made);
        } else {
            made.expect("its sockets");
        }
    }
    refused("datagrams", UnixDatagram::pair().map(drop));
    if !connects(role) {
        refused("UDP", UdpSocket::bind("127.0.0.1:0").map(drop));
    }
}

fn connections(role: Role, server: SocketAddr, other: SocketAddr, local: &Path, refused: Refused<'_>) {
    if connects(role) {
        TcpStream::connect(server).expect("its server");
    } else {
        refused("the server", TcpStream::connect(server).map(drop));
    }
    // Landlock knows ports since Linux 6.7.
    if !connects(role) || release() >= (6, 7) {
        refused("another server", TcpStream::connect(other).map(drop));
        refused("a new server", TcpListener::bind("127.0.0.1:0").map(drop));
    }
    refused("a local socket", UnixStream::connect(local).map(drop));
}

fn kernel(refused: Refused<'_>) {
    let bystander: usize = std::env::var("RUNNEL_TEST_BYSTANDER").expect("a process").parse().expect("a number");
    let (root, proc) = (c"/".as_ptr() as usize, c"/proc".as_ptr() as usize);
    for (what, number, arguments) in [
        ("attaching", libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, bystander, 0, 0, 0]),
        ("mounting", libc::SYS_mount, [0, root, 0, libc::MS_REMOUNT as usize, 0]),
        ("unmounting", libc::SYS_umount2, [proc, libc::MNT_DETACH as usize, 0, 0, 0]),
        ("a name space", libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0]),
        ("a module", libc::SYS_init_module, [0; 5]),
        ("a program of the kernel", libc::SYS_bpf, [0; 5]),
        ("another root", libc::SYS_chroot, [root, 0, 0, 0, 0]),
        ("io_uring", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
    ] {
        refused(what, call(number, arguments));
    }
}

/// What the kernel says of this process.
fn privileges(role: Role) {
    let text = fs::read_to_string("/proc/self/status").expect("readable");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a field");
        line.trim().to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    let capabilities = u64::from_str_radix(&field("CapEff"), 16).expect("a number");
    let net_admin_ptrace_module = (1 << 12) | (1 << 19) | (1 << 16);
    assert_eq!(capabilities & net_admin_ptrace_module, 0, "{role:?}");
    assert!(capabilities.count_ones() <= if role == Role::Converter { 7 } else { 3 }, "{role:?}: {capabilities:x}");
    assert_eq!(field("CapPrm"), field("CapEff"));
    let limits = fs::read_to_string("/proc/self/limits").expect("readable");
    let cores = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(cores.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{cores}");
}

/// One system call of those that the standard library does not make.
#[allow(unsafe_code)]
fn call(number: libc::c_long, arguments: [usize; 5]) -> io::Result<()> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: all callers pass numbers, nulls where the call takes them, and paths that end with a
    // zero and outlive it.
    let outcome = unsafe { libc::syscall(number, a, b, c, d, e) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn release() -> (u32, u32) {
    let text = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
