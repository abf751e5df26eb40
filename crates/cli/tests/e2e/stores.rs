//! Servers of a store in a real S3 service.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use objects::fixture::Gateway;

use crate::support::*;

/// How long the service may take to be seen again: it is looked for once a second.
const BACK_TIME: Duration = Duration::from_secs(60);

/// A server of the bucket with a cache of its own.
fn serve(gateway: &Gateway, cache: &Path, log: &Path) -> Server {
    let mut command = runnel();
    command.args(["serve", "s3://box/prod", "--listen", "127.0.0.1:0", "--store-cache"]).arg(cache);
    command.envs(gateway.environment());
    Server::start_by(command, fs::File::create(log).unwrap().into())
}

/// An image whose file `version` says `version`, with 3 MiB beside it.
fn image(folder: &Path, version: u32) -> PathBuf {
    let (tree, image) = (folder.join(format!("v{version}")), folder.join(format!("v{version}.rnl")));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("version"), format!("{version}\n")).unwrap();
    let mut state = u64::from(version);
    let noise = (0..(3 << 20) / 8).flat_map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state ^ (state >> 29)).to_le_bytes()
    });
    fs::write(tree.join("noise"), noise.collect::<Vec<u8>>()).unwrap();
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
    image
}

/// What a device without a cache reads, all of it.
fn version_at(server: &Server) -> String {
    let mount = Mount::start(server.url("app"), &[]);
    assert_eq!(fs::read(mount.path.join("noise")).unwrap().len(), 3 << 20);
    fs::read_to_string(mount.path.join("version")).unwrap().trim_end().to_owned()
}

#[test]
fn fuse_servers_share_a_bucket_and_serve_what_they_cached_while_it_is_away() {
    if !can_mount("fuse_servers_share_a_bucket") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut gateway = Gateway::start();
    let (one, two) = (at("one.log"), at("two.log"));
    let first = serve(&gateway, &at("one"), &one);
    let push = |version: u32, image: &Path| {
        let pushed = run(&["push".as_ref(), image.as_os_str(), first.url("app").as_ref()]);
        let said = String::from_utf8_lossy(&pushed.stderr).into_owned();
        (pushed.status.success(), format!("version {version}: {said}"))
    };
    let (done, said) = push(1, &image(folder.path(), 1));
    assert!(done, "{said}");
    assert_eq!(version_at(&first), "1");
    let second = serve(&gateway, &at("two"), &two);
    assert_eq!(version_at(&second), "1", "what the first one took");
    let (done, said) = push(2, &image(folder.path(), 2));
    assert!(done, "{said}");
    assert_eq!(version_at(&second), "2", "as soon as the tag is switched");

    gateway.kill();
    assert_eq!(version_at(&second), "2", "from its cache");
    let third = image(folder.path(), 3);
    let (done, said) = push(3, &third);
    assert!(!done && said.contains("does not answer"), "{said}");
    assert!(!fs::read_to_string(&one).unwrap().contains("test-secret"));

    gateway.restart();
    let begun = Instant::now();
    loop {
        let (done, said) = push(3, &third);
        if done {
            break;
        }
        assert!(begun.elapsed() < BACK_TIME, "{said}");
    }
    assert_eq!((version_at(&first), version_at(&second)), ("3".into(), "3".into()));
    first.terminate();
    let log = fs::read_to_string(&one).unwrap();
    assert_eq!(log.matches("what is cached is served meanwhile").count(), 1, "{log}");
    assert_eq!(log.matches("the store is back").count(), 1, "{log}");
    second.terminate();
}

#[test]
fn a_store_that_cannot_be_opened_is_named_and_no_secret_is() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start();
    let serve = |url: &str, variable: (&str, &str)| {
        let mut command = runnel();
        command.args(["serve", url, "--listen", "127.0.0.1:0", "--store-cache"]).arg(folder.path());
        let output = output(command.envs(gateway.environment()).env(variable.0, variable.1));
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let wrong = serve("s3://box/prod", ("AWS_SECRET_ACCESS_KEY", "hunter2"));
    assert!(wrong.contains("check the credentials") && !wrong.contains("hunter2"), "{wrong}");
    let absent = serve("s3://no-such-box", ("AWS_REGION", "us-east-1"));
    assert!(absent.contains("no-such-box"), "{absent}");
    let url = serve("s3://key:hunter2@box", ("AWS_REGION", "us-east-1"));
    assert!(url.contains("come from the environment") && !url.contains("hunter2"), "{url}");
    fails(&["serve", "/tmp", "--store-cache", "/tmp"], 2, "are for stores by URL");
    fails(&["serve", "/tmp", "--volume", "data=s3://box/data"], 2, "volumes need a folder of this machine yet");
}
