//! The strict reader, and the canonical form.

use proptest::prelude::*;
use serde_json::Value;
use units::{Rng, SplitMix64};

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
        assert!(canonical(text).is_none(), "{}", &text[..text.len().min(40)]);
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

/// What `serde_json` makes of a text: objects have no order and the last of equal keys counts.
fn reference(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

/// Random texts of JSON's characters: both readers agree, but for what is not strict.
#[test]
fn fuzz_texts_against_a_general_reader() {
    const PARTS: [&str; 34] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\"a\"",
        "\"b\"",
        "\\",
        "\\\\",
        "\\u00e4",
        "\\ud83d",
        "\\ude80",
        "\\u12",
        "\\n",
        "\\x",
        "0",
        "1",
        "-",
        "12",
        "18446744073709551615",
        "9223372036854775808",
        ".",
        "e",
        "null",
        "true",
        "false",
        " ",
        "\n",
        "\t",
        "ä",
        "\u{7f}",
        "/",
    ];
    let mut rng = SplitMix64(7);
    let (mut accepted, mut strict) = (0, 0);
    for _ in 0..400_000 {
        let mut text = String::new();
        let (open, close) =
            [("", ""), ("[", "]"), ("{\"k\":", "}"), ("\"", "\""), ("[\"", "\"]")][rng.below(5) as usize];
        text.push_str(open);
        (0..rng.below(8)).for_each(|_| text.push_str(PARTS[rng.below(PARTS.len() as u64) as usize]));
        text.push_str(close);
        let ours = Json::parse(text.as_bytes());
        match (&ours, reference(text.as_bytes())) {
            (Ok(json), Some(expected)) => {
                accepted += 1;
                assert_eq!(value(json), expected, "{text}");
            }
            (Ok(_), None) => panic!("only ours accepts {text}"),
            (Err(flaw), Some(_)) => {
                strict += 1;
                let told = format!("{flaw:?}");
                assert!(told.contains("same key") || told.contains("integer"), "{text}: {told}");
            }
            (Err(_), None) => {}
        }
    }
    assert!(accepted > 10_000 && strict > 100, "{accepted} {strict}");
}

fn value(json: &Json<'_>) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(is_true) => Value::from(*is_true),
        Json::Unsigned(number) => Value::from(*number),
        Json::Negative(number) => Value::from(*number),
        Json::Text(text) => Value::from(text.as_ref()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => {
            Value::Object(fields.iter().map(|(key, field)| (key.clone().into_owned(), value(field))).collect())
        }
    }
}
