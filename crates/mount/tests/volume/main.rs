//! Mounted volumes against a server in this process: names, contents, two devices, and the end of a mount.

mod contents;
mod devices;
mod end;
mod links;
mod names;
mod owners;
mod world;
