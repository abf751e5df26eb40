//! The library as programs meet it: C programs linked with it, statically and not, and a real `runnel serve`.

#![allow(unsafe_code)]

mod away;
mod border;
mod examples;
mod linking;
mod support;
