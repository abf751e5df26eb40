//! Access control lists through the kernel, by the programs that people use for them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use mount::Owners;
use stream::Options;

use crate::world::{Mount, World, need_fuse};

fn shell(folder: &Path, script: &str) -> Output {
    Command::new("sh").args(["-euc", script]).current_dir(folder).output().expect("sh starts")
}

fn sh(folder: &Path, script: &str) -> String {
    let output = shell(folder, script);
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Whether all that is needed is there.
fn is_skipped() -> bool {
    let missing = ["setfacl", "getfacl", "setpriv"].into_iter().find(|program| {
        let found = Command::new(program).arg("--version").output();
        !found.is_ok_and(|output| output.status.success())
    });
    missing.inspect(|program| eprintln!("skipped: {program} is not installed")).is_some()
}

/// The list of a path as getfacl tells it.
fn list(folder: &Path, name: &str) -> String {
    sh(folder, &format!("getfacl -cnpE {name}")).trim().replace('\n', ",")
}

fn keeping(world: &World) -> Mount {
    world.mount_with(Options::default(), |options| (options.owners, options.allow_other) = (Owners::Keep, true))
}

#[test]
fn fuse_lists_are_kept_obeyed_and_go_with_chmod() {
    need_fuse!();
    if is_skipped() {
        return;
    }
    let world = World::new();
    fs::set_permissions(world.at(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let (one, two) = (keeping(&world), keeping(&world));
    let at = one.root();
    sh(at, "umask 027; mkdir d; echo text > d/f; chmod 640 d/f; chmod 755 d");
    assert_eq!(sh(at, "umask 027; mkdir e; echo x > e/f; mkfifo e/p; stat -c %a e e/f e/p"), "750\n640\n640\n");
    let read = |user: u32| {
        let script = format!("setpriv --reuid {user} --regid {user} --clear-groups cat d/f");
        shell(at, &script).status.success()
    };
    assert!(!read(1234));
    sh(at, "setfacl -m u:1234:r d/f");
    assert_eq!(list(at, "d/f"), "user::rw-,user:1234:r--,group::r--,mask::r--,other::---");
    assert_eq!(list(two.root(), "d/f"), list(at, "d/f"));
    assert!(read(1234) && !read(1235));
    // chmod changes the mask, and with it what the list grants.
    sh(at, "chmod 600 d/f");
    assert_eq!(list(at, "d/f"), "user::rw-,user:1234:r--,group::r--,mask::---,other::---");
    assert!(!read(1234));
    sh(at, "setfacl -m m::rw d/f; test $(stat -c %a d/f) = 660; setfacl -b d/f; test $(stat -c %a d/f) = 640");
    assert_eq!(list(at, "d/f"), "user::rw-,group::r--,other::---");
    // A mount of one user shows none, and on the server they give nobody a right.
    sh(at, "setfacl -m u:1234:rw d/f");
    let user = world.mount();
    assert_eq!(list(user.root(), "d/f"), "user::rw-,group::rw-,other::---");
    assert!(!shell(user.root(), "setfacl -m u:1:r d/f").status.success());
    assert_eq!(list(&world.at("d"), "f"), "user::rw-,group::rw-,other::---");
    // Who is not in the group of a file takes its set-group-id bit with the list that he sets.
    sh(at, "chmod 2775 d/f; chown 1234:77 d/f; chmod 2775 d/f; setfacl -m u:5:r d/f; stat -c %a d/f | grep -q 2765");
    sh(at, "setpriv --reuid 1234 --regid 1234 --clear-groups setfacl -m u:6:r d/f");
    assert_eq!(sh(at, "stat -c %a d/f").trim(), "765");
}

#[test]
fn fuse_what_is_made_in_a_folder_gets_its_default_list() {
    need_fuse!();
    if is_skipped() {
        return;
    }
    let world = World::new();
    let (one, two) = (keeping(&world), keeping(&world));
    let at = one.root();
    sh(at, "mkdir -m 755 d; echo old > d/f; chmod 644 d/f; setfacl -d -m u:1234:rwx,o::- d");
    sh(at, "umask 022; mkdir d/sub; echo new > d/sub/new; mkfifo d/sub/pipe; touch d/f; ln -s f d/sub/link");
    assert_eq!(list(at, "d/sub/new"), "user::rw-,user:1234:rwx,group::r-x,mask::rw-,other::---");
    assert_eq!(sh(at, "stat -c %a d/sub d/sub/new d/sub/pipe"), "770\n660\n660\n");
    assert!(list(at, "d/sub").contains("default:user:1234:rwx"), "{}", list(at, "d/sub"));
    assert_eq!(list(at, "d/f"), "user::rw-,group::r--,other::r--", "it was there");
    // An umask is not taken where a default list says what is made, and is elsewhere.
    sh(at, "umask 077; echo x > d/sub/x; mkdir plain; echo x > plain/x; chmod 600 d/sub/x; echo y >> d/sub/x");
    assert_eq!(sh(at, "stat -c %a d/sub/x plain plain/x"), "600\n700\n600\n");
    assert_eq!(sh(at, "cat d/sub/new d/sub/x"), "new\nx\ny\n");
    assert_eq!(list(two.root(), "d/sub"), list(at, "d/sub"));
    // Another device gives it too, once it has looked at the folder.
    sh(two.root(), "echo x > d/sub/two; test $(stat -c %a d/sub/two) = 660");
    sh(two.root(), "setfacl -k d/sub; umask 022; echo x > d/sub/three; test $(stat -c %a d/sub/three) = 644");
    // A renamed folder keeps it.
    sh(at, "mv d other; echo x > other/new; test $(stat -c %a other/new) = 660; rm -r other; mkdir -p d/sub");
    sh(at, "umask 022; echo x > d/sub/new; test $(stat -c %a d/sub/new) = 644");
}

#[test]
fn fuse_rsync_copies_lists() {
    need_fuse!();
    if is_skipped() || Command::new("rsync").arg("--version").output().is_err() {
        return;
    }
    let world = World::new();
    let mount = keeping(&world);
    let source = tempfile::tempdir().expect("tempdir");
    let from = source.path();
    sh(from, "mkdir a; echo 1 > a/1; echo 2 > a/2; setfacl -m u:7:rw,g:8:r a/1; setfacl -d -m g:9:rwx a; echo 3 > a/3");
    sh(from, "setfattr -n user.a -v x a/2; ln a/2 a/linked; ln -s 1 a/link");
    let copy = format!("rsync -aHAX --itemize-changes {}/ copy/", from.display());
    sh(mount.root(), &copy);
    assert_eq!(sh(mount.root(), &copy), "", "nothing is left to do");
    let lists = "find . | sort | xargs getfacl -np; find . | sort | xargs getfattr -hd -m ^user";
    assert_eq!(sh(&mount.at("copy"), lists), sh(from, lists));
}
