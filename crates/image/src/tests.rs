//! Tests of the image, by need: a reference model, golden dumps, hostile bytes, a fuzzer, and the
//! limits.

mod builder;
mod contradiction;
mod fuzz;
mod golden;
mod hostile;
mod model;
mod parts;
mod tree;
mod verification;

use crate::{ImageError, Limits, Metadata};

/// Opens an image, with the chunk hashes even if it does not store them.
fn open(image: &[u8]) -> Result<Metadata, ImageError> {
    let metadata = Metadata::open(&image, &Limits::default())?;
    if metadata.derives_chunk_hashes() {
        metadata.derive_chunk_hashes(&image)?;
    }
    Ok(metadata)
}

fn check(image: &[u8]) -> Result<crate::Report, ImageError> {
    crate::check(&image, &Limits::default(), &mut |_, _| {})
}
