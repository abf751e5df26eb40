//! The cases.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use mount::{MountError, mountpoint};

use crate::harness::{MARKER, Unmount, World, failure, text};

/// A case and its name.
pub type Case = (&'static str, fn(&World));

/// In the order in which they run.
pub const CASES: &[Case] = &[
    ("fuse_enter_as_root", enter_as_root),
    ("fuse_enter_in_a_user_namespace", enter_in_a_user_namespace),
    ("fuse_enter_as_an_ordinary_user", enter_as_an_ordinary_user),
    ("fuse_enter_names_what_fails", enter_names_what_fails),
    ("fuse_run_as_root", run_as_root),
    ("fuse_run_as_an_ordinary_user", run_as_an_ordinary_user),
    ("fuse_run_passes_signals_on", run_passes_signals_on),
    ("fuse_mount_with_the_helper", mount_with_the_helper),
    ("fuse_daemon_stops_by_signal", daemon_stops_by_signal),
    ("fuse_killed_daemon_leaves_a_mount_that_can_be_removed", killed_daemon),
    ("fuse_redirect_until_stopped", redirect_until_stopped),
    ("fuse_redirect_killed_and_stopped", redirect_killed_and_stopped),
    ("fuse_redirect_undoes_what_it_began", redirect_undoes_what_it_began),
];

/// Prints what a program inside an image can see.
const LOOK: &str = "cat /usr/share/marker; pwd; cat note; [ -d /proc/self ] && [ -c /dev/null ] && echo devices; \
    [ -e /etc/secret ] && echo etc; touch /usr/share/new 2>/dev/null || echo read-only; \
    touch /new 2>/dev/null || echo closed; touch here && echo home";

const SEEN: &str = "devices\netc\nread-only\nclosed\nhome\n";

/// A directory with a note in it, to be the current one.
fn workplace(world: &World, name: &str, anyone: bool) -> std::path::PathBuf {
    let path = world.directory(name);
    fs::write(path.join("note"), "my own file\n").expect("written");
    if anyone {
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o777)).expect("chmod");
    }
    path
}

fn enter_as_root(world: &World) {
    let (root, place) = (world.directory("root-a"), workplace(world, "place-a", false));
    let _daemon = world.daemon(["mount", world.image.to_str().unwrap(), root.to_str().unwrap()]);
    let _unmount = Unmount(root.clone());
    let root = root.to_str().unwrap();
    let seen = text(world.command(["enter", root, "--", "sh", "-c", LOOK]).current_dir(&place));
    assert_eq!(seen, format!("{MARKER}{}\nmy own file\n{SEEN}", place.display()));
    // Below a directory of the image that lacks it, through a link of the image, and over a file.
    let target = format!("{}:/usr/local/app", place.display());
    let file = format!("{}:/usr/share/marker", place.join("note").display());
    let binds = ["--bind", target.as_str(), "--bind", file.as_str()];
    let script = "cat /usr/share/marker /usr/local/app/note; ls /usr/bin/sh /bin/cat; echo $COLOUR $PATH";
    let mut arguments = vec!["enter", root];
    arguments.extend(binds);
    arguments.extend(["--env", "COLOUR=red", "--cwd", "/srv", "--", "sh", "-c", script]);
    let seen = text(&mut world.command(arguments));
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(seen, format!("my own file\nmy own file\n/bin/cat\n/usr/bin/sh\nred {path}\n"));
    let (code, _) = failure(&mut world.command(["enter", root, "--", "sh", "-c", "exit 7"]));
    assert_eq!(code, 7);
}

fn enter_in_a_user_namespace(world: &World) {
    let (root, place) = (world.directory("root-b"), workplace(world, "place-b", false));
    let _daemon = world.daemon(["mount", world.image.to_str().unwrap(), root.to_str().unwrap()]);
    let _unmount = Unmount(root.clone());
    let arguments = ["enter", root.to_str().unwrap(), "--user-namespace", "--", "sh", "-c", LOOK];
    let mut command = world.command(arguments);
    if refused_in_a_chroot(command.current_dir(&place)) {
        return;
    }
    assert_eq!(text(&mut command), format!("{MARKER}{}\nmy own file\n{SEEN}", place.display()));
}

/// Whether this is a chroot, in which the kernel allows no user namespace. Then the command, which
/// needs one, must say so.
fn refused_in_a_chroot(command: &mut Command) -> bool {
    if mountpoint::mounted_at(Path::new("/")).expect("table").is_some() {
        return false;
    }
    let (_, error) = failure(command);
    assert!(error.contains("this is a chroot"), "{error}");
    true
}

fn enter_as_an_ordinary_user(world: &World) {
    let (root, place) = (world.directory("root-c"), workplace(world, "place-c", true));
    let _daemon = world.daemon(["mount", world.image.to_str().unwrap(), root.to_str().unwrap()]);
    let _unmount = Unmount(root.clone());
    let script = format!("{LOOK}; id -u; cat /etc/secret 2>/dev/null || echo private");
    let arguments = ["enter", root.to_str().unwrap(), "--", "sh", "-c", script.as_str()];
    let mut command = world.command_as_nobody(arguments);
    if refused_in_a_chroot(command.current_dir(&place)) {
        return;
    }
    let seen = text(&mut command);
    assert_eq!(seen, format!("{MARKER}{}\nmy own file\n{SEEN}65534\nprivate\n", place.display()));
}

fn enter_names_what_fails(world: &World) {
    let root = world.directory("root-d");
    let _daemon = world.daemon(["mount", world.image.to_str().unwrap(), root.to_str().unwrap()]);
    let _unmount = Unmount(root.clone());
    let root = root.to_str().unwrap();
    let (code, error) = failure(&mut world.command(["enter", root, "--", "no-such-tool"]));
    assert_eq!(code, 127);
    assert!(error.contains("no-such-tool") && error.contains("hint:"), "{error}");
    let (code, error) = failure(&mut world.command(["enter", root, "--", "/usr/share/broken"]));
    assert_eq!(code, 126);
    assert!(error.contains("/usr/share/broken"), "{error}");
    let (code, error) = failure(&mut world.command(["enter", "/no/such/root", "--", "sh"]));
    assert_eq!(code, 1);
    assert!(error.contains("/no/such/root"), "{error}");
    let bind = ["enter", root, "--bind", "/no/such/source:/x", "--", "sh"];
    assert!(failure(&mut world.command(bind)).1.contains("/no/such/source"));
    let bind = ["enter", root, "--bind", "/tmp:relative", "--", "sh"];
    assert!(failure(&mut world.command(bind)).1.contains("absolute"));
    assert!(failure(&mut world.command(["enter", root, "--cwd", "/none", "--", "sh"])).1.contains("/none"));
}

fn run_as_root(world: &World) {
    let place = workplace(world, "place-e", false);
    let image = world.image.to_str().unwrap();
    let seen = text(world.command(["run", image, "", "sh", "-c", LOOK]).current_dir(&place));
    assert_eq!(seen, format!("{MARKER}{}\nmy own file\n{SEEN}", place.display()));
    assert_eq!(failure(&mut world.command(["run", image, "", "sh", "-c", "exit 9"])).0, 9);
    assert_eq!(failure(&mut world.command(["run", image, "", "sh", "-c", "kill -KILL $$"])).0, 137);
    assert_eq!(failure(&mut world.command(["run", image, "", "no-such-tool"])).0, 127);
    let (code, error) = failure(&mut world.command(["run", "/no/such.rnl", "", "sh"]));
    assert!(code == 1 && error.contains("/no/such.rnl"), "{error}");
    let left = mountpoint::table().expect("table").into_iter().filter(|entry| entry.image() == Some("test")).count();
    assert_eq!(left, 0, "mounts stay behind");
    // A layer to write on.
    let changes = world.directory("changes-e");
    let script = "echo changed > /usr/share/marker; cat /usr/share/marker";
    let seen = text(&mut world.command(["run", image, changes.to_str().unwrap(), "sh", "-c", script]));
    assert_eq!(seen, "changed\n");
    assert_eq!(fs::read(changes.join("upper/usr/share/marker")).expect("kept"), b"changed\n");
}

fn run_as_an_ordinary_user(world: &World) {
    let place = workplace(world, "place-f", true);
    let changes = workplace(world, "changes-f", true);
    let run = |overlay: &str, script: &str| {
        let mut command = world
            .command_with_device(&world.program, ["run", world.image.to_str().unwrap(), overlay, "sh", "-c", script]);
        command.current_dir(&place);
        command
    };
    // The image's files are the user's own here, so that even what only the image's root may read
    // can be read.
    let script = format!("{LOOK}; id -u; cat /etc/secret; stat -c %u /usr/share/marker");
    if refused_in_a_chroot(&mut run("", &script)) {
        return;
    }
    let seen = text(&mut run("", &script));
    let expected = "65534\nof the image's root\n65534\n";
    assert_eq!(seen, format!("{MARKER}{}\nmy own file\n{SEEN}{expected}", place.display()));
    assert_eq!(failure(&mut run("", "exit 3")).0, 3);
    let script = "echo changed > /usr/share/marker; cat /usr/share/marker";
    assert_eq!(text(&mut run(changes.to_str().unwrap(), script)), "changed\n");
    assert_eq!(fs::read(changes.join("upper/usr/share/marker")).expect("kept"), b"changed\n");
}

fn run_passes_signals_on(world: &World) {
    let script = "trap 'echo stopped; exit 5' TERM; echo started; while :; do sleep 0.05; done";
    let mut child = world
        .command(["run", world.image.to_str().unwrap(), "", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("readable");
    assert_eq!(line, "started\n");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .expect("sent");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("readable");
    assert_eq!(rest, "stopped\n");
    assert_eq!(child.wait().expect("ends").code(), Some(5));
}

fn mount_with_the_helper(world: &World) {
    if !Path::new("/usr/bin/fusermount3").exists() {
        println!("skipped: no fusermount3");
        return;
    }
    let root = workplace(world, "root-k", false);
    rustix::fs::chown(&root, Some(rustix::fs::Uid::from_raw(65534)), None).expect("chown");
    // One mount table for the daemon, for who looks at the mount, and for who takes it away.
    let (program, image) = (world.program.to_str().unwrap(), world.image.to_str().unwrap());
    let root = root.to_str().unwrap();
    let script = "\"$0\" mount \"$1\" \"$2\" | { read line; echo $line; cat \"$2/usr/share/marker\"; \
        \"$0\" umount \"$2\" && ls \"$2\"; }";
    let mut command = world.command_with_device("sh", ["-c", script, program, image, root]);
    if Path::new("/etc/mtab").exists() {
        assert_eq!(text(&mut command), format!("ready\n{MARKER}note\n"));
    } else {
        // The helper takes no mount away without that file, so only the daemon is ended.
        let (_, error) = failure(&mut command);
        assert!(error.contains("the dead mount stays") && error.contains("/etc/mtab"), "{error}");
    }
}

fn daemon_stops_by_signal(world: &World) {
    let root = world.directory("root-l");
    let mut daemon = world.daemon(["mount", world.image.to_str().unwrap(), root.to_str().unwrap()]);
    let _unmount = Unmount(root.clone());
    // In use, which must not keep it.
    let file = fs::File::open(root.join("usr/share/marker")).expect("opens");
    let pid = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("sent");
    assert!(daemon.child.wait().expect("ends").success());
    assert!(mountpoint::mounted_at(&root).expect("table").is_none());
    drop(file);
}

fn killed_daemon(world: &World) {
    let root = world.directory("root-g");
    let mut daemon = world.daemon(["mount", world.image.to_str().unwrap(), root.to_str().unwrap()]);
    let _unmount = Unmount(root.clone());
    assert_eq!(fs::read_to_string(root.join("usr/share/marker")).expect("served"), MARKER);
    let listed = mount::mounts().expect("listed");
    assert!(listed.iter().any(|mount| mount.mountpoint == root && mount.pid == daemon.child.id()));
    match mountpoint::validate(&root) {
        Err(MountError::AlreadyMounted { image, .. }) => assert_eq!(image, "test"),
        other => panic!("{other:?}"),
    }
    daemon.child.kill().expect("killed");
    daemon.child.wait().expect("ended");
    assert!(fs::read(root.join("usr/bin/ls")).is_err());
    let error = mountpoint::validate(&root).unwrap_err();
    assert!(matches!(error, MountError::Stale { .. }), "{error}");
    assert!(error.to_string().contains("runnel umount"), "{error}");
    assert!(mount::mounts().expect("listed").iter().all(|mount| mount.mountpoint != root));
    mount::umount(&root).expect("removed");
    let daemon = world.daemon(["mount", world.image.to_str().unwrap(), root.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(root.join("usr/share/marker")).expect("served again"), MARKER);
    mount::umount(&root).expect("removed by its socket");
    let mut daemon = daemon;
    assert!(daemon.child.wait().expect("ends by itself").success());
    assert!(matches!(mount::umount(&root), Err(MountError::NotMounted { .. })));
}

/// Writes a configuration that redirects to places below `place`.
fn configure(world: &World, place: &Path, extra: &str) -> std::path::PathBuf {
    let file = place.join("redirect.toml");
    let mut out = fs::File::create(&file).expect("created");
    writeln!(
        out,
        "[[image]]\nsource = \"{image}\"\npaths = [\n  {{ from = \"/usr/share/marker\", to = \"{place}/local\" }},\n  \
         {{ from = \"/bin/cat\", to = \"{place}/new/bin/cat\" }},\n  {{ from = \"/usr/share\", to = \"{place}/share\" }},\n\
         {extra}]",
        image = world.image.display(),
        place = place.display()
    )
    .expect("written");
    fs::write(place.join("local"), "local\n").expect("written");
    file
}

fn assert_untouched(place: &Path) {
    assert_eq!(fs::read_to_string(place.join("local")).expect("there"), "local\n");
    assert!(!place.join("new").exists() && !place.join("share").exists());
    let bound = mountpoint::table().expect("table").into_iter().filter(|entry| entry.path.starts_with(place)).count();
    assert_eq!(bound, 0);
}

fn redirect_until_stopped(world: &World) {
    let place = world.directory("place-h");
    let file = configure(world, &place, "");
    let file = file.to_str().unwrap();
    let mut daemon = world.daemon(["redirect", file]);
    assert_eq!(fs::read_to_string(place.join("local")).expect("redirected"), MARKER);
    assert_eq!(fs::read_to_string(place.join("share/marker")).expect("redirected"), MARKER);
    let cat = place.join("new/bin/cat");
    assert_eq!(text(Command::new(cat).arg(place.join("local"))), MARKER);
    let (_, error) = failure(&mut world.command(["redirect", file]));
    assert!(error.contains("already active"), "{error}");
    text(&mut world.command(["stop", file]));
    assert!(daemon.child.wait().expect("ends").success());
    assert_untouched(&place);
    let (_, error) = failure(&mut world.command(["stop", file]));
    assert!(error.contains("not active"), "{error}");
}

fn redirect_killed_and_stopped(world: &World) {
    let place = world.directory("place-i");
    let file = configure(world, &place, "");
    let file = file.to_str().unwrap();
    let mut daemon = world.daemon(["redirect", file]);
    daemon.child.kill().expect("killed");
    daemon.child.wait().expect("ended");
    assert!(fs::read(place.join("local")).is_err(), "its daemon is gone");
    text(&mut world.command(["stop", file]));
    assert_untouched(&place);
    // Killed again, and taken over by the next one.
    let mut daemon = world.daemon(["redirect", file]);
    daemon.child.kill().expect("killed");
    daemon.child.wait().expect("ended");
    let next = world.daemon(["redirect", file]);
    assert_eq!(fs::read_to_string(place.join("local")).expect("redirected"), MARKER);
    text(&mut world.command(["stop", file]));
    drop(next);
    assert_untouched(&place);
}

fn redirect_undoes_what_it_began(world: &World) {
    let place = world.directory("place-j");
    let image = "  \"/no/such/file\",\n";
    let file = configure(world, &place, image);
    let (_, error) = failure(&mut world.command(["redirect", file.to_str().unwrap()]));
    assert!(error.contains("/no/such/file") && error.contains("hint:"), "{error}");
    assert_untouched(&place);
    // Fails at the last path, after the others are bound: a directory of the image over a file.
    let kinds = format!("  {{ from = \"/usr/bin\", to = \"{}/file\" }},\n", place.display());
    fs::write(place.join("file"), "a file\n").expect("written");
    let file = configure(world, &place, &kinds);
    let (_, error) = failure(&mut world.command(["redirect", file.to_str().unwrap()]));
    assert!(error.contains("is a file on this machine but a directory in the image"), "{error}");
    assert_untouched(&place);
    // As an ordinary user.
    let (_, error) = failure(&mut world.command_as_nobody(["redirect", file.to_str().unwrap()]));
    assert!(error.contains("root"), "{error}");
}
