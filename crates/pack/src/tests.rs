//! Tests of the whole way: tree to image and back. A test that needs root or a tool says what it
//! skips and why.

mod archive;
mod base;
mod build;
mod closure;
mod comparison;
mod container;
mod failure;
mod fuzz;
mod prop;
mod recompress;
mod round_trip;
mod same_bytes;
mod stages;
