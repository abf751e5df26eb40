//! What is signed here, as devices see it.

mod drafts;

use trust::{Kind, Stapled, UnixTime, Verifier};
use units::ImageId;

use crate::{Change, Delegation, Lifetimes, Repository, SigningError, SigningKey, Target};

const NOW: UnixTime = UnixTime(1_790_000_000);

fn key() -> SigningKey {
    SigningKey::generate(None).expect("random numbers").0
}

fn target(number: u8) -> Target {
    let digits = format!("{number:064x}");
    Target { id: ImageId([number; 32]), bytes: 4096, sha256: digits.clone(), fs_verity: digits }
}

/// A repository with its keys, in the order of [`crate::TOP_LEVEL`].
struct Publisher {
    keys: Vec<SigningKey>,
    root: Vec<u8>,
    files: Stapled,
}

impl Publisher {
    fn new() -> Publisher {
        let keys: Vec<SigningKey> = (0..4).map(|_| key()).collect();
        let publics: Vec<_> = keys.iter().map(SigningKey::public).collect();
        let repository = Repository::create(publics.try_into().expect("four"), Lifetimes::default());
        let change = repository.sign(&keys, NOW).expect("signed");
        assert_eq!(change.files.last().map(|(file, _)| file.as_str()), Some("timestamp.json"));
        let mut publisher = Publisher { keys, root: Vec::new(), files: Stapled::default() };
        publisher.take(&change);
        publisher
    }

    fn take(&mut self, change: &Change) {
        if let Some(root) = change.stapled.roots().last() {
            self.root = root.clone();
        }
        let old = std::mem::take(&mut self.files);
        change.stapled.files().for_each(|(role, file)| self.files.push(role, file.to_vec()));
        old.files().for_each(|(role, file)| self.files.push(role, file.to_vec()));
    }

    fn change(&mut self, edit: impl FnOnce(&mut Repository, &[SigningKey])) -> Result<Change, SigningError> {
        let mut repository = Repository::read(&self.root, &self.files, Lifetimes::default())?;
        edit(&mut repository, &self.keys);
        let change = repository.sign(&self.keys, NOW)?;
        self.take(&change);
        Ok(change)
    }

    fn set(&mut self, name: &str, number: u8) -> Change {
        self.change(|repository, keys| drop(repository.set_name(name, &target(number), None, keys).expect("a name")))
            .expect("signed")
    }
}

fn open(device: &mut Verifier, publisher: &Publisher, name: &str) -> Result<u8, Kind> {
    let found = device.verify(&publisher.files, name, Some(NOW)).map_err(|refusal| refusal.kind())?;
    let digits: String = found.fs_verity.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digits, target(found.image.0[0]).fs_verity);
    Ok(found.image.0[0])
}

#[test]
fn a_device_takes_what_was_signed() {
    let mut publisher = Publisher::new();
    let mut device = Verifier::new(&publisher.root).expect("a root");
    assert_eq!(open(&mut device, &publisher, "app:1"), Err(Kind::NotFound));
    publisher.set("app:1", 1);
    publisher.set("other:latest", 2);
    assert_eq!(open(&mut device, &publisher, "app:1"), Ok(1));
    assert_eq!(open(&mut device, &publisher, "other:latest"), Ok(2));
    let old = publisher.files.clone();
    publisher.set("app:1", 3);
    assert_eq!(open(&mut device, &publisher, "app:1"), Ok(3));
    publisher.files = old;
    assert_eq!(open(&mut device, &publisher, "app:1"), Err(Kind::Rollback));
}

#[test]
fn a_name_that_is_removed_is_refused() {
    let mut publisher = Publisher::new();
    publisher.set("app:1", 1);
    publisher.change(|repository, _| drop(repository.remove_name("app:1").expect("it is there"))).expect("signed");
    let mut device = Verifier::new(&publisher.root).expect("a root");
    assert_eq!(open(&mut device, &publisher, "app:1"), Err(Kind::NotFound));
    let again = publisher.change(|repository, _| {
        let error = repository.remove_name("app:1").expect_err("it is gone");
        assert!(error.to_string().contains("nobody"), "{error}");
    });
    assert!(again.expect("nothing to sign").files.is_empty());
}

#[test]
fn keys_are_rotated_and_devices_follow() {
    let mut publisher = Publisher::new();
    publisher.set("app:1", 1);
    let mut device = Verifier::new(&publisher.root).expect("a root");
    assert_eq!(open(&mut device, &publisher, "app:1"), Ok(1));
    for role in crate::TOP_LEVEL {
        let new = key();
        let public = new.public();
        publisher.keys.push(new);
        let change = publisher.change(|repository, _| repository.rotate(role, &[public], 1).expect("a role"));
        let mut answer = publisher.files.clone();
        change.expect("signed").stapled.roots().iter().for_each(|root| answer.push_root(root.clone()));
        assert_eq!(device.verify(&answer, "app:1", Some(NOW)).expect(role).image.0[0], 1);
    }
    assert_eq!(device.root_version(), 5);
    // Without the keys of before.
    publisher.keys.drain(..4);
    publisher.set("app:1", 2);
    assert_eq!(open(&mut device, &publisher, "app:1"), Ok(2));
}

#[test]
fn delegated_roles_sign_their_names_and_no_others() {
    let mut publisher = Publisher::new();
    let theirs = key();
    let delegation = Delegation {
        role: "media".into(),
        patterns: vec!["media-*:*".into()],
        keys: vec![theirs.public()],
        threshold: 1,
    };
    publisher.change(|repository, _| repository.delegate(&delegation).expect("a role")).expect("signed");
    let mut owner = std::mem::take(&mut publisher.keys);
    // They have the keys of snapshot and timestamp, too, and neither root nor targets.
    publisher.keys = owner.drain(1..3).chain([theirs]).collect();
    let change = publisher.set("media-player:1", 7);
    let files: Vec<_> = change.files.iter().map(|(file, _)| file.as_str()).collect();
    assert_eq!(files, ["1.media.json", "3.snapshot.json", "timestamp.json"]);
    let mut device = Verifier::new(&publisher.root).expect("a root");
    assert_eq!(open(&mut device, &publisher, "media-player:1"), Ok(7));
    let other = publisher.change(|repository, keys| {
        let error = repository.set_name("app:1", &target(8), Some("media"), keys).expect_err("not theirs");
        assert!(error.to_string().contains("delegates"), "{error}");
        drop(repository.set_name("app:1", &target(8), None, keys));
    });
    assert!(matches!(other, Err(SigningError::TooFewKeys { role, .. }) if role == "targets"));
}

#[test]
fn names_and_roles_that_cannot_be_are_refused() {
    let publisher = Publisher::new();
    let mut repository = Repository::read(&publisher.root, &publisher.files, Lifetimes::default()).expect("read");
    for name in ["app", "app:", ":1", "a/b:1", "../a:1", ""] {
        assert!(matches!(repository.set_name(name, &target(1), None, &publisher.keys), Err(SigningError::BadName(_))));
    }
    let one = |role: &str, patterns: &[&str], keys: usize, threshold| Delegation {
        role: role.into(),
        patterns: patterns.iter().map(|pattern| pattern.to_string()).collect(),
        keys: publisher.keys[..keys].iter().map(SigningKey::public).collect(),
        threshold,
    };
    for bad in [
        one("", &["a*"], 1, 1),
        one("a/b", &["a*"], 1, 1),
        one("targets", &["a*"], 1, 1),
        one("media", &[], 1, 1),
        one("media", &["a b"], 1, 1),
        one("media", &["a*"], 0, 0),
        one("media", &["a*"], 1, 2),
    ] {
        assert!(matches!(repository.delegate(&bad), Err(SigningError::BadRole { .. })), "{bad:?}");
    }
    assert!(repository.rotate("media", &[publisher.keys[0].public()], 1).is_err());
}

#[test]
fn key_files_are_what_openssl_writes() {
    let (made, text) = SigningKey::generate(Some(b"secret")).expect("random numbers");
    assert!(SigningKey::is_encrypted(&text));
    assert_eq!(SigningKey::read(&text, Some(b"secret")).expect("the same").public(), made.public());
    assert!(matches!(SigningKey::read(&text, Some(b"other")), Err(SigningError::Passphrase("wrong"))));
    assert!(matches!(SigningKey::read(&text, None), Err(SigningError::Passphrase("missing"))));
    assert!(matches!(SigningKey::read("nothing", None), Err(SigningError::NotKey(_))));
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("made.key");
    let openssl = |arguments: &[&str]| {
        let output = std::process::Command::new("openssl").args(arguments).current_dir(folder.path()).output();
        let output = output.expect("openssl is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    std::fs::write(&file, &text).expect("written");
    // The last 32 bytes of a public key's DER are the key.
    let public = openssl(&["pkey", "-in", "made.key", "-passin", "pass:secret", "-pubout", "-outform", "DER"]);
    assert_eq!(public[public.len() - 32..], made.public().0);
    openssl(&["genpkey", "-algorithm", "ed25519", "-aes-256-cbc", "-pass", "pass:theirs", "-out", "theirs.key"]);
    let theirs = std::fs::read_to_string(folder.path().join("theirs.key")).expect("written");
    let read = SigningKey::read(&theirs, Some(b"theirs")).expect("read");
    let public = openssl(&["pkey", "-in", "theirs.key", "-passin", "pass:theirs", "-pubout", "-outform", "DER"]);
    assert_eq!(public[public.len() - 32..], read.public().0);
    openssl(&["genpkey", "-algorithm", "x25519", "-out", "other.key"]);
    let other = std::fs::read_to_string(folder.path().join("other.key")).expect("written");
    assert!(matches!(SigningKey::read(&other, None), Err(SigningError::NotKey(_))));
}
