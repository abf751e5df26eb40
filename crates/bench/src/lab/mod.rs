//! `runnel bench lab`: every claim beside NFS, an SD card and other systems, in one reproducible machine.
//!
//! A guest in QEMU whose clock counts instructions holds the device, the server and a shaped link between two network
//! name spaces, so that results do not depend on the load of the host. [`plan`] says what is measured, [`program`] and
//! [`link`] what with and over what, [`record`] what comes back.

pub mod link;
pub mod plan;
pub mod program;
pub mod record;
