use std::sync::atomic::AtomicBool;

use super::*;
use crate::hint::{self, Answer};
use crate::hinter::{Link, hint_files};

struct Fake {
    mountpoint: PathBuf,
    detached: AtomicBool,
}

impl Controlled for Fake {
    fn status(&self) -> MountStatus {
        MountStatus {
            mountpoint: self.mountpoint.clone(),
            target: "runnel://host/name".into(),
            name: "name".into(),
            image: "00".repeat(32),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            refused: None,
            overlay: None,
            session: client::Counters::default(),
            fuse: FuseCounters { lookup: 3, ..FuseCounters::default() },
            device: Some((0, 77)),
            restarts: 0,
            cache_problem: None,
            volume: None,
        }
    }

    fn hint(&self, files: &[HintedFile]) -> Result<usize, String> {
        match &files.first().and_then(|file| file.path.clone()) {
            Some(path) if path == "/none" => Err("the image has no file /none".into()),
            _ => Ok(files.iter().flat_map(|file| &file.pages).map(|(first, end)| (end - first) as usize).sum()),
        }
    }

    fn detach(&self) -> Result<UnmountReport, MountError> {
        if self.detached.swap(true, Ordering::SeqCst) {
            return Err(MountError::NotMounted { path: self.mountpoint.clone() });
        }
        Ok(UnmountReport { unsent_transactions: 3, ..UnmountReport::default() })
    }
}

#[test]
fn a_mount_answers_until_it_is_gone() {
    let folder = tempfile::tempdir().expect("tempdir");
    let fake = Arc::new(Fake { mountpoint: folder.path().join("mnt"), detached: AtomicBool::new(false) });
    let server = Server::start(fake.clone()).expect("starts");
    let ours = |mounts: Vec<MountStatus>| mounts.into_iter().find(|mount| mount.mountpoint == fake.mountpoint);
    assert_eq!(ours(mounts().expect("listed")), Some(fake.status()));
    assert_eq!(ask_to_unmount(&fake.mountpoint).map(|report| report.unsent_transactions), Some(3));
    assert_eq!(ask_to_unmount(&fake.mountpoint), None, "the second time it fails and says so");
    assert_eq!(ask_to_unmount(&folder.path().join("other")), None);
    let socket = server.name.as_ref().expect("its own").0.clone();
    let unknown: serde_json::Value = ask(&socket, "dance", WAIT).expect("answered");
    assert_eq!(unknown["error"], "unknown request");
    drop(server);
    assert!(!socket.exists());
    assert_eq!(ours(mounts().expect("listed")), None);
}

#[test]
fn hints_come_many_to_a_connection_and_status_is_answered_beside_them() {
    let folder = tempfile::tempdir().expect("tempdir");
    let mountpoint = fs::canonicalize(folder.path()).expect("there");
    let fake = Arc::new(Fake { mountpoint: mountpoint.clone(), detached: AtomicBool::new(false) });
    let server = Server::start(fake.clone()).expect("starts");
    let socket = server.name.as_ref().expect("its own").0.clone();
    let mut link = Link::connect(&socket).expect("connects");
    let mut say = |text: &str| link.ask(&format!("{text}\n")).expect("answered");
    assert_eq!(say(r#"hint [{"path":"/a","pages":[[0,3]]},{"inode":2,"pages":[[7,8]]}]"#), Answer::Hinted(4));
    for (text, what) in [
        (r#"hint [{"path":"/none","pages":[]}]"#, "no file /none"),
        ("hint garbage", "not a hint: expected value"),
        (r#"hint [{"path":"/a","pages":[[0,3]],"more":1}]"#, "unknown field `more`"),
        (r#"hint [{"path":"/a","pages":[[0,-3]]}]"#, "not a hint"),
        ("status", "unknown request"),
    ] {
        let Answer::Error(problem) = say(text) else { panic!("{text} was taken") };
        assert!(problem.contains(what), "{problem}");
    }
    assert_eq!(ask::<MountStatus>(&socket, "status", WAIT), Some(fake.status()), "while the link is open");
    let many = format!("hint [{}]", vec![r#"{"path":"/a","pages":[[0,3]]}"#; 2000].join(","));
    assert_eq!(say(&many), Answer::Hinted(6000));
    let long = format!("hint [{}]", " ".repeat(hint::LINE_BYTES_MAX as usize));
    assert!(matches!(say(&long), Answer::Error(problem) if problem.contains("longer than 65536 bytes")));

    let below = mountpoint.join("sub");
    fs::create_dir(&below).expect("mkdir");
    assert!(hint_files(&below, &[("/a".into(), vec![0..9, 12..13])]).expect("taken"));
    let error = hint_files(&mountpoint, &[("/none".into(), vec![0..1, 2..3])]).expect_err("refused").to_string();
    assert!(error.contains("no file /none"), "{error}");
    assert!(!hint_files(Path::new("/"), &[]).expect("nobody is there"));
    // A connection that is open does not keep the mount from ending.
    let mut link = Link::connect(&socket).expect("connects");
    assert_eq!(link.ask("hint []\n").ok(), Some(Answer::Hinted(0)));
    drop(server);
    assert!(link.ask("hint []\n").is_err());
}

#[test]
fn a_socket_nobody_listens_on_is_removed() {
    let folder = runtime::directory().expect("directory");
    // Above the largest process id Linux gives out.
    let dead = folder.join("mount-4294967295-0.sock");
    let starting = folder.join(format!("mount-{}-99999.sock", std::process::id()));
    for path in [&dead, &starting] {
        // It is there once bound; a test that lists the mounts beside this one may remove the first
        // already.
        drop(UnixListener::bind(path).expect("bind"));
    }
    mounts().expect("listed");
    assert!(!dead.exists());
    assert!(starting.exists(), "its daemon lives and may be about to listen");
    fs::remove_file(starting).expect("removed");
}
