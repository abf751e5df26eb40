//! Volumes mounted by the command line: real programs at work on them, a server that is killed, and
//! what is said at the end.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::*;

/// A store and a folder that is served for writing.
pub struct Data {
    folder: tempfile::TempDir,
}

impl Data {
    pub fn new() -> Data {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        Data { folder }
    }

    /// Where both lie.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("data").join(path)
    }

    pub fn serve(&self, listen: &str) -> Server {
        let volume = format!("data={}:rw", self.at("").display());
        Server::start_at(&self.folder.path().join("store"), listen, &["--volume", &volume])
    }
}

/// Runs a shell script in a folder; it must succeed.
pub fn sh(folder: &Path, script: &str) -> String {
    let output = shell(folder, script);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{script}\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

pub fn shell(folder: &Path, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder).stdin(Stdio::null());
    // A repository of its own, whatever configuration this machine has.
    for name in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
        command.env(name, "someone");
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").output().expect("sh starts")
}

/// Whether a program is there; says so if not.
pub fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let there = found.is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped {program}: it is not installed");
    }
    there
}

#[test]
fn fuse_volume_programs_do_their_work_on_a_mount() {
    if !can_mount("fuse_volume_programs_do_their_work_on_a_mount") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mut mount = Mount::start(server.url("volume/data"), &[]);
    if has("tar") {
        fs::create_dir_all(data.folder.path().join("tree/a/b")).unwrap();
        for number in 0..200 {
            let path = data.folder.path().join(format!("tree/a/b/{number}"));
            fs::write(path, format!("file {number}\n").repeat(number * 3)).unwrap();
        }
        let tree = data.folder.path().join("tree");
        sh(&mount.path, &format!("tar -C {} -cf - . | tar -xf -; diff -r {} .", tree.display(), tree.display()));
        sh(&mount.path, "rm -r a/b/1*; tar -cf ../again.tar a && tar -df ../again.tar && tar -tf ../again.tar | wc -l");
        sh(&mount.path, "rm -r a; test -z \"$(ls)\"");
    }
    if has("sqlite3") {
        let script = "sqlite3 db 'create table t(k integer primary key, v text);'
            i=0; while [ $i -lt 20 ]; do sqlite3 db \"insert into t(v) values(hex(randomblob(200)));\"; i=$((i+1)); done
            sqlite3 db 'begin; insert into t(v) select v from t; insert into t(v) select v from t; update t set v = v || k; commit;
            delete from t where k % 3 = 0; vacuum;'
            sqlite3 db 'pragma integrity_check; select count(*) from t;'";
        assert_eq!(sh(&mount.path, script), "ok\n54\n");
        // The server's file is the same data base, and so is that of another device.
        assert_eq!(sh(&data.at(""), "sqlite3 db 'pragma integrity_check; select count(*) from t;'"), "ok\n54\n");
        let other = Mount::start(server.url("volume/data"), &["--read-only"]);
        assert_eq!(sh(&other.path, "sqlite3 -readonly db 'select count(*) from t;'"), "54\n");
        assert!(!shell(&other.path, "sqlite3 db 'delete from t;'").status.success());
    }
    if has("git") {
        let script = "git init -q repository; cd repository
            for n in 1 2 3; do seq 1 $((n*1000)) > file$n; git add .; git commit -qm \"number $n\"; done
            git mv file1 moved; git rm -q file2; git commit -qm moved; git branch side; git gc -q
            git fsck --strict; git status --porcelain; git log --oneline | wc -l; git clone -q . ../clone; diff -r --exclude=.git . ../clone";
        assert_eq!(sh(&mount.path, script).trim(), "4");
    }
    if has("python3") {
        // A mapping that is shared and written reaches the server when it is flushed; one for
        // reading sees the file.
        let script = "python3 - <<'END'
import mmap
with open('mapped', 'wb') as file:
    file.write(b'.' * 100000)
with open('mapped', 'r+b') as file:
    with mmap.mmap(file.fileno(), 0) as mapping:
        mapping[50000:50006] = b'MAPPED'
        mapping.flush()
with open('mapped', 'rb') as file:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert mapping.find(b'MAPPED') == 50000
END";
        sh(&mount.path, script);
        assert_eq!(&fs::read(data.at("mapped")).unwrap()[49_998..50_008], b"..MAPPED..");
    }
    let status = mount.status();
    assert!(status["volume"]["committed"].as_u64() > Some(0), "{status:#}");
    assert_eq!(status["volume"]["lost"].as_array().map(Vec::len), Some(0), "{status:#}");
    mount.terminate();
}

#[test]
fn fuse_volume_what_cannot_be_mounted_is_named() {
    if !can_mount("fuse_volume_what_cannot_be_mounted_is_named") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let place = data.folder.path().join("mnt");
    fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap();
    fails(&["mount", &server.url("volume/none"), place], 4, "none");
    fails(&["mount", &server.url("volume/data"), place, "--overlay", "/tmp"], 2, "--overlay");
    fails(&["mount", &server.url("volume/data"), place, "--names-ttl", "-1"], 2, "");
    fails(&["mount", &server.url("volume/data"), place, "--memory", "much"], 2, "much");
    fails(&["run", &server.url("app"), "--data", "x=y", "--", "true"], 2, "--data needs");
}

#[test]
fn fuse_volume_a_program_from_an_image_works_on_data_from_a_volume() {
    if !can_mount("fuse_volume_a_program_from_an_image_works_on_data_from_a_volume") || !has("sqlite3") {
        return;
    }
    let data = Data::new();
    let image = data.folder.path().join("sqlite.rnl");
    let program = sh(Path::new("/"), "readlink -f $(command -v sqlite3)");
    ok(&["pack", "--closure", program.trim(), "-o", image.to_str().unwrap()]);
    let server = data.serve("127.0.0.1:0");
    ok(&["push", image.to_str().unwrap(), &server.url("sqlite")]);
    let mut input = fs::File::create(data.at("input.csv")).unwrap();
    for number in 0..5000 {
        writeln!(input, "{number},value {number}").unwrap();
    }
    drop(input);
    let sql = "create table t(k,v);\n.mode csv\n.import input.csv t\nselect count(*), max(length(v)) from t;";
    for (target, how) in
        [(server.url("sqlite"), "the session's own connection"), (image.display().to_string(), "its own")]
    {
        let volume = format!("{}=/srv/data", server.url("volume/data"));
        let mut child = runnel()
            .args(["run", &target, "--data", &volume, "--cwd", "/srv/data", "--", program.trim(), "db"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{how}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "5000,10", "{how}");
        assert_eq!(sh(&data.at(""), "sqlite3 db 'select count(*) from t;'"), "5000\n", "{how}");
        fs::remove_file(data.at("db")).unwrap();
        // For reading only, it cannot.
        let volume = format!("{volume}:ro");
        let refused =
            run(&["run", &target, "--data", &volume, "--", program.trim(), "/srv/data/db", "create table t(k);"]);
        assert!(!refused.status.success() && !data.at("db").exists(), "{how}");
    }
}

/// What a file system that programs trust does, by Python, since the shell has no handles.
fn python(folder: &Path, script: &str) {
    sh(folder, &format!("timeout 120 python3 - <<'END'\nimport errno, os, tempfile\n{script}\nEND"));
}

#[test]
fn fuse_volume_folders_with_unsent_files_are_not_empty() {
    if !can_mount("fuse_volume_folders_with_unsent_files_are_not_empty") || !has("python3") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mut mount = Mount::start(server.url("volume/data"), &[]);
    let script = "
os.mkdir('d'); os.mkdir('e')
file = os.open('d/x', os.O_CREAT | os.O_WRONLY)
os.write(file, b'acknowledged')
for call in (lambda: os.rmdir('d'), lambda: os.rename('e', 'd')):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.ENOTEMPTY, error
    else:
        raise SystemExit('a folder with a file was removed')
os.fsync(file)
os.close(file)
other = os.open('d/y', os.O_CREAT | os.O_WRONLY)
os.unlink('d/y'); os.rename('d/x', 'x')
os.rmdir('d')
os.close(other)";
    python(&mount.path, script);
    assert_eq!(fs::read(data.at("x")).unwrap(), b"acknowledged");
    mount.terminate();
}

#[test]
fn fuse_volume_files_removed_while_open_go_on_and_hold_nobody_up() {
    if !can_mount("fuse_volume_files_removed_while_open_go_on_and_hold_nobody_up") || !has("python3") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mut mount = Mount::start(server.url("volume/data"), &[]);
    let script = "
part = bytes(range(256)) * 4096
def fill(file, count):
    for number in range(count):
        file.write(part)
    file.flush()
    os.fsync(file.fileno())
    assert os.fstat(file.fileno()).st_size == count << 20 and os.fstat(file.fileno()).st_nlink == 0
    file.seek(0)
    for number in range(count):
        assert file.read(1 << 20) == part, number
with tempfile.TemporaryFile(dir='.') as file:
    fill(file, 12)
    with open('beside', 'wb') as beside:
        beside.write(part)
        os.fsync(beside.fileno())
    file.truncate(5)
    file.seek(0)
    assert file.read() == part[:5]
    # A limit of its own, for its writer alone.
    try:
        fill(file, 80)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        raise SystemExit('80 MiB were taken')
    with open('after', 'wb') as after:
        after.write(part)
with open('replaced', 'w+b') as file:
    file.write(part)
    os.fsync(file.fileno())
    with open('new', 'wb') as new:
        new.write(b'new')
    os.rename('new', 'replaced')
    file.seek(0)
    fill(file, 10)
    os.fchmod(file.fileno(), 0o600)
assert open('replaced', 'rb').read() == b'new' and os.stat('replaced').st_mode & 0o777 == 0o644";
    python(&mount.path, script);
    let names = sh(&data.at(""), "ls");
    assert_eq!(names, "after\nbeside\nreplaced\n");
    let status = mount.status();
    assert_eq!(status["volume"]["unsent_bytes"].as_u64(), Some(0), "{status:#}");
    assert_eq!(status["volume"]["lost"].as_array().map(Vec::len), Some(0), "{status:#}");
    mount.terminate();
}

#[test]
fn fuse_volume_files_of_a_full_server_can_be_removed() {
    if !can_mount("fuse_volume_files_of_a_full_server_can_be_removed") || !has("python3") {
        return;
    }
    let data = Data::new();
    let volume = format!("data={}:rw,quota=1M", data.at("").display());
    let store = data.folder.path().join("store");
    let server = Server::start_at(&store, "127.0.0.1:0", &["--volume", &volume]);
    let mut mount = Mount::start(server.url("volume/data"), &[]);
    let script = "
part = bytes(1 << 20)
with open('there', 'wb') as there:
    there.write(part[:600000])
room = os.statvfs('.')
assert room.f_frsize * room.f_blocks == 1 << 20, room
assert 0 <= (1 << 20) - 600000 - room.f_frsize * room.f_bavail < room.f_frsize, room
assert 0 < room.f_ffree <= room.f_files, room
def refused(call):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.EDQUOT, error
    else:
        raise SystemExit('it was not refused')
files = [os.open(name, os.O_CREAT | os.O_RDWR) for name in ('new', 'there')]
for file in files:
    os.pwrite(file, part, 1 << 20)
    refused(lambda: os.fsync(file))
refused(lambda: os.rename('new', 'newer'))
os.unlink('new')
os.listdir('.')
os.unlink('there')
assert os.listdir('.') == []
assert os.pread(files[0], 10, 0) == bytes(10)
for file in files:
    os.close(file)
with open('fits', 'wb') as fits:
    fits.write(part[:900000])";
    python(&mount.path, script);
    assert_eq!(fs::metadata(data.at("fits")).unwrap().len(), 900_000);
    mount.terminate();
}

#[test]
fn fuse_volume_of_two_devices_that_empty_a_new_file_the_last_one_wins() {
    if !can_mount("fuse_volume_of_two_devices_that_empty_a_new_file_the_last_one_wins") || !has("python3") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let mut mounts = [Mount::start(server.url("volume/data"), &[]), Mount::start(server.url("volume/data"), &[])];
    let (one, two) = (mounts[0].path.display(), mounts[1].path.display());
    let script = format!(
        "
for number in range(20):
    files = [open(f'{{place}}/{{number}}', 'wb') for place in ('{one}', '{two}')]
    for index, file in enumerate(files):
        file.write(b'x' * (index + 1))
    for file in files:
        file.close()
os.close(os.open('{one}/0', os.O_RDONLY | os.O_TRUNC))
before = os.stat('{two}').st_mtime_ns
file = os.open('{two}/gone', os.O_CREAT | os.O_WRONLY)
made = os.stat('{two}').st_mtime_ns
os.unlink('{two}/gone')
assert before < made < os.stat('{two}').st_mtime_ns"
    );
    python(&data.at(""), &script);
    let sizes: Vec<u64> = (0..20).map(|number| fs::metadata(data.at(&number.to_string())).unwrap().len()).collect();
    assert!(sizes[0] == 0 && sizes[1..].iter().all(|size| *size == 2), "{sizes:?}");
    for mount in &mut mounts {
        let status = mount.status();
        assert_eq!(status["volume"]["lost"].as_array().map(Vec::len), Some(0), "{status:#}");
        mount.terminate();
    }
}

#[test]
fn fuse_volume_nobody_writes_below_a_mount_that_is_not_there() {
    if !can_mount("fuse_volume_nobody_writes_below_a_mount_that_is_not_there") || !has("chattr") {
        return;
    }
    let data = Data::new();
    let server = data.serve("127.0.0.1:0");
    let place = data.folder.path().join("mnt");
    fs::create_dir(&place).unwrap();
    let (place_text, undo) = (place.to_str().unwrap(), format!("chattr -i {}", place.display()));
    if !shell(&place, "chattr +i .").status.success() {
        eprintln!("skipped: this file system has no immutable attribute, or this user may not set it");
        fails(&["mount", &server.url("volume/data"), place_text, "--immutable"], 1, "leave out --immutable");
        return;
    }
    sh(Path::new("/"), &undo);
    fs::write(place.join("hidden"), "").unwrap();
    fails(&["mount", &server.url("volume/data"), place_text, "--immutable"], 1, "empty");
    fs::remove_file(place.join("hidden")).unwrap();
    ok(&["mount", &server.url("volume/data"), place_text, "--immutable"]);
    fs::write(place.join("f"), "to the server").unwrap();
    ok(&["umount", place_text]);
    assert!(fs::write(place.join("g"), "to nowhere").is_err());
    sh(Path::new("/"), &undo);
    assert_eq!(fs::read(data.at("f")).unwrap(), b"to the server");
}
