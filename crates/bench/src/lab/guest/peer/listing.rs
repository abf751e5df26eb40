//! Pages and headers of the web server: index pages as common web servers write them,
//! percent-encoding, dates.
//!
//! An index page is a list of links, one for each file or folder (with a slash at its end). Clients
//! such as httpdirfs and rclone read the names from the links and ask for everything else by HEAD.

use std::fmt::Write;

use crate::lab::report::html::escape;

/// Seconds of a day.
const DAY_SECONDS: u64 = 86_400;

/// Names of months and days of the week in HTTP dates; 1970 began on a Thursday.
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// It is a folder, or a link to one.
    pub folder: bool,
}

/// The index page of the folder at `path`, as it was asked for, with a slash at its end.
pub fn page(path: &str, entries: &[Entry]) -> String {
    let path = escape(path);
    let mut text = format!("<!DOCTYPE html>\n<html><head><title>Index of {path}</title></head><body>\n");
    text.push_str("<a href=\"../\">../</a>\n");
    for entry in entries {
        let name = encode(&entry.name);
        let slash = if entry.folder { "/" } else { "" };
        let _ = writeln!(text, "<a href=\"{name}{slash}\">{name}{slash}</a>");
    }
    text.push_str("</body></html>\n");
    text
}

/// Percent-encodes a name. Its first character is encoded unless it is a letter or digit: older
/// versions of httpdirfs ignore links that begin with anything else but `%`, such as
/// `_collections_abc.py`.
fn encode(name: &[u8]) -> String {
    let mut text = String::new();
    for (index, byte) in name.iter().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || (index > 0 && b"-._~".contains(byte));
        if plain {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The bytes of a percent-encoded text; an incomplete code stands for itself.
pub fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        let digits = bytes.get(index + 1..index + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(code) if *byte == b'%' => {
                decoded.push(code);
                index += 3;
            }
            _ => {
                decoded.push(*byte);
                index += 1;
            }
        }
    }
    decoded
}

/// A date of HTTP from seconds since 1970: `Thu, 01 Jan 1970 00:00:00 GMT`.
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let weekday = WEEKDAYS[(days % 7) as usize];
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{weekday}, {:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT", day + 1, MONTHS[month])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_links_every_entry() {
        let entry = |name: &str, folder| Entry { name: name.as_bytes().to_vec(), folder };
        assert!(!page("/<b>/", &[]).contains("<b>"));
        let text = page("/usr/", &[entry("bin", true), entry("_a b+c.so.1", false), entry("[", false)]);
        assert!(text.starts_with("<!DOCTYPE html>") && text.contains("Index of /usr/"), "{text}");
        for link in ["<a href=\"bin/\">", "<a href=\"%5Fa%20b%2Bc.so.1\">", "<a href=\"%5B\">"] {
            assert!(text.contains(link), "{text}");
        }
    }

    #[test]
    fn names_survive_their_encoding() {
        for name in ["[", "a%b", "_x", "libstdc++.so.6", "ä ö", "-", "..."] {
            assert_eq!(decode(&encode(name.as_bytes())), name.as_bytes(), "{name}");
        }
        assert_eq!(decode("/a%2Fb%zz%+4%4"), b"/a/b%zz%+4%4");
    }

    #[test]
    fn dates_are_those_of_http() {
        for (seconds, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
