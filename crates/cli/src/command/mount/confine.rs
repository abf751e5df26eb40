//! The sandbox of a mount daemon.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use ::sandbox::{Role, Sandbox};
use client::Config;
use connection::Target;

use crate::command::ready::ReadyFile;
use crate::command::sandboxed::folders_of;

/// TCP port of name servers, for answers too long for UDP.
const DNS: u16 = 53;

/// The sandbox for the daemon of a mount of `target`. Makes `folders`, which it writes to, if they
/// are missing.
pub fn sandbox(target: &Target, config: &Config, mut folders: Vec<PathBuf>, ready: &ReadyFile) -> Sandbox {
    let server = match target {
        Target::File(_) => None,
        Target::Remote(remote) => Some(&remote.server),
        Target::Volume(volume) => Some(&volume.server),
        Target::Http(file) => Some(&file.server),
    };
    let sandbox = match (target, server) {
        (Target::File(image), _) => Sandbox::new(Role::LocalMount).read([image]),
        (_, None) => Sandbox::new(Role::LocalMount),
        (_, Some(server)) => {
            let files = config.connection.trust.files(server);
            // Certificates are renewed by other files of the same name.
            let read = folders_of(files.iter().map(PathBuf::as_path));
            let anchor = config.signed.anchor(server);
            if anchor.is_some() {
                folders.extend(config.signed.folder.clone());
            }
            Sandbox::new(Role::RemoteMount).connect([server.port, DNS]).read(read).read(anchor)
        }
    };
    for folder in &folders {
        // A faulty file is reported when it is opened.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    // Which process a thread belongs to that reads, and when it began.
    sandbox.read(["/proc"]).write(folders.into_iter().filter(|folder| folder.is_dir())).create(ready.folder())
}
