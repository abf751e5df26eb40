//! JSON of foreign files, read strictly, and its canonical form.
//!
//! Beside what JSON forbids, a file is refused that has the same key twice in an object, a number
//! that is not an integer of 64 bits, too many values or too many levels: canonical JSON has no
//! such things, or readers differ in what they make of them. The reader is written here to keep
//! device binaries small; tests hold it against `serde_json`.

use std::borrow::Cow;

use crate::format::{DEPTH_MAX, VALUES_MAX};
use crate::refusal::{Damage, Flaw};

/// A value. Objects are sorted by key, as bytes.
#[derive(Debug)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Text(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// Reads one value, which must be all of `bytes` but for white space.
    pub fn parse(bytes: &'a [u8]) -> Result<Json<'a>, Flaw> {
        let damaged = |what, offset| Flaw::Damaged(Damage::Json { what, offset });
        let text = std::str::from_utf8(bytes).map_err(|error| damaged("no UTF-8", error.valid_up_to()))?;
        let mut reader = Reader { text, at: 0, values_left: VALUES_MAX };
        let parsed = reader.value(0).and_then(|json| match reader.peek() {
            None => Ok(json),
            Some(_) => Err("text after the end"),
        });
        parsed.map_err(|what| damaged(what, reader.at))
    }

    /// The value of `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        let fields = self.object()?;
        let index = fields.binary_search_by(|(found, _)| found.as_ref().cmp(key)).ok()?;
        Some(&fields[index].1)
    }

    pub fn object(&self) -> Option<&[(Cow<'a, str>, Json<'a>)]> {
        match self {
            Json::Object(fields) => Some(fields),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<&[Json<'a>]> {
        match self {
            Json::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn unsigned(&self) -> Option<u64> {
        match self {
            Json::Unsigned(number) => Some(*number),
            _ => None,
        }
    }

    /// Appends the canonical form (OLPC): sorted keys, no white space, escapes for `"` and `\`
    /// only.
    pub fn write_canonical(&self, out: &mut Vec<u8>) {
        match self {
            Json::Null => out.extend_from_slice(b"null"),
            Json::Bool(true) => out.extend_from_slice(b"true"),
            Json::Bool(false) => out.extend_from_slice(b"false"),
            Json::Unsigned(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Json::Negative(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Json::Text(text) => write_text(text, out),
            Json::Array(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write_canonical(out);
                }
                out.push(b']');
            }
            Json::Object(fields) => {
                out.push(b'{');
                for (index, (key, value)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_text(key, out);
                    out.push(b':');
                    value.write_canonical(out);
                }
                out.push(b'}');
            }
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Reads values from a text; errors say what is wrong at the reader's position.
struct Reader<'a> {
    text: &'a str,
    /// Offset in bytes of what comes next.
    at: usize,
    values_left: u32,
}

impl<'a> Reader<'a> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.at += 1;
        }
        self.byte()
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes the next byte that is not white space, if it is this one.
    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self, depth: u32) -> Result<Json<'a>, &'static str> {
        self.count()?;
        match self.peek() {
            Some(b'n') => self.word("null", Json::Null),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'"') => Ok(Json::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'[' | b'{') if depth >= DEPTH_MAX => Err("too many levels"),
            Some(b'[') => self.array(depth + 1),
            Some(b'{') => self.object(depth + 1),
            _ => Err("no value"),
        }
    }

    /// Counts a value or a key.
    fn count(&mut self) -> Result<(), &'static str> {
        self.values_left = self.values_left.checked_sub(1).ok_or("too many values")?;
        Ok(())
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, &'static str> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err("no value");
        }
        self.at += word.len();
        Ok(value)
    }

    fn array(&mut self, depth: u32) -> Result<Json<'a>, &'static str> {
        self.at += 1;
        let mut items = Vec::new();
        if self.takes(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth)?);
            if self.takes(b']') {
                return Ok(Json::Array(items));
            }
            if !self.takes(b',') {
                return Err("no ',' or ']' after a value");
            }
        }
    }

    fn object(&mut self, depth: u32) -> Result<Json<'a>, &'static str> {
        self.at += 1;
        let mut fields = Vec::new();
        if self.takes(b'}') {
            return Ok(Json::Object(fields));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err("a key that is no string");
            }
            self.count()?;
            let key = self.string()?;
            if !self.takes(b':') {
                return Err("no ':' after a key");
            }
            fields.push((key, self.value(depth)?));
            if self.takes(b'}') {
                break;
            }
            if !self.takes(b',') {
                return Err("no ',' or '}' after a value");
            }
        }
        sort(&mut fields);
        if fields.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("an object with the same key twice");
        }
        Ok(Json::Object(fields))
    }

    fn number(&mut self) -> Result<Json<'a>, &'static str> {
        const NO_INTEGER: &str = "a number that is not an integer of 64 bits";
        let is_negative = self.takes(b'-');
        let start = self.at;
        let mut number = 0u64;
        while let Some(digit @ b'0'..=b'9') = self.byte() {
            let longer = number.checked_mul(10).and_then(|number| number.checked_add(u64::from(digit - b'0')));
            number = longer.ok_or(NO_INTEGER)?;
            self.at += 1;
        }
        let digits = self.at - start;
        let has_zeros = digits > 1 && self.text.as_bytes()[start] == b'0';
        if digits == 0 || has_zeros || matches!(self.byte(), Some(b'.' | b'e' | b'E')) {
            return Err(NO_INTEGER);
        }
        if !is_negative {
            return Ok(Json::Unsigned(number));
        }
        0i64.checked_sub_unsigned(number).filter(|number| *number < 0).map(Json::Negative).ok_or(NO_INTEGER)
    }

    /// Reads a string, whose first quote is next; it is copied only if it has escapes.
    fn string(&mut self) -> Result<Cow<'a, str>, &'static str> {
        self.at += 1;
        let mut copied: Option<String> = None;
        let mut start = self.at;
        loop {
            match self.byte() {
                Some(b'"') => {
                    let rest = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(match copied {
                        Some(copied) => Cow::Owned(copied + rest),
                        None => Cow::Borrowed(rest),
                    });
                }
                Some(b'\\') => {
                    let copied = copied.get_or_insert_default();
                    copied.push_str(&self.text[start..self.at]);
                    self.at += 1;
                    let character = self.escape()?;
                    copied.push(character);
                    start = self.at;
                }
                Some(byte) if byte >= b' ' => self.at += 1,
                _ => return Err("a string that does not end"),
            }
        }
    }

    /// Reads what follows a backslash.
    fn escape(&mut self) -> Result<char, &'static str> {
        let byte = self.byte();
        self.at += 1;
        match byte {
            Some(byte @ (b'"' | b'\\' | b'/')) => Ok(char::from(byte)),
            Some(b'b') => Ok('\u{8}'),
            Some(b'f') => Ok('\u{c}'),
            Some(b'n') => Ok('\n'),
            Some(b'r') => Ok('\r'),
            Some(b't') => Ok('\t'),
            Some(b'u') => self.unicode(),
            _ => Err(NO_ESCAPE),
        }
    }

    /// Reads four hexadecimal digits; those of the first half of a surrogate pair are followed by
    /// the other.
    fn unicode(&mut self) -> Result<char, &'static str> {
        let mut code = self.four_digits()?;
        if (0xd800..0xdc00).contains(&code) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            let low = self.four_digits()?.checked_sub(0xdc00).filter(|low| *low < 0x400).ok_or(NO_ESCAPE)?;
            code = 0x10000 + ((code - 0xd800) << 10) + low;
        }
        char::from_u32(code).ok_or(NO_ESCAPE)
    }

    fn four_digits(&mut self) -> Result<u32, &'static str> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.byte().and_then(|byte| char::from(byte).to_digit(16)).ok_or(NO_ESCAPE)?;
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }
}

const NO_ESCAPE: &str = "a string with a wrong escape";

/// Sorts fields by key. Most files have them sorted; for others this is heapsort, a twentieth of
/// the code of the standard library's.
fn sort(fields: &mut [(Cow<'_, str>, Json<'_>)]) {
    if fields.is_sorted_by(|one, other| one.0 <= other.0) {
        return;
    }
    let count = fields.len();
    for root in (0..count / 2).rev() {
        sift(fields, root);
    }
    for end in (1..count).rev() {
        fields.swap(0, end);
        sift(&mut fields[..end], 0);
    }
}

/// Moves a field down a heap until none below it is greater.
fn sift(heap: &mut [(Cow<'_, str>, Json<'_>)], mut root: usize) {
    loop {
        let mut greatest = root;
        for child in [2 * root + 1, 2 * root + 2] {
            if child < heap.len() && heap[child].0 > heap[greatest].0 {
                greatest = child;
            }
        }
        if greatest == root {
            return;
        }
        heap.swap(root, greatest);
        root = greatest;
    }
}
