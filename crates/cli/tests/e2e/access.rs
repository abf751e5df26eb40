//! Who may connect to a server and push to it, by default and with options.

use crate::support::*;

#[test]
fn a_server_that_strangers_could_push_to_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let said = fails(&["serve".as_ref(), store.as_os_str(), "--listen".as_ref(), listen.as_ref()], 2, listen);
        for way in ["--access", "--client-ca", "--read-only", "--allow-anonymous-push"] {
            assert!(said.contains(way), "{said}");
        }
    }
    let own = Server::start(&store);
    let port = |server: &Server| server.address.rsplit(':').next().unwrap().to_string();
    let image = folder.path().join("app.rnl");
    std::fs::create_dir(folder.path().join("tree")).unwrap();
    ok(&["pack".as_ref(), folder.path().join("tree").as_os_str(), "-o".as_ref(), image.as_os_str()]);
    let push = |server: &Server| {
        let target = format!("runnel://127.0.0.1:{}/app", port(server));
        run(&["push".as_ref(), image.as_os_str(), target.as_ref()])
    };
    assert!(push(&own).status.success());
    drop(own);
    let closed = Server::start_at(&store, "0.0.0.0:0", &["--read-only"]);
    assert!(String::from_utf8_lossy(&push(&closed).stderr).contains("takes no uploads"));
    drop(closed);
    assert!(push(&Server::start_at(&store, "0.0.0.0:0", &["--allow-anonymous-push"])).status.success());
}

/// An address of this machine that is not loopback, if it has one. Nothing is sent to find it.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[test]
fn volumes_are_written_over_networks_with_tls_or_when_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let volume = |mode: &str| format!("data={}:{mode}", data.display());
    let writing = volume("rw");
    let serve = |listen| ["serve", store.to_str().unwrap(), "--listen", listen, "--read-only", "--volume", &writing];
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let said = fails(&serve(listen), 2, "volume data");
        for way in ["--tls-cert", "`ro`", "--insecure"] {
            assert!(said.contains(way), "{said}");
        }
    }
    drop(Server::start_at(&store, "0.0.0.0:0", &["--read-only", "--volume", &volume("ro")]));
    let server = Server::start_at(&store, "0.0.0.0:0", &["--read-only", "--volume", &writing, "--insecure"]);
    let Some(own) = own_address() else {
        return eprintln!("skipped mounts over a network: this machine has no address but loopback");
    };
    let port = server.address.rsplit(':').next().unwrap();
    let target = format!("runnel://{own}:{port}/volume/data");
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let said = fails(&["mount", &target, place.to_str().unwrap(), "--foreground"], 1, &own.to_string());
    assert!(said.contains("hint: give --insecure") && said.contains("runnels://"), "{said}");
    if can_mount("volumes_are_written_over_networks_with_tls_or_when_that_is_asked_for") {
        let mount = Mount::start(target.clone(), &["--insecure"]);
        std::fs::write(mount.path.join("new"), "text").unwrap();
        drop(mount);
        assert_eq!(std::fs::read_to_string(data.join("new")).unwrap(), "text");
        let mount = Mount::start(target, &["--read-only"]);
        assert_eq!(std::fs::read_to_string(mount.path.join("new")).unwrap(), "text");
        std::fs::write(mount.path.join("new"), "other").unwrap_err();
    }
}

#[test]
fn tokens_are_made_used_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (access, store, image, token) = (path("access.toml"), path("store"), path("app.rnl"), path("token"));
    std::fs::write(&access, "[principal.ci]\npull = [\"*\"]\npush = [\"app\"]\n[principal.ci\n").unwrap();
    fails(&["serve", &store, "--access", &access], 2, "access.toml:4: ");
    std::fs::write(&access, "[principal.ci]\npull = [\"*\"]\npush = [\"app\"]\n").unwrap();
    fails(&["token", "create", "--access", &access, "--principal", "cj"], 2, "it has ci");
    std::fs::write(&token, ok(&["token", "create", "--access", &access, "--principal", "ci"])).unwrap();
    std::fs::create_dir(path("tree")).unwrap();
    ok(&["pack", &path("tree"), "-o", &image]);
    // In its sandbox, where it must be able to read the files again and to write the log.
    std::fs::create_dir(path("log")).unwrap();
    let audit = path("log/audit.jsonl");
    let server = Server::start_at(store.as_ref(), "127.0.0.1:0", &["--access", &access, "--audit-log", &audit]);
    let there = format!("runnel://{}", server.address);
    let said = fails(&["images", &there], 5, "the server takes you for anonymous");
    assert!(said.contains("--token-file"), "{said}");
    ok(&["push", &image, &server.url("app"), "--token-file", &token]);
    fails(&["push", &image, &server.url("other"), "--token-file", &token], 5, "no right `push` on other:latest");
    assert!(ok(&["images", &there, "--token-file", &token]).starts_with("app:latest"));
    let mut by_variable = runnel();
    by_variable.args(["images", &there]).env("RUNNEL_TOKEN", std::fs::read_to_string(&token).unwrap().trim_end());
    assert!(output(&mut by_variable).status.success());
    // Refused before anything connects: nobody listens there.
    let mut cut = runnel();
    cut.args(["images", "runnel://127.0.0.1:9"]).env("RUNNEL_TOKEN", "rnl_00");
    let cut = output(&mut cut);
    let said = String::from_utf8_lossy(&cut.stderr);
    assert!(cut.status.code() == Some(2) && said.contains("RUNNEL_TOKEN: this is no token"), "{said}");
    std::fs::write(path("wrong"), "rnl_00").unwrap();
    fails(&["images", &there, "--token-file", &path("wrong")], 2, "this is no token");
    let listed = ok(&["token", "list", "--access", &access]);
    let id = listed.split_whitespace().next().unwrap();
    fails(&["token", "revoke", "--access", &access, "000000000000"], 4, "runnel token list");
    fails(&["token", "revoke", "--access", &access, "--principal", "nosuch"], 4, "nosuch has no tokens");
    ok(&["token", "revoke", "--access", &access, id]);
    // Soon after: the server looks by itself.
    while run(&["images", &there, "--token-file", &token]).status.success() {}
    fails(&["images", &there, "--token-file", &token], 5, "does not know your token");
    server.terminate();
    let text = std::fs::read_to_string(&audit).unwrap();
    assert!(text.lines().any(|line| line.contains("\"action\":\"push\"") && line.contains("\"principal\":\"ci\"")));
    assert!(text.contains("\"action\":\"token-revoked\""), "{text}");
}
