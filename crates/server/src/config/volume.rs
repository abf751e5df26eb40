//! Which folders are served as volumes, and which cannot be.

use std::path::{Path, PathBuf};

use crate::error::ServerError;

/// Volumes of one server, at most; each has a journal of 32 MiB if it may be written.
const VOLUMES_MAX: usize = 256;

/// Bytes of the longest name.
const NAME_BYTES_MAX: usize = 128;

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// What clients call it: letters, digits, `.`, `_` and `-`, the first a letter or digit.
    pub name: String,
    /// Its files.
    pub folder: PathBuf,
    /// Files may be changed.
    pub writable: bool,
    /// Bytes of a data block, a power of two from 512 to 65536.
    pub block_bytes: u32,
    /// Folder of the journal; `.runnel` in the folder itself if there is none.
    pub journal: Option<PathBuf>,
    /// Limit of the sum of all file sizes, bytes.
    pub quota_bytes: Option<u64>,
}

impl VolumeConfig {
    /// A volume for reading, with the defaults.
    pub fn new(name: &str, folder: &Path) -> VolumeConfig {
        VolumeConfig {
            name: name.to_owned(),
            folder: folder.to_owned(),
            writable: false,
            block_bytes: 4096,
            journal: None,
            quota_bytes: None,
        }
    }
}

/// Refuses volumes that cannot be, or that would change each other or the store. `store`: its
/// folder, if it has one.
pub(super) fn check(volumes: &[VolumeConfig], store: Option<&Path>) -> Result<(), ServerError> {
    if volumes.len() > VOLUMES_MAX {
        let (found, max) = (volumes.len(), VOLUMES_MAX);
        return Err(refused(&volumes[max], format!("{found} volumes are too many, {max} at most")));
    }
    let store = store.and_then(|folder| folder.canonicalize().ok());
    let mut folders: Vec<(PathBuf, &VolumeConfig)> = Vec::new();
    for volume in volumes {
        check_one(volume)?;
        let folder = volume.folder.canonicalize();
        let folder = folder.map_err(|error| refused(volume, unreachable(volume, &error)))?;
        if !folder.is_dir() {
            return Err(refused(
                volume,
                format!("{} is not a folder; a volume is one, with files in it", folder.display()),
            ));
        }
        if let Some(store) = &store
            && volume.writable
            && (folder.starts_with(store) || store.starts_with(&folder))
        {
            let text = format!("{} and the store {} lie in each other", folder.display(), store.display());
            return Err(refused(volume, text));
        }
        for (other, with) in &folders {
            if with.name == volume.name {
                return Err(refused(volume, "the name is given twice".to_owned()));
            }
            let nested = folder.starts_with(other) || other.starts_with(&folder);
            if nested && (volume.writable || with.writable) {
                let text = format!("its folder and that of volume {} are the same or lie in each other", with.name);
                return Err(refused(volume, text));
            }
        }
        folders.push((folder, volume));
    }
    Ok(())
}

fn check_one(volume: &VolumeConfig) -> Result<(), ServerError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts = volume.name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !starts || volume.name.len() > NAME_BYTES_MAX || !volume.name.bytes().all(good) {
        let text = "a name has letters, digits, '.', '_' and '-', the first a letter or digit, and at most 128 of them";
        return Err(refused(volume, text.to_owned()));
    }
    if !volume.block_bytes.is_power_of_two() || !wire::format::VOLUME_BLOCK_BYTES.contains(&volume.block_bytes) {
        let text = format!("a block of {} bytes cannot be: a power of two from 512 to 65536", volume.block_bytes);
        return Err(refused(volume, text));
    }
    if !volume.writable && volume.quota_bytes.is_some() {
        return Err(refused(volume, "a quota is of no use to a volume that is read only".to_owned()));
    }
    Ok(())
}

fn refused(volume: &VolumeConfig, reason: String) -> ServerError {
    ServerError::VolumeConfig { name: volume.name.clone(), reason }
}

/// Why the folder of a volume cannot be found, and what to do.
fn unreachable(volume: &VolumeConfig, error: &std::io::Error) -> String {
    let folder = volume.folder.display();
    match error.kind() {
        std::io::ErrorKind::NotFound if volume.folder.as_os_str().as_encoded_bytes().contains(&b':') => {
            format!("the folder {folder} does not exist; behind the last `:` of --volume stands `ro` or `rw`")
        }
        std::io::ErrorKind::NotFound => {
            format!("the folder {folder} does not exist; make it (mkdir -p {folder}), or correct --volume")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!(
                "the folder {folder} cannot be reached: {error}; give the server's user the right to enter the folders above it"
            )
        }
        _ => format!("{folder}: {error}"),
    }
}
