//! What a server keeps: names that go, versions that rules keep, and images that nobody wants.

use std::fs;
use std::path::Path;

use crate::support::*;

/// A server, and where its store is.
struct Kept {
    folder: tempfile::TempDir,
    server: Server,
}

impl Kept {
    fn start() -> Kept {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&folder.path().join("store"));
        Kept { folder, server }
    }

    /// Publishes a tree whose only file says `text`; the id of its image.
    fn publish(&self, name: &str, text: &str) -> String {
        let (tree, image) = (self.folder.path().join("tree"), self.folder.path().join("image.rnl"));
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("file"), text).unwrap();
        let _ = fs::remove_file(&image);
        ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), image.as_os_str()]);
        let said = ok(&["push".as_ref(), "--json".as_ref(), image.as_os_str(), self.server.url(name).as_ref()]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["id"].as_str().unwrap().to_owned()
    }

    fn address(&self) -> String {
        self.server.url("").trim_end_matches('/').to_owned()
    }

    fn collect(&self, options: &[&str]) -> serde_json::Value {
        let said = ok(&[&["gc", "--json", "--grace", "10m", &self.address()], options].concat());
        serde_json::from_str(&said).unwrap()
    }

    fn has(&self, id: &str) -> bool {
        self.folder.path().join("store/images").join(format!("{id}.rnl")).exists()
    }

    /// A day passes since images were found unwanted.
    fn let_a_day_pass(&self) {
        let path = self.folder.path().join("store/collection.json");
        let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for image in record["unwanted"].as_object_mut().unwrap().values_mut() {
            image["since"] = (image["since"].as_u64().unwrap() - 86_400).into();
        }
        replace(&path, &serde_json::to_vec(&record).unwrap());
    }
}

fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn images_without_a_name_are_deleted_after_the_time_of_grace() {
    let kept = Kept::start();
    let ids = ["one", "two", "three"].map(|text| kept.publish("app:1", text));
    let other = kept.publish("other", "something else");
    // The present version, and the one before it.
    let rules = ok(&["retain", &kept.address(), "app", "--keep", "2", "--for", "0s"]);
    assert!(rules.contains("the newest 2") && !rules.contains("each for"), "{rules}");
    let rules = ok(&["retain", &kept.address(), "oth*:latest", "--keep", "1", "--for", "36h"]);
    assert!(rules.contains("oth*:latest") && rules.contains("each for 36h after the next"), "{rules}");
    let first = kept.collect(&[]);
    assert_eq!((&first["wanted"], &first["waiting_count"], &first["removed_count"]), (&3.into(), &1.into(), &0.into()));
    assert_eq!(first["waiting"][0]["id"].as_str(), Some(ids[0].as_str()), "{first}");
    kept.let_a_day_pass();
    let told = ok(&["gc", "--dry-run", &kept.address()]);
    assert!(told.contains("would delete") && told.contains("app:1"), "{told}");
    assert!(kept.has(&ids[0]));
    let said = kept.collect(&[]);
    assert!(said["removed_count"] == 1 && said["freed_bytes"].as_u64() > Some(4096), "{said}");
    assert_eq!(ids.each_ref().map(|id| kept.has(id)), [false, true, true]);
    assert!(kept.has(&other));
    // Who holds the version that is gone is told which one to take.
    let gone = fails(&["ls", &kept.server.url(&format!("@{}", ids[0]))], 4, "is deleted");
    assert!(gone.contains("app:1 is image") && gone.contains(&ids[2]), "{gone}");
}

#[test]
fn a_name_is_taken_away_and_another_one_given() {
    let kept = Kept::start();
    let id = kept.publish("app:1", "one");
    ok(&["tag", &kept.server.url("app:1"), "app:stable"]);
    let said = ok(&["images", "rm", &kept.server.url("app:1")]);
    assert!(said.contains("app:1 is gone"), "{said}");
    fails(&["ls", &kept.server.url("app:1")], 4, "there is no image app:1");
    fails(&["images", "rm", &kept.server.url("app:1")], 4, "there is no image app:1");
    fails(&["tag", &kept.server.url("app:1"), "app:2"], 4, "there is no image app:1");
    let listed = ok(&["images", &kept.address()]);
    assert!(listed.contains("app:stable") && !listed.contains("app:1"), "{listed}");
    kept.collect(&[]);
    assert!(kept.has(&id), "it has a name");
    // A file in the folder is its owner's.
    let file = kept.folder.path().join("store/dropped.rnl");
    fs::copy(kept.folder.path().join("image.rnl"), &file).unwrap();
    fails(&["images", "rm", &kept.server.url("dropped")], 5, "delete that");
    for (arguments, what) in [
        (vec!["retain", "SERVER", "app"], "required"),
        (vec!["retain", "SERVER", "app", "--keep", "0"], "a rule keeps something"),
        (vec!["retain", "SERVER", "--keep", "1"], "required"),
        (vec!["gc", "SERVER", "--grace", "soon"], "is no time"),
    ] {
        let address = kept.address();
        let arguments: Vec<&str> = arguments.into_iter().map(|it| if it == "SERVER" { &address } else { it }).collect();
        fails(&arguments, 2, what);
    }
}

#[test]
fn fuse_a_mounted_image_stays_without_a_name() {
    if !can_mount("fuse_a_mounted_image_stays_without_a_name") {
        return;
    }
    let kept = Kept::start();
    let id = kept.publish("app:1", "one");
    let mut mount = Mount::start(kept.server.url("app:1"), &["--cache", "none"]);
    kept.publish("app:1", "two");
    ok(&["images", "rm", &kept.server.url("app:1")]);
    for _ in 0..2 {
        kept.collect(&[]);
        kept.let_a_day_pass();
    }
    assert!(kept.has(&id), "it is mounted");
    assert_eq!(fs::read_to_string(mount.path.join("file")).unwrap(), "one");
    mount.terminate();
    // The server notices the end of the connection in its own time: ask until it has.
    let done = (0..1000).any(|_| {
        kept.collect(&[]);
        kept.let_a_day_pass();
        !kept.has(&id)
    });
    assert!(done, "nobody has it any more");
}
