//! The sandbox of a server.

use std::fs;
use std::path::{Path, PathBuf};

use ::sandbox::{Role, Sandbox};
use server::{Config, TokenFile};

use super::store::Chosen;
use crate::command::ready::ReadyFile;
use crate::command::sandboxed::folders_of;

/// Folder of the journal in a volume.
const JOURNAL: &str = ".runnel";

const DNS_PORT: u16 = 53;

/// The sandbox for a server with this configuration. Makes the folder of the store if it is
/// missing.
pub fn sandbox(config: &Config, store: &Chosen, ready: &ReadyFile) -> Sandbox {
    let (remote, store) = (store.place(), store.folder());
    // A faulty store is reported when it is opened. So are volumes that are not there.
    let _ = fs::create_dir_all(store);
    // One that is served for reading is recovered first, if it was not closed cleanly.
    let (writable, readable): (Vec<_>, Vec<_>) = config
        .volumes
        .iter()
        .partition(|volume| volume.writable || volume.journal.is_some() || volume.folder.join(JOURNAL).is_dir());
    let journals = config.volumes.iter().filter_map(|volume| volume.journal.as_deref());
    let written = [store].into_iter().chain(writable.iter().map(|volume| volume.folder.as_path())).chain(journals);
    let tls = config.tls.iter().flat_map(server::TlsFiles::paths);
    let rules = config.access.rules.as_deref();
    let tokens = rules.and_then(|rules| TokenFile::place(rules).ok());
    let audit = config.access.audit.as_ref().map(|audit| audit.file.as_path());
    let (role, ports) = match remote {
        // Names may be asked for by TCP, too.
        Some(place) => (Role::RemoteServer, [place.ports(), vec![DNS_PORT]].concat()),
        None => (Role::Server, Vec::new()),
    };
    let credentials = remote.map(objects::Place::files).unwrap_or_default();
    Sandbox::new(role)
        .connect(ports)
        // Files of credentials are renewed by other files of the same name.
        .read(folders_of(credentials.iter().map(PathBuf::as_path).filter(|file| file.is_file())))
        .read(credentials.iter().filter(|folder| folder.is_dir()))
        .write(written.filter(|folder| folder.is_dir()))
        .read(readable.iter().map(|volume| &volume.folder))
        .read(links(store))
        // Where it is moved aside, and begun again.
        .write(folders_of(audit).into_iter().filter(|folder| folder.is_dir()))
        // Certificates are renewed by other files of the same name.
        .read(folders_of(tls))
        // So are rules of access and tokens.
        .read(folders_of(rules.into_iter().chain(tokens.as_deref())))
        // The key of a new root takes the place of the old one.
        .read(folders_of(config.timestamp_key.as_ref().map(|key| key.file.as_path())))
        .create(ready.folder())
}

/// Images that an administrator linked into the store lie elsewhere.
fn links(store: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    links.filter_map(|link| fs::canonicalize(link.path()).ok()).filter(|target| target.is_file()).collect()
}
