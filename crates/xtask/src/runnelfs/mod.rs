//! `runnelfs`: the kernel module in `kernel/runnelfs`, tried in a virtual machine.
//!
//! The host builds the module, packs trees with everything that an image can hold, in many ways,
//! and starts a guest with all of it in its initial file system. The guest mounts each image and
//! compares it with a manifest of the source; then it mounts mutants. Other guests start a Debian
//! system from an image, or measure reads and starts beside SquashFS and EROFS.

#[cfg(feature = "guests")]
mod applications;
#[cfg(feature = "guests")]
mod boot;
#[cfg(test)]
mod columns;
#[cfg(feature = "guests")]
mod cross;
mod faults;
#[cfg(test)]
mod filters;
mod guest;
#[cfg(test)]
mod hashes;
#[cfg(feature = "guests")]
mod host;
#[cfg(feature = "guests")]
pub mod kernels;
mod manifest;
#[cfg(feature = "guests")]
mod measure;
mod meter;
mod mutate;
mod probe;
#[cfg(feature = "guests")]
mod rivals;
#[cfg(feature = "guests")]
mod roots;
#[cfg(feature = "guests")]
mod sets;
#[cfg(feature = "guests")]
mod start;
#[cfg(feature = "guests")]
mod style;
#[cfg(feature = "guests")]
mod trees;
#[cfg(feature = "guests")]
mod variants;

pub use guest::run as run_guest;
#[cfg(feature = "guests")]
pub use host::run;
pub use meter::touched;
pub use probe::become_program;

/// Says how to get the tests that start guests.
#[cfg(not(feature = "guests"))]
pub fn run(_: &[String]) -> anyhow::Result<()> {
    anyhow::bail!("built without guests; ./x test --runnelfs builds with them")
}
