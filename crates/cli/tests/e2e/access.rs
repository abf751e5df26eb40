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
