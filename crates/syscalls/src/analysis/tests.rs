//! Programs compiled when the tests run, with known answers; programs of this machine; damage.

mod build;
mod fuzz;
mod image;
mod machine;
mod policy;
mod sites;
