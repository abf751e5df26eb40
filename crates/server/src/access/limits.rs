//! How much a principal may have and do: `[principal.NAME.limits]` of the access file.

use serde::Deserialize;

/// Least rate of bytes a second: below it a connection would seem to be dead.
const BYTES_PER_SECOND_MIN: u64 = 16 << 10;

/// Limits of all clients of a principal together. What is absent has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// Bytes of images that it was the first to publish and that are in the store.
    pub stored_bytes: Option<u64>,
    /// Tags that it was the first to set and that are in the store.
    pub tags: Option<u64>,
    /// Images that its connections have open.
    pub open_images: Option<u64>,
    /// Connections that have made a request.
    pub connections: Option<u64>,
    /// Requests that are taken up in a second.
    pub requests_per_second: Option<u32>,
    /// Bytes that are sent and received in a second.
    pub bytes_per_second: Option<u64>,
}

impl Limits {
    /// Refuses what would keep a principal from doing anything at all.
    pub fn check(&self) -> Result<(), String> {
        let least = |name: &str, found: Option<u64>, least: u64| match found {
            Some(found) if found < least => Err(format!("{name} is {found}, but must be at least {least}")),
            _ => Ok(()),
        };
        least("open_images", self.open_images, 1)?;
        least("connections", self.connections, 1)?;
        least("requests_per_second", self.requests_per_second.map(u64::from), 1)?;
        least("bytes_per_second", self.bytes_per_second, BYTES_PER_SECOND_MIN)
    }
}
