//! What `runnel-bench` runs.
//!
//! All drive the product as a user would, through child processes of the `runnel` binary, over a
//! shaped link inside this process ([`link`]). Programs are real ones of Debian ([`workload`]),
//! started the same way from a local folder, from our mount ([`product`]) and from the mounts of
//! other systems ([`peer`]); [`site`] is what these have in common. [`stream`] and [`demo`] put the
//! parts together, [`predictors`] compares predictors without a network; results are rows and
//! tables of `report`. Times are seconds, sizes bytes. The command line fills in
//! [`options::Options`] or [`demo::Options`] and calls `run`.

// The errors of a program are texts for its user, not types that a caller tells apart.
#![allow(clippy::missing_errors_doc)]

pub mod demo;
pub mod history;
pub mod hostile;
pub mod interrupt;
pub mod lab;
pub mod launch;
pub mod link;
pub mod options;
pub mod pack;
pub mod peer;
pub mod predictors;
pub mod process;
pub mod processor;
pub mod product;
pub mod sio;
pub mod site;
pub mod specialise;
pub mod stage;
pub mod stream;
pub mod update;
pub mod workload;
