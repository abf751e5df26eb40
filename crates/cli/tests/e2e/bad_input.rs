//! Bad input at the command line: one clear error that names the thing, the right exit code, never
//! a panic.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::*;

fn small_image(folder: &std::path::Path) -> std::path::PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir_all(&tree).unwrap();
    std::fs::write(tree.join("file"), "some text\n".repeat(2000)).unwrap();
    let image = folder.join("small.rnl");
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
    image
}

#[test]
fn a_flipped_byte_anywhere_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let image = small_image(folder.path());
    let good = std::fs::read(&image).unwrap();
    let bad_path = folder.path().join("bad.rnl");
    // Every region of the file is hit: the superblock, the blocks and the metadata.
    for position in (0..good.len()).step_by(good.len() / 40 + 1) {
        let mut bad = good.clone();
        bad[position] ^= 0x10;
        std::fs::write(&bad_path, &bad).unwrap();
        let expected = ok(&["dump".as_ref(), image.as_os_str()]);
        let output = run(&["check".as_ref(), bad_path.as_os_str()]);
        if output.status.success() {
            // A superblock that is still valid names another image; it may not pass for the same
            // one.
            let found = ok(&["dump".as_ref(), bad_path.as_os_str()]);
            assert_ne!(found, expected, "byte {position} flipped and nobody noticed");
        } else {
            assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("bad.rnl") && !text.contains("panicked"), "{text}");
        }
    }
}

#[test]
fn an_image_with_a_broken_profile_is_named_and_its_tables_are_shown() {
    use image::fixture::{Fixture, Node};
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture { profile: Some(b"no actions".to_vec()), ..Fixture::default() };
    let path = folder.path().join("profile.rnl");
    std::fs::write(&path, fixture.pack(&[Node::file(b"one", b"some text")]).unwrap()).unwrap();
    let dumped = run(&["dump".as_ref(), path.as_os_str()]);
    assert_eq!(dumped.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&dumped.stdout).contains("one"), "the tables come first");
    assert!(String::from_utf8_lossy(&dumped.stderr).contains("the profile"));
    fails(&["check".as_ref(), path.as_os_str()], 3, "the profile");
    assert_eq!(ok(&["cat".as_ref(), path.as_os_str(), "/one".as_ref()]), "some text", "the files are fine");
}

#[test]
fn truncated_empty_and_foreign_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let image = small_image(folder.path());
    let good = std::fs::read(&image).unwrap();
    let bad = folder.path().join("bad.rnl");
    for length in [0, 1, 4095, 4096, good.len() / 2, good.len() - 1] {
        std::fs::write(&bad, &good[..length]).unwrap();
        fails(&["check".as_ref(), bad.as_os_str()], 3, "bad.rnl");
        fails(&["ls".as_ref(), bad.as_os_str()], 3, "bad.rnl");
    }
    std::fs::write(&bad, "#!/bin/sh\n".repeat(1000)).unwrap();
    fails(&["check".as_ref(), bad.as_os_str()], 3, "bad.rnl");
    fails(&["ls".as_ref(), folder.path().join("absent.rnl").as_os_str()], 4, "absent.rnl");
    fails(&["cat".as_ref(), image.as_os_str(), "/absent".as_ref()], 4, "/absent");
}

#[test]
fn a_full_disk_at_pack_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    if !can_mount("a_full_disk_at_pack") {
        return;
    }
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&small).status();
    assert!(mounted.unwrap().success());
    let out = small.join("perl.rnl");
    let text = fails(
        &["pack".as_ref(), "--closure".as_ref(), "/usr/bin/perl".as_ref(), "-o".as_ref(), out.as_os_str()],
        1,
        "perl.rnl",
    );
    let left = std::fs::read_dir(&small).unwrap().count();
    std::process::Command::new("umount").arg(&small).status().unwrap();
    assert!(text.to_lowercase().contains("no space left"), "{text}");
    assert_eq!(left, 0);
}

#[test]
fn servers_that_are_absent_or_strangers_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mnt = folder.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    let image = small_image(folder.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (server, url) = (format!("runnel://{address}"), format!("runnel://{address}/app"));
    let (mnt, image) = (mnt.to_str().unwrap(), image.to_str().unwrap());
    const COMMANDS: usize = 5;
    let commands: [&[&str]; COMMANDS] = [
        &["images", &server],
        &["status", &server],
        &["push", image, &url],
        &["mount", &url, mnt],
        &["cat", &url, "/file"],
    ];
    // A stranger that answers with something else, as a web server would.
    let stranger = std::thread::spawn(move || {
        for stream in listener.incoming().take(COMMANDS) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    for command in commands {
        let text = fails(command, 5, &address);
        assert!(text.contains("does not speak Runnel's protocol: it answers as a web server"), "{text}");
        assert!(text.contains("check the port") && text.contains("runnels://"), "{text}");
    }
    stranger.join().unwrap();
    // Nobody listens there any more.
    fails(&["images", &server], 5, &address);
    fails(&["images", "http://example"], 2, "http://example");
}

#[test]
fn what_is_of_another_kind_than_a_command_takes_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let image = small_image(folder.path());
    let tree = folder.path().join("tree");
    let text = tree.join("file");
    let [image, tree, text] = [&image, &tree, &text].map(|path| path.to_str().unwrap());
    let absent = folder.path().join("absent").display().to_string();
    let output = format!("{absent}/app.rnl");
    let trace = folder.path().join("a.trace").display().to_string();
    std::fs::write(&trace, trace::format::MAGIC).unwrap();
    let cases: [(&[&str], i32, &str); 18] = [
        (&["serve", image], 2, "is an image, and serve takes the folder of a store"),
        (&["serve", image], 2, &format!("hint: `runnel serve {}`", folder.path().display())),
        (&["serve", text], 2, "is no folder, and serve takes the folder of a store"),
        (&["pack", image, "-o", "new.rnl"], 2, "is an image already\nhint: `runnel push"),
        (&["pack", tree, "-o", "-"], 2, "an image cannot be written to a pipe"),
        (&["pack", tree, "-o", &output], 4, &format!("cannot write {output}: the folder {absent} does not exist")),
        (&["push", tree, "runnel://h/app"], 2, &format!("hint: `runnel pack {tree} -o app.rnl`")),
        (&["status", tree], 4, "is not a runnel mount\nhint: `runnel status` lists the mounts"),
        (&["status", &absent], 4, "does not exist\nhint: `runnel status` lists the mounts"),
        (&["enter", &absent, "--", "true"], 4, &format!("cannot enter {absent}: ")),
        (&["pack", "--closure", &absent, "-o", "new.rnl"], 4, "no such file in the root directory"),
        (&["plans", "forget", "no-such-program"], 4, "no such program in PATH"),
        (&["check", "runnel://h/app"], 2, "runnel://h/app is an address, and this takes a file\nhint: `runnel ls`"),
        (&["dump", "runnels://h/app"], 2, "is an address, and this takes a file"),
        (&["extract", "http://h/app.rnl", "-C", &absent], 2, "is an address, and this takes a file"),
        (&["export", "runnel://h/app", "--tar", &absent], 2, "is an address, and this takes a file"),
        (&["record", "--merge", &trace, "--merge", &trace, "-o", &absent], 2, "hint: `runnel pack --trace FILE"),
        (&["redirect", "-c", &absent], 4, &format!("cannot read the configuration {absent}: ")),
    ];
    for (arguments, code, what) in cases {
        let said = fails(arguments, code, what);
        assert!(!said.contains(".part"), "{said}");
    }
    // Of a tree that is smaller than an empty image a ratio would say nothing.
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    std::fs::write(small.join("file"), "text").unwrap();
    let said = ok(&["pack".as_ref(), small.as_os_str(), "-o".as_ref(), folder.path().join("tiny.rnl").as_os_str()]);
    assert!(said.contains("1 file, 4 B -> ") && !said.contains("ratio"), "{said}");
}

#[test]
fn unknown_names_and_mount_points_in_use_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    let mnt = folder.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    let url = server.url("absent");
    fails(&["mount".as_ref(), url.as_ref(), mnt.as_os_str()], 4, "absent");
    if !can_mount("mount points in use") {
        return;
    }
    let image = small_image(folder.path());
    let mount = Mount::start(&image, &[]);
    let text = fails(&["mount".as_ref(), image.as_os_str(), mount.path.as_os_str()], 1, "mnt");
    assert!(text.contains("umount"), "{text}");
    fails(&["mount".as_ref(), image.as_os_str(), folder.path().join("nowhere").as_os_str()], 4, "nowhere");
}

#[test]
fn names_cannot_steer_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let name = "a\u{1b}]0;title\u{7}\u{202e}gpj";
    std::fs::write(tree.join(name), "text").unwrap();
    let image = folder.path().join("names.rnl");
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
    let shown = r"a\u001b]0;title\u0007\u202egpj";

    // A program that reads the list gets the name as it is; people do not.
    assert_eq!(ok(&["ls".as_ref(), image.as_os_str()]), format!("{name}\n"));
    match std::process::Command::new("script")
        .args(["-qec", "exec \"$RUNNEL\" ls \"$IMAGE\"", "/dev/null"])
        .env("RUNNEL", runnel().get_program())
        .env("IMAGE", &image)
        .stdin(std::process::Stdio::null())
        .output()
    {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{shown}\r\n")),
        Err(error) => println!("skipped: a terminal, by the program script: {error}"),
    }

    // Messages are for people wherever they go.
    let absent = format!("/absent\u{9b}31m\r{name}");
    let text = fails(&["cat".as_ref(), image.as_os_str(), absent.as_ref()], 4, &format!(r"/absent\u009b31m\r{shown}"));
    assert!(!text.chars().any(|c| c != '\n' && c.is_control()), "{text:?}");
}

#[test]
fn a_server_that_cannot_start_says_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let serve = |option: &str, value: &str, code| {
        fails(&["serve".as_ref(), store.as_os_str(), option.as_ref(), value.as_ref()], code, value)
    };
    assert!(serve("--listen", "localhost", 2).contains("HOST:PORT"));
    assert!(serve("--listen", "localhost:70000", 2).contains("ports go up to 65535"));
    assert!(serve("--listen", "no such host:1", 2).contains("host is not known"));
    assert!(serve("--memory", "1", 2).contains("32"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = serve("--listen", &taken.local_addr().unwrap().to_string(), 1);
    assert!(said.contains("choose another port"), "{said}");
    // A machine without /etc/hosts knows no names.
    let named = std::net::ToSocketAddrs::to_socket_addrs("localhost:0").map_or("127.0.0.1:0", |_| "localhost:0");
    let server = Server::start_at(&folder.path().join("other"), named, &[]);
    let output = run(&["images", &format!("runnel://{}", server.address)]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("publishes no images"));
    let push = ["push", "nothing.rnl", &server.url("volume/x")];
    assert!(fails(&push, 2, "volume/x").contains("another name"));

    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let absent = ["serve", store.to_str().unwrap(), "--listen", "127.0.0.1:0", "--volume", "d=/no/such"];
    fails(&absent, 2, "volume d: the folder /no/such does not exist; make it (mkdir -p /no/such)");
    let volume = format!("d={}:rw", data.display());
    let first = Server::start_at(&folder.path().join("first"), "127.0.0.1:0", &["--volume", &volume]);
    let said =
        fails(&["serve", store.to_str().unwrap(), "--listen", "127.0.0.1:0", "--volume", &volume], 1, "volume d");
    assert!(said.contains(&format!("open for writing in process {}", first.pid())), "{said}");
}

#[test]
fn a_store_that_cannot_be_written_or_is_gone_is_told_in_the_log_and_to_clients() {
    let folder = tempfile::tempdir().unwrap();
    let (image, log, store) = (small_image(folder.path()), folder.path().join("log"), folder.path().join("store"));
    let log_text = || std::fs::read_to_string(&log).unwrap();
    let push = |server: &Server, what: &str| fails(&["push", image.to_str().unwrap(), &server.url("app")], 5, what);

    let server = Server::start_logged(&store, &log, &[]);
    ok(&["push", image.to_str().unwrap(), &server.url("app")]);
    std::fs::remove_dir_all(&store).unwrap();
    let gone = format!("the folder of the store, {}, was removed", store.display());
    push(&server, &gone);
    fails(&["images", &format!("runnel://{}", server.address)], 5, &gone);
    fails(&["cat", &server.url("other"), "/file"], 5, &gone);
    server.terminate();
    assert!(log_text().contains(&gone), "{}", log_text());
    let last = log_text().lines().last().unwrap_or_default().to_owned();
    // The server may get the signal before it notices that the last client has left.
    let ended = ["0", "1"].map(|count| format!("ended by SIGTERM: connections closed: {count}, files"));
    assert!(ended.iter().any(|ended| last.contains(ended)), "{last}");

    if !can_mount("a store on a read-only file system") {
        return;
    }
    std::fs::create_dir(&store).unwrap();
    let mount = |arguments: &[&str]| {
        let ended = std::process::Command::new("mount").args(arguments).arg(&store).status();
        assert!(ended.unwrap().success());
    };
    mount(&["-t", "tmpfs", "-o", "size=1m,ro", "tmpfs"]);
    let server = Server::start_logged(&store, &log, &[]);
    let text = push(&server, "the store of the server is read-only");
    server.terminate();
    std::process::Command::new("umount").arg(&store).status().unwrap();
    assert!(!text.contains("os error"), "{text}");
    let said = log_text();
    assert_eq!(said.matches("the store is read-only: ").count(), 1, "{said}");
    assert!(said.contains("--read-only and --frozen"), "{said}");
}

#[test]
fn a_server_with_all_places_taken_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_at(&folder.path().join("store"), "127.0.0.1:0", &["--connections", "1"]);
    let holder = std::net::TcpStream::connect(&server.address).unwrap();
    let text = fails(&["images", &format!("runnel://{}", server.address)], 5, "as many as it may have");
    assert!(text.contains("--connections-per-address") && text.contains("try again later"), "{text}");
    drop(holder);
}

#[test]
fn a_file_that_is_no_program_is_called_so_where_there_is_no_shell() {
    if !can_mount("a_file_that_is_no_program_is_called_so_where_there_is_no_shell") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir_all(tree.join("opt")).unwrap();
    std::fs::write(tree.join("opt/plain"), "echo hello\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(tree.join("opt/plain"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let image = folder.path().join("plain.rnl");
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
    let said = fails(&["run".as_ref(), image.as_os_str(), "--".as_ref(), "/opt/plain".as_ref()], 126, "no program");
    assert!(said.contains("begins neither as an ELF file nor with #!"), "{said}");
    fails(
        &["run".as_ref(), image.as_os_str(), "--".as_ref(), "/opt".as_ref()],
        126,
        "/opt is a directory; name a program",
    );
}

#[test]
fn commands_that_moved_say_where_to() {
    for name in ["bench", "demo"] {
        fails(&[name, "--quick"], 2, &format!("`./x {name}`"));
    }
}

#[test]
fn help_that_cannot_be_printed_is_an_error() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in [&["--help"][..], &["--version"], &["pack", "--help"]] {
        assert_eq!(runnel().args(arguments).stdout(full()).status().unwrap().code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_damaged_image_of_a_server_is_named_by_the_device_and_by_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (tree, store, log) = (at("tree"), at("store"), at("log"));
    std::fs::create_dir_all(&tree).unwrap();
    std::fs::create_dir_all(&store).unwrap();
    let lines: Vec<String> = (0..60_000u32).map(|line| format!("{:x}\n", line.wrapping_mul(0x9e37_79b9))).collect();
    std::fs::write(tree.join("file"), lines.concat()).unwrap();
    let image = store.join("app.rnl");
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
    let mut bytes = std::fs::read(&image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&image, bytes).unwrap();
    let server = Server::start_logged(&store, &log, &[]);
    let said = fails(&["cat", &server.url("app"), "/file"], 3, "the bytes do not match the image");
    let line = said.lines().find(|line| line.starts_with("error: image ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(": /file at byte ") && line.contains("let `runnel check` look at the image file"), "{line}");
    let logged = std::fs::read_to_string(&log).unwrap();
    assert!(logged.contains("warning: a request failed: image ") && logged.contains("is damaged"), "{logged}");
    let status: serde_json::Value =
        serde_json::from_str(&ok(&["status", &format!("runnel://{}", server.address), "--json"])).unwrap();
    assert!(status["metrics"]["reads_failed"].as_u64() > Some(0), "{status}");
}
