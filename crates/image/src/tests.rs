//! Tests of the image, by need: a reference model, golden dumps, hostile bytes, a fuzzer, and the limits.

mod builder;
mod fuzz;
mod golden;
mod hostile;
mod model;
mod parts;
mod tree;

use crate::{ImageError, Limits, Metadata};

fn open(image: &[u8]) -> Result<Metadata, ImageError> {
    Metadata::open(&image, &Limits::default())
}

fn check(image: &[u8]) -> Result<crate::Report, ImageError> {
    crate::check(&image, &Limits::default(), &mut |_, _| {})
}
