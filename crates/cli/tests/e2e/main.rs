//! The product as a user drives it: child processes of the `runnel` binary on real software.
//!
//! What needs root or /dev/fuse says so and ends early where they are missing.

mod access;
mod attributes;
mod bad_input;
mod cached;
mod collect;
mod continuity;
mod coverage;
mod cpython;
mod crash;
mod devices;
mod formats;
mod guide;
mod hints;
mod images;
mod kept;
mod kernel;
mod launch;
mod launchd;
mod locks;
mod pinned;
mod plans;
mod profiles;
mod record;
mod rootfs;
mod sandbox;
mod service;
mod signed;
mod stores;
mod support;
mod syscalls;
mod trust;
mod upgrade;
mod versions;
mod volume;
mod volume_loss;
