//! Expiry as text.

use proptest::prelude::*;

use crate::UnixTime;

#[test]
fn times_are_read() {
    for (text, expected) in [
        ("1970-01-01T00:00:00Z", Some(0)),
        ("2000-02-29T00:00:00Z", Some(951_782_400)),
        ("2100-02-28T23:59:59Z", Some(4_107_542_399)),
        ("2024-02-29T01:02:03.456789Z", Some(1_709_168_523)),
        ("0000-01-01T00:00:00Z", Some(-62_167_219_200)),
        ("9999-12-31T23:59:59Z", Some(253_402_300_799)),
        ("2100-02-29T00:00:00Z", None),
        ("2024-13-01T00:00:00Z", None),
        ("2024-00-01T00:00:00Z", None),
        ("2024-01-00T00:00:00Z", None),
        ("2024-04-31T00:00:00Z", None),
        ("2024-01-01T24:00:00Z", None),
        ("2024-01-01T00:60:00Z", None),
        ("2024-01-01T00:00:60Z", None),
        ("2024-01-01T00:00:00", None),
        ("2024-01-01 00:00:00Z", None),
        ("2024-01-01T00:00:00+00:00", None),
        ("2024-01-01T00:00:00.5xZ", None),
        ("-024-01-01T00:00:00Z", None),
        ("+024-01-01T00:00:00Z", None),
        ("2024-01-01T00:00:0äZ", None),
        ("", None),
    ] {
        assert_eq!(UnixTime::parse(text).map(|time| time.0), expected, "{text}");
    }
}

proptest! {
    #[test]
    fn prop_reading_reverses_writing(minutes in -1_000_000_000i64 / 60..200_000_000_000 / 60) {
        let time = UnixTime(minutes * 60);
        let text = format!("{}:00Z", units::date(time.0).replace(' ', "T"));
        prop_assert_eq!(UnixTime::parse(&text), Some(time));
    }
}
