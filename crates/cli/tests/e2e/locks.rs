//! Locks across devices as programs use them: counters, flock(1), holders that die, signals, and
//! SQLite on two mounts.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::support::*;
use crate::volume::{Data, has, sh};

/// A file that is open for reading and writing, and a lock of it.
const OPEN: &str = "import fcntl, os, signal, sys\nfile = os.open(sys.argv[1], os.O_RDWR)\n";

/// Adds one to a number some times.
const ADD: &str = "
for _ in range(30):
    fcntl.lockf(file, fcntl.LOCK_EX)
    number = int(os.pread(file, 20, 0))
    os.pwrite(file, b'%020d' % (number + 1), 0)
    fcntl.lockf(file, fcntl.LOCK_UN)
";

/// Locks a file, says so, and goes on when it is told to.
const HOLD: &str = "
fcntl.lockf(file, fcntl.LOCK_EX)
print('locked', flush=True)
sys.stdin.readline()
";

/// Waits for a lock until a signal comes that it catches.
const WAIT: &str = "
class Alarm(Exception):
    pass
def alarm(number, frame):
    raise Alarm
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    fcntl.lockf(file, fcntl.LOCK_EX)
except Alarm:
    print('alarm', flush=True)
";

fn python(script: &str, path: &Path) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{OPEN}{script}")]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("python3 starts")
}

/// Ends a program that waits for a line.
fn let_go(mut child: Child) {
    child.stdin.take().expect("a pipe").write_all(b"go on\n").expect("it listens");
    assert!(wait(&mut child).success());
}

#[test]
fn fuse_locks_let_programs_on_two_mounts_count() {
    if !can_mount("fuse_locks_let_programs_on_two_mounts_count") || !has("python3") || !has("flock") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    fs::write(data.at("counter"), format!("{:020}", 0)).unwrap();
    fs::write(data.at("number"), "0\n").unwrap();
    let mounts = [0, 1].map(|_| Mount::start(server.url("volume/data"), &[]));
    let programs: Vec<Child> = (0..6).map(|at| python(ADD, &mounts[at % 2].path.join("counter"))).collect();
    for mut program in programs {
        assert!(wait(&mut program).success());
    }
    assert_eq!(fs::read_to_string(mounts[0].path.join("counter")).unwrap(), format!("{:020}", 180));
    // Each opens the file anew, and the lock is one of another file.
    thread::scope(|scope| {
        for at in 0..4 {
            let path = &mounts[at % 2].path;
            let script = "i=0; while [ $i -lt 15 ]; do i=$((i+1))
                flock lock sh -euc 'n=$(cat number); echo $((n+1)) >number'; done";
            scope.spawn(|| sh(path, script));
        }
    });
    assert_eq!(fs::read_to_string(data.at("number")).unwrap(), "60\n");
}

#[test]
fn fuse_locks_end_with_their_holder_and_waits_with_a_signal() {
    if !can_mount("fuse_locks_end_with_their_holder_and_waits_with_a_signal") || !has("python3") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    fs::write(data.at("f"), "content").unwrap();
    let mut mounts = [0, 1].map(|_| Mount::start(server.url("volume/data"), &[]));
    let [one, two] = [0, 1].map(|at| mounts[at].path.join("f"));
    let mut holder = python(HOLD, &one);
    hear(&mut holder, "locked");
    for path in [&one, &two] {
        let mut waiting = python(WAIT, path);
        hear(&mut waiting, "alarm");
        assert!(wait(&mut waiting).success());
    }
    // Who is killed while it waits has nothing locked later.
    let mut killed = python(HOLD, &two);
    killed.kill().unwrap();
    wait(&mut killed);
    let waiting = [python(HOLD, &one), python(HOLD, &two)];
    holder.kill().unwrap();
    wait(&mut holder);
    // In whatever order they come.
    thread::scope(|scope| {
        for mut child in waiting {
            scope.spawn(move || {
                hear(&mut child, "locked");
                let_go(child);
            });
        }
    });
    // A machine that dies: the server gives its locks to others some seconds later.
    let mut holder = python(HOLD, &one);
    hear(&mut holder, "locked");
    mounts[0].kill();
    let mut other = python(HOLD, &two);
    hear(&mut other, "locked");
    let_go(other);
    holder.kill().unwrap();
    wait(&mut holder);
}

#[test]
fn fuse_locks_let_two_mounts_write_one_database() {
    if !can_mount("fuse_locks_let_two_mounts_write_one_database") || !has("sqlite3") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mounts = [0, 1].map(|_| Mount::start(server.url("volume/data"), &[]));
    let tables =
        "create table counter(n); insert into counter values(0); create table t(k integer primary key, v text);";
    sh(&mounts[0].path, &format!("sqlite3 db '{tables}'"));
    let statements = "update counter set n = n + 1; insert into t(v) values(hex(randomblob(300)));\n".repeat(20);
    fs::write(data.folder().join("statements"), format!(".timeout 100000\n{statements}")).unwrap();
    let from = data.folder().join("statements");
    thread::scope(|scope| {
        for at in 0..4 {
            let (path, from) = (&mounts[at % 2].path, &from);
            scope.spawn(move || sh(path, &format!("sqlite3 -bail db <{}", from.display())));
        }
    });
    let asked = "sqlite3 db 'pragma integrity_check; select n from counter; select count(*) from t;'";
    for mount in &mounts {
        assert_eq!(sh(&mount.path, asked), "ok\n80\n80\n");
    }
    // A transaction that is killed in the middle is undone by the next program, on any device.
    let mut killed = Command::new("sqlite3");
    killed.arg("db").current_dir(&mounts[0].path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut killed = killed.spawn().unwrap();
    let begun = "pragma cache_size = 1; begin; update t set v = hex(randomblob(2000)); select 'begun';\n";
    killed.stdin.as_mut().unwrap().write_all(begun.as_bytes()).unwrap();
    hear(&mut killed, "begun");
    assert!(mounts[1].path.join("db-journal").exists());
    killed.kill().unwrap();
    wait(&mut killed);
    let asked =
        "sqlite3 -cmd '.timeout 100000' db 'pragma integrity_check; select count(*) from t where length(v) = 600;'";
    assert_eq!(sh(&mounts[1].path, asked), "ok\n80\n");
    // A write-ahead log needs memory that all who use it share, or nobody else.
    let alone = "pragma locking_mode = exclusive; pragma journal_mode = wal; delete from t where k > 40;";
    for (at, mount) in mounts.iter().enumerate() {
        let output = sh(
            &mount.path,
            &format!("sqlite3 db \"{alone} insert into t(v) values('{at}'); select count(*) from t;\""),
        );
        assert_eq!(output, "exclusive\nwal\n41\n");
    }
    assert_eq!(sh(&data.at(""), "sqlite3 db 'pragma integrity_check;'"), "ok\n");
    // Programs of one device share memory, and a write-ahead log in it.
    sh(&mounts[0].path, &format!("sqlite3 log 'pragma journal_mode = wal; {tables}'"));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| sh(&mounts[0].path, &format!("sqlite3 -bail log <{}", from.display())));
        }
    });
    let asked = "sqlite3 log 'pragma integrity_check; select n from counter; select count(*) from t;'";
    assert_eq!(sh(&mounts[0].path, asked), "ok\n40\n40\n");
}
