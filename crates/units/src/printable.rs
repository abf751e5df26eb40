//! Foreign text, made safe to show.
//!
//! Names in images, messages of servers and paths hold any bytes. Control characters among them
//! move a terminal's cursor or change its title; bidirectional ones change the order in which a
//! reader sees the rest. Both are shown as escapes. Zero-width joiners stay: ordinary words of some
//! scripts need them.

use std::borrow::Cow;
use std::fmt::Write;

/// `bytes` as one line: control and bidirectional characters become `\u` with four hexadecimal
/// digits, line ends `\n` and `\r`, tabs `\t`, and bytes that are not UTF-8 `\x` with two digits.
/// Everything else stays, backslashes too.
///
/// ```
/// assert_eq!(units::printable_line(b"a\x1b[2J\nb"), r"a\u001b[2J\nb");
/// ```
pub fn printable_line(bytes: &[u8]) -> Cow<'_, str> {
    printable(bytes, |_| false)
}

/// As [`printable_line`], but line feeds and tabs stay: for whole messages, which have lines of
/// their own.
///
/// JSON means the same afterwards: it holds such characters only in its strings, where they may be
/// written so.
pub fn printable_text(text: &str) -> Cow<'_, str> {
    printable(text.as_bytes(), |c| matches!(c, '\n' | '\t'))
}

fn printable(bytes: &[u8], kept: fn(char) -> bool) -> Cow<'_, str> {
    let steers = |c: char| steers(c) && !kept(c);
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.contains(steers)
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Writing to a string does not fail.
            let _ = match c {
                c if !steers(c) => out.write_char(c),
                '\n' => out.write_str(r"\n"),
                '\r' => out.write_str(r"\r"),
                '\t' => out.write_str(r"\t"),
                c => write!(out, r"\u{:04x}", u32::from(c)),
            };
        }
        for byte in chunk.invalid() {
            let _ = write!(out, r"\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

/// Whether a terminal or a reader's sense of order would obey the character.
fn steers(c: char) -> bool {
    // C0, DEL and C1; then the marks, separators, overrides and isolates of the bidirectional
    // algorithm.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for code in (0..0x20).chain(0x7f..0xa0) {
            let c = char::from_u32(code).expect("a character");
            let shown = printable_line(c.to_string().as_bytes()).into_owned();
            let expected = match c {
                '\n' => r"\n".to_owned(),
                '\r' => r"\r".to_owned(),
                '\t' => r"\t".to_owned(),
                _ => format!(r"\u{code:04x}"),
            };
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn characters_that_change_the_order_are_escaped() {
        let bidirectional = "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\
                             \u{2066}\u{2067}\u{2068}\u{2069}";
        let shown = printable_line(bidirectional.as_bytes());
        let expected: String = bidirectional.chars().map(|c| format!(r"\u{:04x}", u32::from(c))).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn ordinary_text_stays_and_is_not_copied() {
        for text in ["", r"plain a\b", "é ß 漢字 עברית العربية", "می\u{200c}خواهم", "👩\u{200d}🚀", "\u{a0}"]
        {
            assert!(matches!(printable_line(text.as_bytes()), Cow::Borrowed(shown) if shown == text), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        assert_eq!(printable_line(b"a\xff\x9b31m\xe2\x80z\xc3\xa9"), r"a\xff\x9b31m\xe2\x80zé");
    }

    #[test]
    fn a_message_keeps_its_lines() {
        let message = "no such file: \x1b[2J\r\u{202e}gpj\n\thint: try again";
        assert_eq!(printable_text(message), "no such file: \\u001b[2J\\r\\u202egpj\n\thint: try again");
    }
}
