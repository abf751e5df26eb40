//! What tells one state of an object from another.

/// A state of an object: of two reads with the same version, both saw the same bytes. It means
/// something only to the store that it comes from, and for the key that it was read of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// For implementations of a store: a text that no other state of the object has.
    pub fn new(text: impl Into<String>) -> Version {
        Version(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
