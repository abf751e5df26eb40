//! Real programs under the engine: what they print and how they end must be as without it.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod basic;
mod signals;
mod support;
mod threads;
mod tree;
