//! Entries of directories on disk as they were when they were listed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::NodeId;
use crate::time::Time;

/// Something on disk as it was when it was listed; its attributes are those of its node.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) path: PathBuf,
    pub(crate) node: NodeId,
    pub(crate) identity: (u64, u64),
    /// When its inode changed last; not known of directories, of which less is trusted then.
    pub(crate) ctime: Option<Time>,
}

impl Listed {
    /// Anything but a directory.
    pub(crate) fn entry(path: &Path, node: NodeId, about: &Metadata) -> Listed {
        let ctime = Time { seconds: about.ctime(), nanoseconds: about.ctime_nsec() as u32 };
        Listed { path: path.into(), node, identity: (about.dev(), about.ino()), ctime: Some(ctime) }
    }

    /// A directory of which all entries are listed: a name that comes or goes changes its time of
    /// modification.
    pub(crate) fn directory(path: &Path, node: NodeId, about: &Metadata) -> Listed {
        Listed { path: path.into(), node, identity: (about.dev(), about.ino()), ctime: None }
    }
}
