//! Errors: why an image has no EROFS form.

/// A limit of the kernel's format, or of what we spend on it, that the image passes. The image
/// itself is valid: it can be mounted without the kernel's help.
#[derive(Debug, thiserror::Error)]
pub enum ErofsError {
    /// A number is too large.
    #[error("the image cannot be shown as EROFS: {what} is {found}, at most {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The most there may be.
        limit: u64,
        /// What the image has.
        found: u64,
    },
}
