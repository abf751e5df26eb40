//! One metadata file: what it says, and the bytes that were signed.

use serde_json::{Map, Value, json};
use trust::UnixTime;

use crate::canonical::canonical;
use crate::error::SigningError;
use crate::key::SigningKey;
use crate::role::Lifetimes;

/// A metadata file: what it says, and the bytes that were signed.
#[derive(Clone, Debug, Default)]
pub(crate) struct File {
    pub body: Value,
    pub bytes: Vec<u8>,
}

/// A signature in a file.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    /// Id of the key.
    pub key: String,
    /// 128 hexadecimal digits.
    pub hex: String,
}

impl File {
    /// Reads the file of a role.
    pub fn read(role: &str, bytes: &[u8]) -> Result<File, SigningError> {
        let bad = |what: String| SigningError::NotMetadata { role: role.into(), what };
        let mut whole: Value = serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
        let body = whole["signed"].take();
        if !body.is_object() || body["version"].as_u64().is_none() {
            return Err(bad("it has no version".into()));
        }
        Ok(File { body, bytes: bytes.to_vec() })
    }

    /// Its signatures, which nobody has checked.
    pub fn signatures(&self, role: &str) -> Result<Vec<Signature>, SigningError> {
        let bad = || SigningError::NotMetadata { role: role.into(), what: "a signature is none".into() };
        let whole: Value = serde_json::from_slice(&self.bytes).map_err(|_| bad())?;
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(bad);
        let one = |entry: &Value| Ok(Signature { key: text(&entry["keyid"])?, hex: text(&entry["sig"])? });
        whole["signatures"].as_array().into_iter().flatten().map(one).collect()
    }

    pub fn version(&self) -> u64 {
        self.body["version"].as_u64().unwrap_or(0)
    }

    /// Makes it the next version, to be signed.
    pub fn advance(&mut self, role: &str, lifetimes: &Lifetimes, now: UnixTime) {
        self.body["version"] = json!(self.version().saturating_add(1));
        let expires = now.0 + i64::from(lifetimes.days(role)) * 86_400;
        self.body["expires"] = json!(format!("{}:00Z", units::date(expires).replace(' ', "T")));
    }

    /// The signature of what it says.
    pub fn signature(&self, key: &SigningKey) -> Signature {
        Signature { key: key.public().id(), hex: key.sign(&canonical(&self.body)) }
    }

    /// Writes it with its signatures.
    pub fn write(&mut self, signatures: &[Signature]) {
        let one = |signature: &Signature| json!({"keyid": signature.key, "sig": signature.hex});
        let signatures: Vec<Value> = signatures.iter().map(one).collect();
        let mut whole = Map::new();
        whole.insert("signatures".into(), signatures.into());
        whole.insert("signed".into(), self.body.clone());
        self.bytes = canonical(&Value::Object(whole));
    }

    /// Signs it as the next version.
    pub fn sign(&mut self, role: &str, keys: &[&SigningKey], lifetimes: &Lifetimes, now: UnixTime) {
        self.advance(role, lifetimes, now);
        let signatures: Vec<Signature> = keys.iter().map(|key| self.signature(key)).collect();
        self.write(&signatures);
    }
}
