//! The kind of disk that a file lies on. It decides the order of prefetching.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What matters of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Its heads move: all is fetched in the order in which it lies on the disk, and the program
    /// waits while files are opened.
    Rotating,
    /// A flash card, an SSD, a network disk: fetched in the order in which it will be touched,
    /// beside the program.
    Other,
}

impl DiskKind {
    /// The kind of the disk that `path` lies on, as the kernel's block layer says;
    /// [`DiskKind::Other`] where it says nothing (network file systems, stacked ones, a container
    /// without /sys).
    pub fn of(path: &Path) -> DiskKind {
        let Ok(metadata) = fs::metadata(path) else { return DiskKind::Other };
        let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let device = format!("/sys/dev/block/{major}:{minor}");
        // A partition has no queue of its own; the disk is the folder above.
        let says = ["queue/rotational", "../queue/rotational"]
            .iter()
            .find_map(|name| fs::read_to_string(Path::new(&device).join(name)).ok());
        match says.as_deref().map(str::trim) {
            Some("1") => DiskKind::Rotating,
            _ => DiskKind::Other,
        }
    }
}
