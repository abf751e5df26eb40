//! What all metadata files have in common: signatures, type, version, expiry.

use crate::digest::{from_hex, short};
use crate::format::SIGNATURES_MAX;
use crate::json::Json;
use crate::key::Label;
use crate::memory::Content;
use crate::refusal::Flaw;
use crate::time::UnixTime;

/// A file whose form is right; who signed it is not checked yet.
pub(crate) struct Metadata<'a> {
    /// The object `signed`.
    pub body: Json<'a>,
    /// Its canonical form, which the signatures sign.
    pub message: Vec<u8>,
    pub signatures: Vec<(Label, [u8; 64])>,
    pub version: u64,
    pub expires: UnixTime,
    /// Tells files with the same version apart.
    pub content: Content,
}

impl<'a> Metadata<'a> {
    /// Reads a file of the type `kind`: `root`, `timestamp`, `snapshot` or `targets`.
    pub fn read(kind: &str, bytes: &'a [u8], bytes_max: usize) -> Result<Metadata<'a>, Flaw> {
        Flaw::limit("bytes", bytes.len(), bytes_max)?;
        let Json::Object(fields) = Json::parse(bytes)? else { return Err(Flaw::field("the file", "an object")) };
        let (mut body, mut signatures) = (None, None);
        for (key, value) in fields {
            match key.as_ref() {
                "signed" => body = Some(value),
                "signatures" => signatures = Some(read_signatures(&value)?),
                _ => {}
            }
        }
        let signatures = signatures.ok_or(Flaw::field("signatures", "an array"))?;
        let body = body.filter(|body| body.object().is_some()).ok_or(Flaw::field("signed", "an object"))?;
        if text(&body, "_type") != Some(kind) {
            return Err(Flaw::field("_type", "the type of this file"));
        }
        if !text(&body, "spec_version").is_some_and(|version| version.starts_with("1.")) {
            return Err(Flaw::field("spec_version", "1.x"));
        }
        let version = positive(&body, "version")?;
        let expires = text(&body, "expires").and_then(UnixTime::parse);
        let expires = expires.ok_or(Flaw::field("expires", "YYYY-MM-DDTHH:MM:SSZ"))?;
        let mut message = Vec::with_capacity(bytes.len());
        body.write_canonical(&mut message);
        let content = short(&message);
        Ok(Metadata { body, message, signatures, version, expires, content })
    }
}

/// The text in the field `key` of an object.
fn text<'j>(body: &'j Json<'_>, key: &str) -> Option<&'j str> {
    body.get(key).and_then(Json::text)
}

/// The integer above 0 in the field `key` of an object.
pub(crate) fn positive(body: &Json<'_>, key: &'static str) -> Result<u64, Flaw> {
    let number = body.get(key).and_then(Json::unsigned).filter(|number| *number > 0);
    number.ok_or(Flaw::field(key, "a positive integer"))
}

/// Signatures of other lengths than Ed25519's are of other keys, or placeholders: they are left
/// out.
fn read_signatures(signatures: &Json<'_>) -> Result<Vec<(Label, [u8; 64])>, Flaw> {
    let signatures = signatures.array().ok_or(Flaw::field("signatures", "an array"))?;
    Flaw::limit("signatures", signatures.len(), SIGNATURES_MAX)?;
    let mut ids = Vec::with_capacity(signatures.len());
    let mut found = Vec::with_capacity(signatures.len());
    for signature in signatures {
        let id = text(signature, "keyid").ok_or(Flaw::field("keyid", "a string"))?;
        let hex = text(signature, "sig").ok_or(Flaw::field("sig", "a string"))?;
        if ids.contains(&id) {
            return Err(Flaw::field("signatures", "of different keys"));
        }
        ids.push(id);
        if let Some(bytes) = from_hex(hex) {
            found.push((short(id.as_bytes()), bytes));
        }
    }
    Ok(found)
}
