//! The library as programs meet it: C programs linked with it, statically and not, and a real
//! `runnel serve`.

#![allow(unsafe_code)]

mod away;
mod examples;
mod guest;
mod linking;
mod support;
