use units::{Rng, SplitMix64};

use super::*;

fn parse(text: &str) -> Result<Definition, String> {
    Definition::parse(Path::new("/etc/access.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn patterns_match_what_they_say() {
    let image = |pattern: &str, name: &str| Pattern::of_images(pattern).unwrap().matches(name);
    for (pattern, name, expected) in [
        ("*", "app:latest", true),
        ("*", "@00ff", true),
        ("*:*", "@00ff", false),
        ("app", "app:v1", true),
        ("app", "app2:v1", false),
        ("app:latest", "app:v1", false),
        ("app-*", "app-x:v1", true),
        ("app-*", "app-:latest", true),
        ("app-*:v*", "app-x:v1", true),
        ("app-*:v*", "app-x:latest", false),
        ("*a*b*", "xaxxb:t", true),
        ("*a*b", "xabx:t", false),
        ("@*", "@00ff", true),
        ("@00*", "@01ff", false),
        ("@*", "app:latest", false),
    ] {
        assert_eq!(image(pattern, name), expected, "{pattern} of {name}");
    }
    for wrong in ["", ":", "a:", ":b", "a:b:c", "a/b", "@", "@xyz", "a b", "ä"] {
        assert!(Pattern::of_images(wrong).is_err(), "{wrong:?}");
    }
    assert!(Pattern::of_volumes("da*").unwrap().matches("data"));
    assert!(Pattern::of_volumes("data:rw").is_err());
}

/// Beside a matcher that tries everything.
#[test]
fn ref_globs_match_as_one_that_tries_everything() {
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
            Some((byte, rest)) => text.first() == Some(byte) && slow(rest, &text[1..]),
        }
    }
    let mut rng = SplitMix64(5);
    let mut word = |letters: &[u8], max| -> String {
        let count = rng.below(max);
        (0..count).map(|_| char::from(letters[rng.below(letters.len() as u64) as usize])).collect()
    };
    for _ in 0..20_000 {
        let (pattern, text) = (word(b"ab*", 7), word(b"ab", 8));
        assert_eq!(glob(&pattern, &text), slow(pattern.as_bytes(), text.as_bytes()), "{pattern} of {text}");
    }
}

#[test]
fn a_file_is_read() {
    let text = r#"
        tokens = "secret/tokens.toml"
        [principal.builder]
        certificate = ["Builder.example.com", "spiffe://example.com/builder"]
        pull = ["*"]
        push = ["app-*"]
        [principal.field]
        "volume:write" = ["reports"]
        "volume:read" = ["maps"]
        stat = true
        [principal.root]
        admin = true
    "#;
    let file = parse(text).unwrap();
    assert_eq!(file.tokens, Path::new("/etc/secret/tokens.toml"));
    let names = |name: &str| vec!["unknown".to_owned(), name.to_owned()];
    for name in ["builder.example.com", "spiffe://example.com/builder"] {
        assert_eq!(file.of_certificate(&names(name)).unwrap().0.name, "builder");
    }
    assert!(file.of_certificate(&names("example.com")).is_none());
    let may = |who: &str, right, name| file.principals[who].may(right, name);
    assert!(may("builder", Right::Pull, "@00") && may("builder", Right::Push, "app-x:latest"));
    assert!(!may("builder", Right::Push, "app:latest") && !may("builder", Right::Stat, ""));
    assert!(may("field", Right::VolumeWrite, "reports") && may("field", Right::VolumeRead, "reports"));
    assert!(may("field", Right::VolumeRead, "maps") && !may("field", Right::VolumeWrite, "maps"));
    assert!(may("field", Right::Stat, "") && !may("field", Right::Pull, "a:b"));
    assert!([Right::Pull, Right::Push, Right::VolumeWrite, Right::Stat].iter().all(|it| may("root", *it, "any:thing")));
    assert!(!file.anonymous.may(Right::Pull, "a:b") && !file.anonymous.lists_any());
    assert_eq!(parse("").unwrap().tokens, Path::new("/etc/tokens.toml"));
}

#[test]
fn faults_name_file_and_line() {
    for (text, line, part) in [
        ("[principal.a]\npull = [\"*\",\n\"a/b\"]\n", 3, "no pattern of images"),
        ("[principal.a]\npull = \"*\"\n", 2, "sequence"),
        ("[principal.a]\nread = []\n", 2, "unknown field"),
        ("[principal.a]\n\"volume:read\" = [\"a:b\"]\n", 2, "no pattern of volumes"),
        ("\n[principal.\"a b\"]\n", 2, "letters"),
        ("[principal.anonymous]\ncertificate = [\"a\"]\n", 2, "anonymous"),
        ("[principal.a]\ncertificate = [\"*.b\"]\n", 2, "written out"),
        ("[principal.a]\ncertificate = [\"x\"]\n[principal.b]\ncertificate = [\"X\"]\n", 4, "already"),
        ("[principal.a\n", 1, ""),
        ("[roles]\n", 1, "unknown field"),
        ("[principal.a]\n[principal.a.limits]\ntag = 1\n", 3, "unknown field"),
        ("[principal.a]\n[principal.a.limits]\ntags = -1\n", 3, "invalid value"),
        ("[principal.a]\n[principal.a.limits]\nbytes_per_second = 10\n", 2, "must be at least 16384"),
        ("[principal.a]\nlimits = { connections = 0 }\n", 2, "limits of a: connections is 0, but must be at least 1"),
    ] {
        let said = parse(text).expect_err(text);
        assert!(said.starts_with(&format!("/etc/access.toml:{line}: ")) && said.contains(part), "{text:?}: {said}");
    }
}

/// An administrator mistypes: every text has an answer.
#[test]
fn fuzz_texts_never_panic() {
    let text = "tokens = \"t\"\n[principal.a]\npull = [\"a-*:v1\", \"@*\"]\n\"volume:read\" = [\"d\"]\nstat = true\n";
    let (mut rng, mut good, mut bad) = (SplitMix64(11), 0, 0);
    for _ in 0..3000 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"[]{}=\"\n,*:@"[rng.below(11) as usize]),
            }
        }
        match parse(&String::from_utf8_lossy(&bytes)) {
            Ok(_) => good += 1,
            Err(_) => bad += 1,
        }
    }
    assert!(good > 0 && bad > 0, "{good} accepted, {bad} refused");
}
