//! Who may connect to a server and push to it, by default and with options.

use crate::support::*;

#[test]
fn a_server_that_strangers_could_push_to_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let said = fails(&["serve".as_ref(), store.as_os_str(), "--listen".as_ref(), listen.as_ref()], 2, listen);
        for way in ["--client-ca", "--read-only", "--allow-anonymous-push"] {
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
