use super::*;

const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn raw() -> Vec<u8> {
    (0..32).collect()
}

#[test]
fn a_key_is_raw_or_a_line_of_text() {
    let key = StorageKey::parse(&raw()).unwrap();
    for text in [HEX, BASE64, BASE64.trim_end_matches('=')] {
        for end in ["", "\n", "\r\n"] {
            assert_eq!(StorageKey::parse(format!("{text}{end}").as_bytes()), Ok(key.clone()), "{text:?} {end:?}");
        }
    }
    // A raw key may end as a line does.
    let mut line = raw();
    line[31] = b'\n';
    assert!(StorageKey::parse(&line).is_ok());
}

#[test]
fn what_is_no_key_is_refused_with_its_length() {
    let wrong = |bytes: usize| Err(KeyError::Form { bytes });
    let digits = HEX.replace('A', "G");
    let bits = BASE64.replace("8=", "9=");
    for (file, bytes) in [("", 0), ("secret\n", 6), (&HEX[1..], 63), (&digits, 64), (&bits, 44), ("AA==", 4)] {
        assert_eq!(StorageKey::parse(file.as_bytes()), wrong(bytes), "{file:?}");
    }
    assert_eq!(StorageKey::parse(&raw()[1..]), wrong(31));
    assert_eq!(StorageKey::parse(&[7; 32]), Err(KeyError::Uniform));
    assert_eq!(StorageKey::parse("0".repeat(64).as_bytes()), Err(KeyError::Uniform));
}

#[test]
fn sealed_bytes_open_with_their_key_and_identity_only() {
    let key = StorageKey::parse(&raw()).unwrap();
    let other = StorageKey::parse(&raw().into_iter().rev().collect::<Vec<_>>()).unwrap();
    let outbox = key.purpose("outbox");
    for length in [0, 1, 4096] {
        let plain = vec![b'p'; length];
        let sealed = outbox.seal(b"first", &plain);
        assert_eq!(sealed.len(), length + OVERHEAD_BYTES);
        assert_eq!(outbox.open(b"first", &sealed), Some(plain));
        assert_eq!(outbox.open(b"second", &sealed), None);
        assert_eq!(key.purpose("cache").open(b"first", &sealed), None);
        assert_eq!(other.purpose("outbox").open(b"first", &sealed), None);
        assert_ne!(outbox.seal(b"first", b""), outbox.seal(b"first", b""), "each has a nonce of its own");
        for at in 0..sealed.len().min(200) {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(outbox.open(b"first", &damaged), None, "byte {at}");
            assert_eq!(outbox.open(b"first", &sealed[..at]), None, "cut at {at}");
        }
    }
    assert_ne!(key.purpose("outbox").id(), other.purpose("outbox").id());
    assert_ne!(outbox.hash(b"x"), other.purpose("outbox").hash(b"x"));
}

/// Files of today must open in later versions.
#[test]
fn the_form_of_sealed_bytes_is_pinned() {
    let key = StorageKey::parse(&raw()).unwrap().purpose("test");
    let (cipher, nonce) = key.of(&[9; NONCE_BYTES]);
    let mut bytes = b"text".to_vec();
    let tag = cipher.seal_in_place_separate_tag(nonce, Aad::from(b"id"), &mut bytes).unwrap();
    let sealed = [&[9; NONCE_BYTES][..], &bytes, tag.as_ref()].concat();
    assert_eq!(key.open(b"id", &sealed).as_deref(), Some(&b"text"[..]));
    let digest = blake3::hash(&[&sealed[..], &key.id().0, &key.hash(b"")].concat()).to_hex();
    assert_eq!(digest.as_str(), "bd0e4cac7a64022b7d1939baba585d3db8b09553cfe6a38c12967e792eb63be7");
}

#[test]
fn debugging_shows_no_key() {
    let key = StorageKey::parse(&raw()).unwrap();
    assert_eq!(format!("{key:?} {:?}", key.purpose("test")), "StorageKey PurposeKey");
}
