//! The device cache under real mounts: second starts, and starts without a server.

use std::process::Output;

use crate::support::*;

#[test]
fn fuse_a_program_that_ran_before_starts_without_its_server() {
    if !can_mount("fuse_a_program_that_ran_before") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let (cache, url) = (folder.path().join("cache"), server.url("python"));
    let start = |code: &str| -> Output {
        output(runnel().args(["run", "--soft", "1", "--cache"]).arg(&cache).arg(&url).args([
            "--",
            "/usr/bin/python3",
            "-c",
            code,
        ]))
    };
    let code = "import json, decimal; print(json.dumps(str(decimal.Decimal(2))))";
    let first = start(code);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let with_server = start(code);
    assert_eq!((with_server.stdout.as_slice(), with_server.stderr.as_slice()), (&b"\"2\"\n"[..], &b""[..]));

    server.kill();
    let alone = start(code);
    let said = String::from_utf8_lossy(&alone.stderr);
    assert_eq!(alone.stdout, b"\"2\"\n", "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("from the device cache"), "{said}");
    // What never ran fails, and does not wait for ever.
    assert!(!start("import sqlite3, xml.dom.minidom, asyncio").status.success());

    let command = |action: &[&str]| ok(&[&["cache", "--cache", cache.to_str().unwrap()], action].concat());
    let status: serde_json::Value = serde_json::from_str(&command(&["status", "--json"])).unwrap();
    let number = |name: &str| status[name].as_u64().unwrap();
    assert!(number("payload_bytes") > 1 << 20 && number("bytes") <= 64 << 20, "{status}");
    assert!(number("written_bytes") * 100 <= number("payload_bytes") * 115, "{status}");
    assert!(command(&["verify"]).contains(" 0 damaged"));
    command(&["prune"]);
    assert!(!start(code).status.success(), "nothing is left");
}
