//! The strict reader, and the canonical form.

use proptest::prelude::*;
use serde_json::Value;

use crate::json::Json;

fn canonical(text: &str) -> Option<String> {
    let json = Json::parse(text.as_bytes()).ok()?;
    let mut out = Vec::new();
    json.write_canonical(&mut out);
    Some(String::from_utf8(out).expect("text"))
}

#[test]
fn canonical_form_is_that_of_olpc() {
    for (text, expected) in [
        (r#" { "b" : 1 , "a" : [ ] } "#, r#"{"a":[],"b":1}"#),
        (r#"["\u0041\u00e4\ud83d\ude80", "\"\\\/"]"#, r#"["Aä🚀","\"\\/"]"#),
        (r#"["\n\t\u0007"]"#, "[\"\n\t\u{7}\"]"),
        (r#"{"ä":1,"z":2,"Z":3,"":4}"#, r#"{"":4,"Z":3,"z":2,"ä":1}"#),
        ("[true,false,null,0,-1]", "[true,false,null,0,-1]"),
        ("[18446744073709551615,-9223372036854775808]", "[18446744073709551615,-9223372036854775808]"),
    ] {
        assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn what_is_not_strict_is_refused() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(canonical(&deep(16)).is_some());
    let many = format!("[{}0]", "0,".repeat(32_767));
    let keys = format!("{{{}\"\":0}}", (0..16_384).map(|key| format!("\"{key}\":0,")).collect::<String>());
    let deep = [deep(17), deep(100_000), "{\"a\":".repeat(20)];
    for text in [
        "",
        "{",
        "[1.0]",
        "[1e3]",
        "[-0]",
        "[18446744073709551616]",
        "[-9223372036854775809]",
        "[01]",
        "[1,]",
        "[1] x",
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"\\u0061\":2}",
        "{1:2}",
        "[\"\\ud800\"]",
        "[\"\n\"]",
        "[NaN]",
        "nul",
        &many,
        &keys,
        &deep[0],
        &deep[1],
        &deep[2],
    ] {
        assert_eq!(canonical(text), None, "{}", &text[..text.len().min(40)]);
    }
    assert!(Json::parse(b"[\"\xff\"]").is_err());
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[ -~äß€]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[ -~ä]{0,4}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// For text without control characters, canonical form is what `serde_json` writes of sorted
    /// objects.
    #[test]
    fn prop_canonical_form_is_sorted_and_compact(value in values()) {
        let pretty = serde_json::to_string_pretty(&value).expect("JSON");
        prop_assert_eq!(canonical(&pretty), Some(serde_json::to_string(&value).expect("JSON")));
    }
}
