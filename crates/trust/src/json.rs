//! JSON of foreign files, read strictly, and its canonical form.
//!
//! `serde_json` reads the syntax. On top of it, a file is refused that has the same key twice in an
//! object, a number that is not an integer, too many values or too many levels: canonical JSON has
//! no such things, or readers differ in what they make of them.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

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
        let left = Cell::new(VALUES_MAX);
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let parsed = Seed { depth: 0, left: &left }.deserialize(&mut reader);
        parsed
            .and_then(|json| reader.end().map(|()| json))
            .map_err(|error| Flaw::Damaged(Damage::Json(error.to_string())))
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

/// Reads a value at a depth, and counts down how many values the file may still have.
#[derive(Clone, Copy)]
struct Seed<'s> {
    depth: u32,
    left: &'s Cell<u32>,
}

impl Seed<'_> {
    /// Counts one value, key or member; its message has no text of the file.
    fn count<E: Error>(self) -> Result<(), E> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => return Err(E::custom("too many values")),
        }
        Ok(())
    }

    fn inner<E: Error>(self) -> Result<Self, E> {
        if self.depth >= DEPTH_MAX {
            return Err(E::custom("too many levels"));
        }
        Ok(Seed { depth: self.depth + 1, ..self })
    }
}

impl<'a> DeserializeSeed<'a> for Seed<'_> {
    type Value = Json<'a>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Json<'a>, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Seed<'_> {
    type Value = Json<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("integers, strings, arrays and objects")
    }

    fn visit_unit<E: Error>(self) -> Result<Json<'a>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json<'a>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Json<'a>, E> {
        Ok(Json::Unsigned(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Json<'a>, E> {
        Ok(u64::try_from(number).map_or(Json::Negative(number), Json::Unsigned))
    }

    fn visit_f64<E: Error>(self, _number: f64) -> Result<Json<'a>, E> {
        Err(E::custom("a number that is not an integer of 64 bits"))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Json<'a>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json<'a>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<Json<'a>, A::Error> {
        let inner = self.inner()?;
        let mut found = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            found.push(item);
        }
        Ok(Json::Array(found))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut fields: A) -> Result<Json<'a>, A::Error> {
        let inner = self.inner()?;
        let mut found = Vec::new();
        while let Some(key) = fields.next_key_seed(inner)? {
            let Json::Text(key) = key else { return Err(A::Error::custom("a key that is no string")) };
            found.push((key, fields.next_value_seed(inner)?));
        }
        found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        if found.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(A::Error::custom("an object with the same key twice"));
        }
        Ok(Json::Object(found))
    }
}
