//! Hints: what a launcher knows lies in the page cache before it is read.

use std::fs;
use std::time::{Duration, Instant};

use mount::Hinter;
use serde_json::Value;

use crate::support::*;

/// Pages of the file that is hinted; its last one is short.
const PAGES: u32 = 400;

/// How long pages may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that do not compress, always the same.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn number(status: &Value, group: &str, name: &str) -> u64 {
    status[group][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {status:#}"))
}

/// Asks the mount until so many pages were stored.
fn wait_stored(mount: &Mount, pages: u64) -> Value {
    let start = Instant::now();
    loop {
        let status = mount.status();
        if number(&status, "session", "pages_stored") >= pages {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "the hinted pages do not come: {status:#}");
        // Another process works; a short pause leaves it the processor.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn fuse_hinted_pages_are_there_when_they_are_read() {
    if !can_mount("fuse_hinted_pages_are_there_when_they_are_read") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("tree/lib")).unwrap();
    let (hinted, other) = (noise(PAGES as usize * 4096 - 1000, 1), noise(100 * 4096, 2));
    fs::write(at("tree/lib/hinted"), &hinted).unwrap();
    fs::write(at("tree/lib/other"), &other).unwrap();
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), at("image.rnl").as_os_str()]);
    let server = Server::start(&at("store"));
    ok(&["push".as_ref(), at("image.rnl").as_os_str(), server.url("app").as_ref()]);

    let local = at("image.rnl").to_string_lossy().into_owned();
    for target in [server.url("app"), local] {
        let mut mount = Mount::start(&target, &[]);
        let (path, hinter) = (mount.path.join("lib/hinted"), Hinter::new());
        // In two parts, and more than the file has.
        assert!(hinter.hint(&path, &[0..50, 50..100]) && hinter.hint(&path, &[100..250, 250..9999]), "{target}");
        let before = wait_stored(&mount, u64::from(PAGES));
        assert!(fs::read(&path).unwrap() == hinted, "{target}: wrong bytes");
        let after = mount.status();
        for (group, name) in [("fuse", "read"), ("session", "requests"), ("session", "pages_demanded")] {
            assert_eq!(number(&before, group, name), 0, "{target}: {name}");
            assert_eq!(number(&after, group, name), 0, "{target}: {name}");
        }
        for name in ["pages_hinted", "pages_hint_pushed"] {
            assert_eq!(number(&after, "session", name), u64::from(PAGES), "{target}: {name}");
        }

        let wrong = |path: &str, range| mount::hint_files(&mount.path, &[(path.into(), vec![range])]);
        let missing = wrong("/lib/none", 0..1).unwrap_err().to_string();
        assert!(missing.contains("the image has no file /lib/none"), "{missing}");
        let behind = wrong("/lib/other", 99..101).unwrap_err().to_string();
        assert!(behind.contains("/lib/other has 100 pages, asked for are 99 to 101"), "{behind}");
        assert!(!hinter.hint(&at("tree/lib/other"), std::slice::from_ref(&(0..1))), "not a mount");
        assert!(fs::read(mount.path.join("lib/other")).unwrap() == other, "{target}: the mount goes on");
        assert!(number(&mount.status(), "session", "pages_demanded") > 0, "what was not hinted is demanded");

        mount.kill();
        assert!(!hinter.hint(&path, std::slice::from_ref(&(0..1))), "a dead mount takes no hints");
    }
    let url = format!("runnel://{}", server.address);
    let status: Value = serde_json::from_str(&ok(&["status", "--json", &url])).unwrap();
    assert_eq!(number(&status, "metrics", "pages_hinted"), u64::from(PAGES));
    assert_eq!(number(&status, "metrics", "pages_pushed"), u64::from(PAGES));
    let text = ok(&["status", &url]);
    let id = &status["images"][0]["id"].as_str().unwrap()[..12];
    assert!(text.contains(&format!("pages pushed               {PAGES}\n")) && text.contains(id), "{text}");
}
