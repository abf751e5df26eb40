//! Which versions of the other systems a plan is measured with: a rival that is years old flatters
//! us, so the report says.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::image::Makers;
use super::needs::Needs;
use super::newest::Newest;
use crate::process::tool;
use crate::workload::Database;

/// Packages of the guest that deliver trees, or data files.
const GUEST: [&str; 8] =
    ["nfs-kernel-server", "nfs-common", "nbdkit", "nbd-client", "casync", "sshfs", "httpdirfs", "rclone"];

/// Packages of the machine that make images.
const MACHINE: [&str; 3] = ["squashfs-tools", "erofs-utils", "casync"];

/// Names and versions of everything that is not ours and that `needs` names; `guest` is the root of
/// the guest.
pub fn versions(guest: &Path, needs: &Needs, makers: &Makers, kernel: &str) -> anyhow::Result<Vec<String>> {
    let mut found = vec![format!("NFS 4.2, squashfs and EROFS of Linux {kernel}")];
    let installed = Database::read_at(guest)?;
    let wanted = GUEST.iter().filter(|name| needs.guest_packages.contains(**name) && installed.has(name));
    found.extend(lines(&installed, wanted)?);
    match &makers.newest {
        Some(newest) => found.extend(Newest::versions(newest)?),
        None if needs.newest_tools() => {
            let machine = Database::read()?;
            found.extend(lines(&machine, MACHINE.iter().filter(|name| machine.has(name)))?);
        }
        None => {}
    }
    if let Some(converter) = makers.nydus_image.as_ref().filter(|_| needs.nydus()) {
        let output = tool(Command::new(converter).arg("--version"))?;
        let text = String::from_utf8_lossy(&output);
        let version = text.lines().find_map(|line| line.strip_prefix("Version:")).unwrap_or_default();
        found.push(format!("Nydus {}", version.trim()));
    }
    Ok(found)
}

/// A line `NAME VERSION` for each of these packages.
fn lines<'a>(database: &Database, names: impl Iterator<Item = &'a &'a str>) -> anyhow::Result<Vec<String>> {
    let names: BTreeSet<String> = names.map(|name| name.to_string()).collect();
    if names.is_empty() {
        // Asked for none, dpkg tells of all.
        return Ok(Vec::new());
    }
    Ok(database.versions(&names)?.lines().map(str::to_string).collect())
}
