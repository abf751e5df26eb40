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

    pub fn version(&self) -> u64 {
        self.body["version"].as_u64().unwrap_or(0)
    }

    /// Signs it as the next version.
    pub fn sign(&mut self, role: &str, keys: &[&SigningKey], lifetimes: &Lifetimes, now: UnixTime) {
        self.body["version"] = json!(self.version().saturating_add(1));
        let expires = now.0 + i64::from(lifetimes.days(role)) * 86_400;
        self.body["expires"] = json!(format!("{}:00Z", units::date(expires).replace(' ', "T")));
        let message = canonical(&self.body);
        let signature = |key: &&SigningKey| json!({"keyid": key.public().id(), "sig": key.sign(&message)});
        let signatures: Vec<Value> = keys.iter().map(signature).collect();
        let mut whole = Map::new();
        whole.insert("signatures".into(), signatures.into());
        whole.insert("signed".into(), self.body.clone());
        self.bytes = canonical(&Value::Object(whole));
    }
}
