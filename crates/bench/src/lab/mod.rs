//! `runnel-bench lab`: every claim beside NFS, an SD card and other systems, in one reproducible
//! machine.
//!
//! A guest in QEMU whose clock counts instructions holds the device, the server and a shaped link
//! between two network name spaces, so that results do not depend on the load of the host. [`plan`]
//! says what is measured, [`program`], [`data`] and [`link`] what with and over what, [`record`]
//! what comes back. [`world`] is what guests are made from, [`machine`] runs one, [`job`] and
//! [`slice`] share a plan among several, [`results`] keeps what they say; [`run`] puts this
//! together.

pub mod compare;
pub mod data;
pub mod guest;
pub mod history;
pub mod job;
pub mod link;
pub mod machine;
pub mod options;
pub mod plan;
pub mod program;
pub mod record;
pub mod report;
pub mod results;
pub mod run;
pub mod slice;
pub mod world;
