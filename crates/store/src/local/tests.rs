//! Crash tests of the write path: the process dies before each of its system calls in turn.

use std::sync::Mutex;

use super::*;

/// Counts the system calls of the write path and stops the world before a chosen one.
#[derive(Default)]
pub(super) struct Steps {
    left: Mutex<Option<usize>>,
    taken: Mutex<Vec<&'static str>>,
}

impl Steps {
    pub(super) fn take(&self, name: &'static str) -> io::Result<()> {
        let mut left = self.left.lock().unwrap();
        match left.as_mut() {
            Some(0) => return Err(io::Error::other("the process was killed")),
            Some(left) => *left -= 1,
            None => {}
        }
        self.taken.lock().unwrap().push(name);
        Ok(())
    }

    pub(super) fn alive(&self) -> bool {
        *self.left.lock().unwrap() != Some(0)
    }
}

/// A store whose process dies before system call number `calls`; `None`: it lives.
fn doomed(root: &Path, calls: Option<usize>) -> Local {
    let store = Local::open(root).unwrap();
    *store.staging.as_ref().unwrap().steps.left.lock().unwrap() = calls;
    store
}

fn steps_taken(store: &Local) -> Vec<&'static str> {
    store.staging.as_ref().unwrap().steps.taken.lock().unwrap().clone()
}

/// What `kill -9` does: nothing is cleaned, but the kernel lets go of the locks.
fn kill(store: Local) {
    let staging = Arc::into_inner(store.staging.unwrap()).expect("uploads are gone");
    drop(staging._lock.try_clone());
    rustix::fs::flock(&staging._lock, FlockOperation::Unlock).unwrap();
    std::mem::forget(staging);
}

fn staged(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in fs::read_dir(root.join(STAGING)).unwrap() {
        files.extend(fs::read_dir(folder.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()));
    }
    files
}

#[test]
fn a_put_syncs_the_file_before_the_rename_and_the_folder_after() {
    let root = tempfile::tempdir().unwrap();
    let store = doomed(root.path(), None);
    store.put_atomic("tags/python/latest", b"one").unwrap();
    assert_eq!(
        steps_taken(&store),
        [
            "create",
            "write",
            "sync file",
            "make folder",
            "sync folder above",
            "make folder",
            "sync folder above",
            "rename",
            "sync folder"
        ]
    );
}

#[test]
fn a_kill_before_any_system_call_of_a_put_leaves_the_old_or_the_new_object_and_no_temporary() {
    let mut outcomes = Vec::new();
    for calls in 0.. {
        let root = tempfile::tempdir().unwrap();
        Local::open(root.path()).unwrap().put_atomic("tags/python/latest", b"old").unwrap();
        let store = doomed(root.path(), Some(calls));
        let result = store.put_atomic("tags/python/latest", b"newer");
        if result.is_ok() {
            break;
        }
        kill(store);
        let after = Local::open(root.path()).unwrap();
        assert_eq!(staged(root.path()), Vec::<PathBuf>::new(), "temporary left after a kill before call {calls}");
        outcomes.push(after.get("tags/python/latest", 100).unwrap());
        // The store is usable at once.
        after.put_atomic("tags/python/latest", b"third").unwrap();
        assert_eq!(after.get("tags/python/latest", 100).unwrap(), b"third");
    }
    // create, write, sync file, 2 x make folder (there already), rename | sync folder
    assert_eq!(outcomes.len(), 7);
    assert!(outcomes[..6].iter().all(|bytes| bytes == b"old"));
    assert_eq!(outcomes[6], b"newer");
}

#[test]
fn opening_removes_what_the_dead_left_and_keeps_what_the_living_write() {
    let root = tempfile::tempdir().unwrap();
    let living = Local::open(root.path()).unwrap();
    let mut upload = living.create().unwrap();
    upload.write_at(0, b"in progress").unwrap();

    let dead = doomed(root.path(), Some(2));
    dead.put_atomic("a", b"lost").unwrap_err();
    kill(dead);
    assert_eq!(staged(root.path()).len(), 2, "the dead left one, the living writes one");

    let third = Local::open(root.path()).unwrap();
    assert_eq!(staged(root.path()).len(), 1);
    upload.commit("b").unwrap();
    assert_eq!(third.get("b", 100).unwrap(), b"in progress");
    assert!(third.open("a").is_err_and(|error| error.is_not_found()));
}

#[test]
fn a_store_opens_while_others_close() {
    let root = tempfile::tempdir().unwrap();
    let open_often = || (0..300).try_for_each(|_| Local::open(root.path()).map(drop));
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..4).map(|_| scope.spawn(open_often)).collect();
        openers.into_iter().for_each(|opener| opener.join().unwrap().unwrap());
    });
}

#[test]
fn closing_the_store_removes_its_folder_of_temporaries() {
    let root = tempfile::tempdir().unwrap();
    let store = Local::open(root.path()).unwrap();
    drop(store.create().unwrap());
    drop(store);
    assert_eq!(fs::read_dir(root.path().join(STAGING)).unwrap().count(), 0);
}

#[test]
fn what_is_no_regular_file_is_no_object() {
    let root = tempfile::tempdir().unwrap();
    let store = Local::open(root.path()).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.path().join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::create_dir(root.path().join("folder")).unwrap();
    fs::write(root.path().join("hand made.rnl"), b"x").unwrap();
    fs::write(root.path().join("dropped.rnl"), b"y").unwrap();
    std::os::unix::fs::symlink(root.path().join("dropped.rnl"), root.path().join("linked.rnl")).unwrap();
    for key in ["fifo", "folder", "dropped.rnl/below"] {
        assert!(store.open(key).is_err_and(|error| error.is_not_found()), "{key}");
    }
    let listed = store.list("").unwrap();
    let objects = ["dropped.rnl", "linked.rnl"].map(|key| Listed::Object(key.to_owned()));
    assert_eq!(listed, [&objects[..1], &[Listed::Folder("folder".to_owned())], &objects[1..]].concat());
}

#[test]
fn a_root_that_is_a_file_is_an_error_naming_it() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, b"").unwrap();
    let Err(error) = Local::open(&file) else { panic!("a file was opened as a store") };
    assert!(error.to_string().contains("file"), "{error}");
}

/// Does something in a folder of this mode without the rights of root; only a thread gives them up.
fn with_mode<R: Send>(root: &Path, mode: u32, work: impl FnOnce() -> R + Send) -> R {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(root, fs::Permissions::from_mode(mode)).unwrap();
    let result = std::thread::scope(|scope| {
        let work = || {
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
            work()
        };
        scope.spawn(work).join().unwrap()
    });
    fs::set_permissions(root, fs::Permissions::from_mode(0o700)).unwrap();
    result
}

#[test]
fn regress_a_root_that_cannot_be_read_is_an_error_and_no_empty_store() {
    let root = tempfile::tempdir().unwrap();
    let error = with_mode(root.path(), 0o000, || Local::open(root.path()).map(drop)).unwrap_err().to_string();
    assert!(error.contains("cannot read the folder of the store"), "{error}");
}

#[test]
fn regress_a_root_that_could_be_written_before_is_read_only_now() {
    let root = tempfile::tempdir().unwrap();
    drop(Local::open(root.path()).unwrap());
    with_mode(root.path(), 0o500, || {
        let store = Local::open(root.path()).unwrap();
        assert!(store.is_read_only());
        assert!(matches!(store.put_atomic("a", b"text"), Err(StoreError::ReadOnly { .. })));
    });
    // And one that becomes so while it is open.
    let store = Local::open(root.path()).unwrap();
    with_mode(root.path(), 0o500, || {
        assert!(matches!(store.put_atomic("a", b"text"), Err(StoreError::ReadOnly { .. })));
    });
    assert!(!store.is_read_only());
}

#[test]
fn a_root_that_is_gone_is_no_empty_store() {
    let root = tempfile::tempdir().unwrap();
    let store = Local::open(root.path()).unwrap();
    store.put_atomic("folder/a", b"text").unwrap();
    store.check().unwrap();
    let upload = store.create().unwrap();
    let is_gone =
        |result: Result<(), StoreError>| assert!(matches!(result, Err(StoreError::Gone { .. })), "{result:?}");
    for replaced in [false, true] {
        fs::remove_dir_all(root.path()).unwrap();
        if replaced {
            fs::create_dir(root.path()).unwrap();
        }
        is_gone(store.check());
        is_gone(store.open("folder/a").map(drop));
        is_gone(store.list("folder").map(drop));
        is_gone(store.put_atomic("b", b"text"));
        fs::create_dir_all(root.path()).unwrap();
    }
    fs::remove_dir_all(root.path()).unwrap();
    is_gone(upload.commit("folder/a"));
}

#[test]
fn a_folder_that_is_a_link_elsewhere_is_named_as_that() {
    use std::os::unix::fs::{MetadataExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let store = Local::open(folder.path()).unwrap();
    symlink("nowhere", folder.path().join("broken")).unwrap();
    let error = store.put_atomic("broken/key", b"1").unwrap_err().to_string();
    assert!(error.starts_with("broken/key cannot be written: ") && error.contains("a broken link"), "{error}");
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    symlink(other.path(), folder.path().join("linked")).unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    if device(other.path()) == device(folder.path()) {
        return store.put_atomic("linked/key", b"1").unwrap();
    }
    let error = store.put_atomic("linked/key", b"1").unwrap_err();
    assert!(matches!(&error, StoreError::Elsewhere { key } if key == "linked/key"), "{error:?}");
}
