//! Mounted volumes against a server in this process: names, contents, two devices, locks, and the
//! end of a mount.

mod acls;
mod contents;
mod devices;
mod end;
mod links;
mod locks;
mod names;
mod owners;
mod world;
mod xattrs;
