//! What a tree needs so that a system can start from its image.
//!
//! The image is mounted as it is, and nothing can be made in it: folders on which the system mounts
//! must be there. [`Options::validate`] sees to the rest.

use crate::tree::{Body, Tree};
use crate::{Options, PackError};

/// Where a kernel and an initial file system look for the first program, in their order.
const FIRST_PROGRAMS: [&str; 4] = ["sbin/init", "etc/init", "bin/init", "bin/sh"];

/// Folders on which every system mounts something before its first program can make folders.
const MOUNT_POINTS: [&str; 4] = ["dev", "proc", "sys", "run"];

/// Permission to execute, of anybody.
const EXECUTE: u16 = 0o111;

/// Checks a tree that was asked to be bootable.
///
/// # Errors
/// Names all that it lacks.
pub(crate) fn check(tree: &Tree, options: &Options) -> Result<(), PackError> {
    if !options.bootable {
        return Ok(());
    }
    let mut lacks: Vec<String> = MOUNT_POINTS
        .iter()
        .filter(|path| {
            !tree.find(path.as_bytes()).is_some_and(|node| matches!(tree.node(node).body, Body::Directory(_)))
        })
        .map(|path| format!("the folder /{path}"))
        .collect();
    let is_program = |path: &&str| {
        let node = tree.find(path.as_bytes()).map(|id| tree.node(id));
        node.is_some_and(|node| {
            matches!(node.body, Body::File { size: 1.., .. }) && node.attributes.permissions & EXECUTE != 0
        })
    };
    if !FIRST_PROGRAMS.iter().any(is_program) {
        lacks.push(format!("a first program (/{})", FIRST_PROGRAMS.join(", /")));
    }
    if lacks.is_empty() { Ok(()) } else { Err(PackError::NotBootable { lacks }) }
}
