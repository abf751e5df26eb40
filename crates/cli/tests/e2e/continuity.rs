//! Programs that use a mount while its daemon is killed again and again, and upgraded now and then.
//!
//! `RUNNEL_CONTINUITY_SECONDS` says how long; `./x test --continuity` takes ten minutes, and as
//! long again for a user without rights.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use crate::support::*;

/// Reads files in an order of its own, past the page cache, until its input ends, and compares them
/// with those of another folder. Then it tells how many it has read and the longest time that one
/// took, in milliseconds.
pub const READ: &str = "
import hashlib, mmap, os, random, select, sys, time
mount, source, way = sys.argv[1:]
names = [os.path.relpath(os.path.join(folder, name), source)
         for folder, _, names in os.walk(source) for name in names]
names = [name for name in names if os.path.isfile(os.path.join(source, name))
         and not os.path.islink(os.path.join(source, name)) and os.path.getsize(os.path.join(source, name))]
def digest(path, way):
    with open(path, 'rb', buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if way == 'map':
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                return hashlib.sha256(mapped).digest()
        hashed = hashlib.sha256()
        while part := file.read(65536):
            hashed.update(part)
        return hashed.digest()
expected = {name: digest(os.path.join(source, name), 'read') for name in names}
print('begins', flush=True)
count, longest = 0, 0
while not select.select([sys.stdin], [], [], 0)[0]:
    name, begun = random.choice(names), time.monotonic()
    assert digest(os.path.join(mount, name), way) == expected[name], name
    count, longest = count + 1, max(longest, time.monotonic() - begun)
print(count, round(longest * 1000))
";

/// Asks for the state of the file system all the time, which the kernel never knows itself. Is told
/// at the end how often the daemon ended, and tells that many of the longest waits: the pauses.
const PROBE: &str = "
import os, select, sys, time
waits, count = [], 0
print('begins', flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    begun = time.monotonic()
    os.statvfs(sys.argv[1])
    waits.append(time.monotonic() - begun)
    count += 1
    if len(waits) > 100000:
        waits = sorted(waits)[-10000:]
pauses = sorted(waits)[-int(sys.stdin.readline()):]
at = lambda part: round(pauses[min(int(len(pauses) * part), len(pauses) - 1)] * 1000)
print(len(pauses), 'pauses: p50', at(0.5), 'ms, p99', at(0.99), 'ms, longest', at(1), 'ms', file=sys.stderr)
print(count, at(1))
";

/// Lists the whole tree until its input ends.
const LIST: &str = "
import os, select, sys
def fail(error): raise error
print('begins', flush=True)
count = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for folder, _, names in os.walk(sys.argv[1], onerror=fail):
        count += sum(os.lstat(os.path.join(folder, name)).st_nlink > 0 for name in names)
print(count, 0)
";

/// Tests of modules of python again and again, each run as a new program inside the image.
const TESTS: &str = "
echo begins
count=0
while ! read -t 0; do
  \"$1\" enter \"$2\" -- /usr/bin/python3 -c '
import unittest, json, decimal, re, email.message
class Works(unittest.TestCase):
    def test_json(self): self.assertEqual(json.loads(json.dumps([1, {\"a\": None}])), [1, {\"a\": None}])
    def test_decimal(self): self.assertEqual(decimal.Decimal(\"0.1\") * 3, decimal.Decimal(\"0.3\"))
    def test_mail(self): self.assertIsNone(email.message.Message().get(\"to\"))
unittest.main(argv=[\"x\"])
' 2>/dev/null || exit 1
  count=$((count + 1))
done
echo $count 0
";

pub fn begun(mut command: Command) -> Child {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    hear(&mut child, "begins");
    child
}

pub fn python(text: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", text]).args(arguments);
    command
}

#[test]
fn fuse_programs_do_not_notice_that_daemons_are_killed() {
    if can_mount("fuse_programs_do_not_notice") {
        under_programs(None);
    }
}

#[test]
fn fuse_programs_of_a_user_do_not_notice_that_daemons_are_killed() {
    if others_can_mount("fuse_programs_of_a_user_do_not_notice") {
        under_programs(Some(NOBODY));
    }
}

/// How often a new version is installed, in long runs.
const UPGRADE_EVERY: Duration = Duration::from_secs(30);

fn under_programs(user: Option<u32>) {
    let seconds = std::env::var("RUNNEL_CONTINUITY_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(20));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("opened to others");
    let source = folder.path().join("source");
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    ok(&["extract".as_ref(), "-C".as_ref(), source.as_os_str(), python_image().as_os_str()]);
    let installed = Installed::new();
    let mount = Mount::start_by(installed.command_of(user), user, server.url("python"), &[]);
    let status = || -> serde_json::Value {
        let told = output(installed.command_of(user).args(["status", "--json"]).arg(&mount.path));
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        serde_json::from_slice(&told.stdout).expect("JSON")
    };

    let modules = [&mount.path, &source].map(|root| root.join("usr/lib/python3.11"));
    let mut commands = vec![python(PROBE, &[&mount.path])];
    for way in ["read", "read", "read", "map", "map"] {
        commands.push(python(READ, &[&modules[0], &modules[1], Path::new(way)]));
    }
    commands.push(python(LIST, &[&mount.path]));
    // Programs in the image's own view.
    let views = if user.is_none() || can_be_alone("programs in a view of their own") { 2 } else { 0 };
    for _ in 0..views {
        let mut tests = Command::new("bash");
        tests.args(["-c", TESTS, "tests"]).arg(installed.path()).arg(&mount.path);
        commands.push(tests);
    }
    let as_user = |mut command: Command| {
        if let Some(user) = user {
            command.uid(user).gid(user).current_dir("/").env("HOME", "/");
        }
        begun(command)
    };
    let mut programs: Vec<Child> = commands.into_iter().map(as_user).collect();
    let start = Instant::now();
    let (mut kills, mut upgrades) = (0, 0);
    while start.elapsed() < time {
        // The moment is arbitrary on purpose.
        park_timeout(Duration::from_millis(1500 + (kills * 977) % 1000));
        if start.elapsed() > UPGRADE_EVERY.min(time / 2) * (upgrades + 1) {
            installed.install(env!("CARGO_BIN_EXE_runnel").as_ref());
            let told = output(installed.command_of(user).arg("upgrade").arg(&mount.path));
            assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
            assert!(installed.runs(mount.daemon()));
            upgrades += 1;
        } else {
            mount.kill_daemon();
            kills += 1;
        }
        // Answers once the next one serves.
        assert_eq!(status()["restarts"], kills);
    }
    assert!(upgrades > 0);
    let ends = kills + u64::from(upgrades);
    writeln!(programs[0].stdin.take().expect("a pipe"), "{ends}").expect("it listens");
    for (number, mut program) in programs.into_iter().enumerate() {
        drop(program.stdin.take());
        let output = program.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "program {number}: {}", output.status);
        let mut said = text.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
        let (count, longest) = said.next().zip(said.next()).expect("two numbers");
        assert!(count > 0, "program {number} did nothing");
        eprintln!("program {number}: {count} done; longest {longest} ms; {kills} daemons killed, {upgrades} upgraded");
    }
}
