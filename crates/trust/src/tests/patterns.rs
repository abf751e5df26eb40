//! Which role may speak for a name: patterns, hash prefixes, hash bins, order, and limits.

use serde_json::{Value, json};

use super::publisher::{Files, Publisher, START, key, key_id, sha256, stapled};
use crate::delegation::covers;
use crate::{Kind, UnixTime, Verifier};

#[test]
fn patterns_are_those_of_a_shell() {
    for (pattern, path, expected) in [
        ("app:*", "app:1", true),
        ("app:*", "app:", true),
        ("app:*", "ap:1", false),
        ("*", "app:1", true),
        ("*", "a/b", false),
        ("*/*", "a/b", true),
        ("a?c", "abc", true),
        ("a?c", "a/c", false),
        ("a?c", "ac", false),
        ("*b*b", "abab", true),
        ("*b*c", "abab", false),
        ("a*/b", "axx/b", true),
        ("a*b", "a/b", false),
        ("a*?", "a", false),
        ("", "", true),
        ("", "a", false),
        ("**", "", true),
        ("*a/*b", "xa/yb", true),
        ("*a/*b", "xa/y/b", false),
        ("a?", "a?", true),
        ("a\\*", "a*", false),
    ] {
        assert_eq!(covers(pattern, path), expected, "{pattern} {path}");
    }
    // No pattern takes long.
    assert!(!covers(&"*a".repeat(1000), &"a".repeat(999)));
    assert!(!covers(&"*a".repeat(100), &format!("{}b", "a".repeat(50_000))));
}

fn outcome(files: &Files, name: &str) -> Result<String, Kind> {
    let mut device = Verifier::new(&files["root"]).expect("a root");
    let found = device.verify(&stapled(files), name, Some(UnixTime(START)));
    found.map(|found| found.role).map_err(|refusal| refusal.kind())
}

#[test]
fn the_first_role_in_order_speaks() {
    let mut publisher = Publisher::new();
    publisher.delegate("targets", "one", &["lib:*", "x:*"], &[("lib:1", 1), ("app:1", 9), ("evil:1", 9)]);
    publisher.delegate("targets", "two", &["lib:*", "y:*"], &[("lib:1", 2), ("lib:2", 2), ("y:1", 2)]);
    publisher.delegate("one", "inner", &["*:3", "y:*"], &[("lib:3", 3), ("y:1", 9)]);
    publisher.delegate("inner", "one", &["*"], &[]);
    let check = |publisher: &Publisher, name: &str, expected: Result<&str, Kind>| {
        assert_eq!(outcome(&publisher.files(), name).as_deref().map_err(|kind| *kind), expected, "{name}");
    };
    // The listing must hold every role once; `one` occurs twice, with the same file.
    publisher.delegated.pop();
    for (name, expected) in [
        ("app:1", Ok("targets")),
        ("lib:1", Ok("one")),
        ("lib:2", Ok("two")),
        ("lib:3", Ok("inner")),
        ("y:1", Ok("two")),
        ("evil:1", Err(Kind::NotFound)),
    ] {
        check(&publisher, name, expected);
    }
    publisher.delegated[0].terminating = true;
    check(&publisher, "lib:2", Err(Kind::NotFound));
    check(&publisher, "lib:3", Ok("inner"));
    check(&publisher, "y:1", Ok("two"));
    // A role in front cannot be hidden by leaving its file out.
    let mut files = publisher.files();
    files.remove("one");
    assert_eq!(outcome(&files, "lib:2"), Err(Kind::Missing));
    // Another key than the delegated one.
    let mut wrong = publisher.clone();
    wrong.has_hashes = false;
    let mut files = wrong.files();
    wrong.delegated[0].role.keys = vec!["stranger".to_owned()];
    files.insert("one".into(), wrong.files()["one"].clone());
    assert_eq!(outcome(&files, "lib:1"), Err(Kind::Signature));
}

#[test]
fn cycles_end() {
    let mut publisher = Publisher { has_hashes: false, ..Publisher::new() };
    publisher.delegate("targets", "one", &["*"], &[]);
    publisher.delegate("one", "two", &["*"], &[]);
    let files = publisher.edited(|role, body| {
        if role == "two" {
            let mut back = json!({"keyids": [key_id("one")], "threshold": 1});
            (back["name"], back["paths"], back["terminating"]) = (json!("one"), json!(["*"]), json!(false));
            body["delegations"] = json!({"keys": {key_id("one"): key("one")}, "roles": [back]});
        }
    });
    assert_eq!(outcome(&files, "lib:1"), Err(Kind::NotFound));
}

#[test]
fn at_most_eight_roles_are_asked() {
    for (roles, expected) in [(7, Ok("r6".to_owned())), (8, Err(Kind::Oversized))] {
        let mut publisher = Publisher::new();
        for number in 0..roles {
            let parent = if number == 0 { "targets".to_owned() } else { format!("r{}", number - 1) };
            let names: &[(&str, u64)] = if number + 1 == roles { &[("lib:1", 1)] } else { &[] };
            publisher.delegate(&parent, &format!("r{number}"), &["*"], names);
        }
        assert_eq!(outcome(&publisher.files(), "lib:1"), expected);
    }
}

#[test]
fn hash_prefixes_and_bins_choose_a_role() {
    let digest = sha256(b"lib:1");
    let mut publisher = Publisher { has_hashes: false, ..Publisher::new() };
    publisher.delegate("targets", "one", &["*"], &[("lib:1", 1)]);
    let prefixes = |prefixes: Value| {
        let files = publisher.edited(|role, body| {
            if role == "targets" {
                let delegation = &mut body["delegations"]["roles"][0];
                delegation.as_object_mut().expect("an object").remove("paths");
                delegation["path_hash_prefixes"] = prefixes.clone();
            }
        });
        outcome(&files, "lib:1")
    };
    for length in [0, 1, 7, 64] {
        assert_eq!(prefixes(json!(["zz", digest[..length]])), Ok("one".to_owned()));
    }
    assert_eq!(prefixes(json!([format!("{digest}0")])), Err(Kind::NotFound));
    assert_eq!(prefixes(json!([])), Err(Kind::NotFound));
    assert_eq!(prefixes(json!([1])), Err(Kind::Damaged));
    for bits in [1, 4, 5, 13, 32] {
        let number = u32::from_str_radix(&digest[..8], 16).expect("digits") >> (32 - bits);
        let bin = format!("bin-{number:0digits$x}", digits = (bits as usize).div_ceil(4));
        let mut publisher = publisher.clone();
        publisher.delegated[0].name = bin.clone();
        let files = publisher.edited(|role, body| {
            if role == "targets" {
                let delegations = &mut body["delegations"];
                delegations.as_object_mut().expect("an object").remove("roles");
                delegations["succinct_roles"] = json!({
                    "keyids": [key_id("one")], "threshold": 1, "bit_length": bits, "name_prefix": "bin"
                });
            }
        });
        assert_eq!(outcome(&files, "lib:1"), Ok(bin));
    }
}

#[test]
fn wrong_delegations_are_damaged() {
    let mut publisher = Publisher { has_hashes: false, ..Publisher::new() };
    publisher.delegate("targets", "one", &["*"], &[("lib:1", 1)]);
    for edit in [
        |delegations: &mut Value| delegations["succinct_roles"] = json!({}),
        |delegations: &mut Value| drop(delegations.as_object_mut().and_then(|map| map.remove("roles"))),
        |delegations: &mut Value| delegations["keys"] = json!(1),
        |delegations: &mut Value| delegations["roles"][0]["terminating"] = json!(1),
        |delegations: &mut Value| delegations["roles"][0]["path_hash_prefixes"] = json!([]),
        |delegations: &mut Value| delegations["roles"][0]["name"] = json!("root"),
        |delegations: &mut Value| delegations["roles"][0]["name"] = json!("targets"),
        |delegations: &mut Value| delegations["roles"][0]["name"] = json!("a/b"),
        |delegations: &mut Value| delegations["roles"][0]["name"] = json!("a b"),
        |delegations: &mut Value| delegations["roles"][0]["name"] = json!(""),
        |delegations: &mut Value| delegations["roles"][0]["keyids"] = json!([key_id("one"), key_id("one")]),
    ] {
        let files = publisher.edited(|role, body| {
            if role == "targets" {
                edit(&mut body["delegations"]);
            }
        });
        assert_eq!(outcome(&files, "lib:1"), Err(Kind::Damaged));
        // Names that need no delegation do not read them.
        assert_eq!(outcome(&files, "app:1"), Ok("targets".to_owned()));
    }
}
