use units::{Rng, SplitMix64};

use super::*;

fn parse(text: &str) -> Result<Definition, String> {
    Definition::parse(Path::new("/etc/access.toml"), text).map_err(|error| error.to_string())
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
