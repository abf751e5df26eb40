//! Several holders sign one after another, and a device judges the result.

use serde_json::{Value, json};
use trust::{Kind, Stapled, Verifier};

use super::{NOW, Publisher, key, target};
use crate::{Change, Draft, Lifetimes, PublicKey, Repository, Signed, SigningError, SigningKey};

type Files = Vec<(String, Vec<u8>)>;

impl Publisher {
    fn repository(&self) -> Repository {
        Repository::read(&self.root, &self.files, Lifetimes::default()).expect("read")
    }

    /// Goes on from drafts with these keys.
    fn go_on(&self, files: &Files, keys: &[SigningKey]) -> Result<Signed, SigningError> {
        let mut repository = self.repository();
        repository.take_drafts(files)?;
        repository.sign_or_draft(keys, NOW)
    }

    fn words(&self, files: &Files) -> String {
        self.repository().take_drafts(files).expect("a draft").join("\n")
    }

    /// The root gets these keys, of which two must sign.
    fn share_root(&self, keys: &[PublicKey]) -> Draft {
        let mut repository = self.repository();
        repository.rotate("root", keys, 2).expect("a role");
        draft(repository.sign_or_draft(&self.keys, NOW))
    }

    /// A device that has seen the present names follows the change.
    fn is_followed(&mut self, device: &mut Verifier, change: &Change) {
        self.take(change);
        let mut answer = self.files.clone();
        change.stapled.roots().iter().for_each(|root| answer.push_root(root.clone()));
        device.verify_files(&answer, Some(NOW)).expect("followed");
    }
}

fn draft(signed: Result<Signed, SigningError>) -> Draft {
    match signed.expect("signed") {
        Signed::Draft(draft) => draft,
        Signed::Complete(change) => panic!("in force: {:?}", change.files),
    }
}

fn complete(signed: Result<Signed, SigningError>) -> Change {
    match signed.expect("signed") {
        Signed::Complete(change) => change,
        Signed::Draft(draft) => panic!("missing: {:?}", draft.missing),
    }
}

fn publics(keys: &[&SigningKey]) -> Vec<PublicKey> {
    keys.iter().map(|key| key.public()).collect()
}

/// Role, whether of the root before, and how many are missing.
fn missing(draft: &Draft) -> Vec<(&str, bool, usize)> {
    draft.missing.iter().map(|missing| (missing.role.as_str(), missing.is_before, missing.needed)).collect()
}

fn edited(files: &Files, edit: impl Fn(&mut Value)) -> Files {
    let (role, bytes) = &files[0];
    let mut file: Value = serde_json::from_slice(bytes).expect("JSON");
    edit(&mut file);
    vec![(role.clone(), file.to_string().into_bytes())]
}

fn one(key: SigningKey) -> [SigningKey; 1] {
    [key]
}

/// The same key once more.
fn copy(key: &(SigningKey, String)) -> SigningKey {
    SigningKey::read(&key.1, None).expect("a key")
}

fn holders() -> [(SigningKey, String); 4] {
    [(); 4].map(|()| SigningKey::generate(None).expect("random numbers"))
}

#[test]
fn two_of_three_holders_change_the_root_in_any_order() {
    let [a, b, c, d] = holders();
    let mut publisher = Publisher::new();
    publisher.set("app:1", 1);
    let mut device = Verifier::new(&publisher.root).expect("a root");
    // The old root's key and one of the new: one of two is missing.
    publisher.keys.push(copy(&a));
    let first = publisher.share_root(&publics(&[&a.0, &b.0, &c.0]));
    assert_eq!(missing(&first), [("root", false, 1)]);
    let ids: Vec<_> = first.missing[0].keys.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids, [b.0.public().id(), c.0.public().id()]);
    let mut early = Stapled::default();
    early.push_root(first.files[0].1.clone());
    assert_eq!(device.clone().take_roots(&early).expect_err("too early").kind(), Kind::Signature);
    let words = publisher.words(&first.files);
    assert!(words.contains("root: 2 of 3 keys must sign, and so far 1 of 1"), "{words}");
    assert!(words.contains(&format!("root: new key {}", b.0.public().id())), "{words}");
    let stranger = publisher.go_on(&first.files, &one(key()));
    assert!(matches!(stranger, Err(SigningError::NotNeeded { .. })), "{stranger:?}");
    let change = complete(publisher.go_on(&first.files, &one(copy(&b))));
    publisher.is_followed(&mut device, &change);
    assert_eq!(device.root_version(), 2);
    // Now two of the old and two of the new must sign: a new holder begins.
    publisher.keys = vec![copy(&d)];
    let draft_of_new = publisher.share_root(&publics(&[&b.0, &d.0]));
    assert_eq!(missing(&draft_of_new), [("root", true, 2), ("root", false, 1)]);
    let next = draft(publisher.go_on(&draft_of_new.files, &one(copy(&c))));
    assert_eq!(missing(&next), [("root", true, 1), ("root", false, 1)]);
    let again = publisher.go_on(&next.files, &one(copy(&c)));
    assert!(matches!(again, Err(SigningError::NotNeeded { .. })), "{again:?}");
    let change = complete(publisher.go_on(&next.files, &one(copy(&b))));
    publisher.is_followed(&mut device, &change);
    assert_eq!(device.root_version(), 3);
}

#[test]
fn names_wait_for_the_second_holder_and_for_the_snapshot() {
    let [a, b, ..] = holders();
    let mut publisher = Publisher::new();
    let mut device = Verifier::new(&publisher.root).expect("a root");
    publisher.keys.push(copy(&a));
    // Root and targets come into force together.
    let mut repository = publisher.repository();
    repository.rotate("targets", &publics(&[&a.0, &b.0]), 2).expect("a role");
    let both = draft(repository.sign_or_draft(&publisher.keys, NOW));
    assert_eq!(missing(&both), [("targets", false, 1)]);
    let alone = publisher.go_on(&vec![both.files[0].clone()], &one(copy(&b)));
    assert!(matches!(alone, Err(SigningError::BadRole { .. })), "{alone:?}");
    let reversed: Files = both.files.iter().rev().cloned().collect();
    let waiting = draft(publisher.go_on(&reversed, &one(copy(&b))));
    assert_eq!(missing(&waiting), [("snapshot", false, 1), ("timestamp", false, 1)]);
    let change = complete(publisher.go_on(&waiting.files, &publisher.keys));
    publisher.is_followed(&mut device, &change);
    // A name, by both.
    let mut repository = publisher.repository();
    repository.set_name("app:1", &target(7), None, &publisher.keys).expect("a name");
    let name = draft(repository.sign_or_draft(&publisher.keys, NOW));
    let words = publisher.words(&name.files);
    assert!(words.contains(&format!("new name: app:1 is {}", target(7).id)), "{words}");
    let keys: Vec<SigningKey> = [copy(&b)].into_iter().chain(publisher.keys.drain(1..3)).collect();
    let change = complete(publisher.go_on(&name.files, &keys));
    publisher.is_followed(&mut device, &change);
    assert_eq!(device.verify(&publisher.files, "app:1", Some(NOW)).expect("signed").image, target(7).id);
    let late = publisher.go_on(&name.files, &keys).expect_err("in force already");
    assert!(matches!(late, SigningError::Overtaken { draft: 3, present: 3, .. }), "{late}");
}

#[test]
fn drafts_that_do_not_follow_are_refused() {
    let [a, b, c, _] = holders();
    let mut publisher = Publisher::new();
    publisher.keys.push(copy(&a));
    let first = publisher.share_root(&publics(&[&a.0, &b.0, &c.0]));
    let ahead = edited(&first.files, |file| file["signed"]["version"] = json!(3));
    let ahead = publisher.go_on(&ahead, &one(copy(&b))).expect_err("a version is left out");
    assert!(matches!(ahead, SigningError::Ahead { draft: 3, present: 1, .. }), "{ahead}");
    publisher.change(|repository, _| repository.refresh("root").expect("a role")).expect("signed");
    let late = publisher.go_on(&first.files, &one(copy(&b))).expect_err("overtaken");
    assert!(matches!(late, SigningError::Overtaken { draft: 2, present: 2, .. }), "{late}");
}

#[test]
fn drafts_that_were_tampered_with_are_refused() {
    let [a, b, c, d] = holders();
    let mut publisher = Publisher::new();
    publisher.keys.push(copy(&a));
    let first = publisher.share_root(&publics(&[&a.0, &b.0, &c.0]));
    let refused = |files: &Files| publisher.go_on(files, &one(copy(&b))).expect_err("refused");
    let wrong = |error: &SigningError, what: &str| match error {
        SigningError::BadSignature { what: found, .. } => assert_eq!(*found, what),
        other => panic!("{other}"),
    };
    wrong(&refused(&edited(&first.files, |file| file["signed"]["expires"] = json!("2099-01-01T00:00:00Z"))), "wrong");
    wrong(&refused(&edited(&first.files, |file| file["signatures"][0]["sig"] = json!("é"))), "wrong");
    let foreign = edited(&first.files, |file| file["signatures"][0]["keyid"] = json!(d.0.public().id()));
    wrong(&refused(&foreign), "of none of its keys");
    // Another key under the id of a known one.
    let swapped = edited(&first.files, |file| {
        file["signed"]["keys"][c.0.public().id()] = d.0.public().to_json();
        file["signatures"] = json!([]);
    });
    assert!(matches!(refused(&swapped), SigningError::BadRole { .. }));
    // What has no words of its own is named.
    let other = edited(&first.files, |file| {
        file["signed"]["consistent_snapshot"] = json!(false);
        file["signed"]["roles"]["root"]["note"] = json!("x");
        file["signatures"] = json!([]);
    });
    let words = publisher.words(&other);
    assert!(words.contains("root: the field consistent_snapshot becomes false"), "{words}");
    assert!(words.contains("root: the field note becomes \"x\""), "{words}");
    let no_metadata = refused(&vec![("root".into(), b"{}".to_vec())]);
    assert!(matches!(no_metadata, SigningError::NotMetadata { .. }), "{no_metadata}");
    let not_ours = refused(&vec![("snapshot".into(), publisher.files.file("snapshot").expect("it").to_vec())]);
    assert!(matches!(not_ours, SigningError::BadRole { .. }), "{not_ours}");
}

#[test]
fn a_holder_with_the_root_alone_signs_the_next_root() {
    let [a, b, c, _] = holders();
    let mut publisher = Publisher::new();
    publisher.keys.push(copy(&a));
    let first = publisher.share_root(&publics(&[&a.0, &b.0, &c.0]));
    let mut holder = Repository::read(&publisher.root, &Stapled::default(), Lifetimes::default()).expect("a root");
    holder.take_drafts(&first.files).expect("a draft");
    let change = complete(holder.sign_or_draft(&one(copy(&b)), NOW));
    assert_eq!(change.files.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>(), ["2.root.json"]);
    let mut device = Verifier::new(&publisher.root).expect("a root");
    publisher.is_followed(&mut device, &change);
    assert_eq!(device.root_version(), 2);
}
