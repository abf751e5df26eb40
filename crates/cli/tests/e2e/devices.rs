//! Several devices, and the same device again: what one teaches the server, all ride on.

use crate::support::*;

/// A small program that touches a few dozen modules.
const PROGRAM: &str = "import json, decimal, email.message, http.client, sqlite3, ssl, asyncio; print(json.dumps([1]))";

/// Starts the program inside a mount.
pub fn start_python(mount: &Mount) {
    let output =
        runnel().arg("enter").arg(&mount.path).args(["--", "/usr/bin/python3", "-c", PROGRAM]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"[1]\n");
}

fn counter(mount: &Mount, name: &str) -> u64 {
    let status = mount.status();
    status["session"][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {status:#}"))
}

#[test]
fn fuse_later_starts_ride_on_what_the_first_taught() {
    if !can_mount("fuse_later_starts") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);

    let first = Mount::start(server.url("python"), &[]);
    start_python(&first);
    let unlearned = counter(&first, "pages_demanded");
    assert!(unlearned > 20, "the first start demanded only {unlearned} pages");
    assert_eq!(counter(&first, "pages_pushed"), 0);
    drop(first);
    // Three runs in all, each on an empty device; what one still misses, the next one has pushed.
    for _ in 0..2 {
        wait_until_learned(&server);
        start_python(&Mount::start(server.url("python"), &[]));
    }
    let before = wait_until_learned(&server);

    let second = Mount::start(server.url("python"), &[]);
    start_python(&second);
    let demanded = counter(&second, "pages_demanded");
    // A page that is demanded although the action has it was only late, which depends on the
    // machine's load. What must be gone is pages that nobody told the server about.
    let unknown = wait_until_learned(&server) - before;
    let (pushed, wasted) = (counter(&second, "pages_pushed"), counter(&second, "pages_wasted"));
    assert!(pushed > 1000, "{pushed} pages pushed");
    assert!(unknown * 10 <= unlearned, "{unknown} unknown pages after learning, {unlearned} before");
    assert!(demanded < unlearned, "{demanded} pages demanded after learning, {unlearned} before");
    assert!(wasted * 100 <= pushed * 15, "{wasted} of {pushed} pushed pages wasted");
    assert_eq!(counter(&second, "verify_failures"), 0);
    // SPEC.md: at most 8 MB beyond the page cache.
    let resident = second.resident_kilobytes();
    assert!(resident <= 8 * 1024, "the daemon holds {resident} kB of its own");
}

#[test]
fn fuse_two_devices_at_once_do_not_disturb_each_other() {
    if !can_mount("fuse_two_devices") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let mounts = [Mount::start(server.url("python"), &[]), Mount::start(server.url("python"), &[])];
    for round in 0..3 {
        std::thread::scope(|scope| {
            for mount in &mounts {
                scope.spawn(|| {
                    start_python(mount);
                    start_python(mount);
                });
            }
        });
        let fresh = Mount::start(server.url("python"), &[]);
        start_python(&fresh);
        assert_eq!(counter(&fresh, "verify_failures"), 0, "round {round}");
    }
}

/// Waits until all that was learned is compressed: learning ends when the token does. Returns how
/// many touches were outside the action that was followed, in all runs so far.
pub fn wait_until_learned(server: &Server) -> u64 {
    let start = std::time::Instant::now();
    loop {
        let url = format!("runnel://{}", server.address);
        let status: serde_json::Value = serde_json::from_str(&ok(&["status", "--json", &url])).unwrap();
        let image = &status["images"][0];
        if image["bundles"].as_u64().unwrap_or_default() > 0 && status["bundles_waiting"] == 0 {
            return image["predictor"]["mismatches"].as_u64().expect("a counter");
        }
        assert!(start.elapsed().as_secs() < 60, "the server has learned nothing after a minute: {status:#}");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}
