//! The options of the device cache, and which folder they come to.

mod key;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use cache::{Cache, Unreadable};
use connection::Target;
use encryption::StorageKey;

use crate::command::volume::size;
use crate::config::DeviceConfig;
use crate::failure;
use crate::progress::human;

pub use self::key::{VARIABLE as KEY_VARIABLE, is_place as is_key_place, key, variable as key_variable};

/// Variable that names the folder, for commands without `--cache`.
pub const VARIABLE: &str = "RUNNEL_CACHE";

/// Variable that says how much it keeps, for commands without `--cache-size`.
const SIZE_VARIABLE: &str = "RUNNEL_CACHE_SIZE";

/// Stands for no folder, and for no key.
const NONE: &str = "none";

/// The default folder of root.
const SYSTEM: &str = "/var/cache/runnel";

/// Where what was fetched is kept.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Device cache")]
pub struct CacheArgs {
    /// Keep what is fetched in this folder; `none` keeps nothing (also: RUNNEL_CACHE). Images are
    /// kept without this, too, in /var/cache/runnel for root, else in ~/.cache/runnel/device; a
    /// volume only with it, in a folder of its own below
    #[arg(long, value_name = "DIR|none")]
    cache: Option<PathBuf>,

    /// Keep at most SIZE of all images (default: 64m, or a tenth of the free space if that is
    /// less; also: RUNNEL_CACHE_SIZE), and at most SIZE of each volume (default: 256m)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cache_size: Option<u64>,

    /// Encrypt what is kept of images and volumes, and the changes in the folder of --unsent, with
    /// the key in this file: 32 bytes, raw or as hexadecimal digits or base64. `credential:NAME` is
    /// one that systemd gives the service; `none` encrypts nothing (also: RUNNEL_CACHE_KEY)
    #[arg(long, value_name = "FILE|credential:NAME|none")]
    cache_key: Option<PathBuf>,
}

/// The folder of the cache, before anything was looked for there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePlace {
    /// The folder; none if nothing is to be kept, or there is no home for it.
    pub folder: Option<PathBuf>,
    /// Somebody chose it.
    pub is_chosen: bool,
    /// Its limit, if somebody chose one.
    pub bytes: Option<u64>,
    /// What encrypts it, and the unsent changes of volumes.
    pub key: Option<StorageKey>,
}

impl CacheArgs {
    /// The folder and the size that were given on the command line.
    pub fn given(&self) -> (Option<&Path>, Option<u64>) {
        (self.cache.as_deref().filter(|folder| *folder != Path::new(NONE)), self.cache_size)
    }

    /// The key of what is kept.
    ///
    /// # Errors
    /// The configuration or the key is wrong.
    pub fn key(&self) -> anyhow::Result<Option<StorageKey>> {
        key(self.cache_key.as_deref(), DeviceConfig::load()?.cache_key)
    }

    /// The cache for an image: options, then the environment, then the configuration of the device,
    /// then the default. An image on this machine has none.
    ///
    /// # Errors
    /// The configuration is wrong, or there is no current directory.
    pub fn place(&self, target: &Target) -> anyhow::Result<CachePlace> {
        match target {
            Target::Remote(_) | Target::Http(_) => {
                place(self.cache.as_deref(), self.cache_size, self.cache_key.as_deref())
            }
            _ => Ok(CachePlace { folder: None, is_chosen: true, bytes: None, key: self.key()? }),
        }
    }
}

/// The folder of the cache of a command with these options.
///
/// # Errors
/// The configuration or the key is wrong, or there is no current directory.
pub fn place(cache: Option<&Path>, bytes: Option<u64>, key: Option<&Path>) -> anyhow::Result<CachePlace> {
    let variable = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let config = DeviceConfig::load()?;
    // The folder of root is in the way of nobody else.
    let configured = config.cache_folder.filter(|folder| folder == Path::new(NONE) || !is_of_another(folder));
    let chosen = cache.map(Path::to_path_buf).or(variable).or(configured);
    let told = std::env::var(SIZE_VARIABLE).ok().filter(|text| !text.is_empty());
    let told = told.map(|text| size(&text)).transpose();
    let told = told.map_err(|problem| failure::usage(format!("{SIZE_VARIABLE}: {problem}")))?;
    let bytes = bytes.or(told).or(config.cache_bytes);
    let key = self::key(key, config.cache_key)?;
    let is_chosen = chosen.is_some();
    let folder = match chosen {
        Some(none) if none == Path::new(NONE) => None,
        Some(folder) => Some(std::path::absolute(folder)?),
        None => default_folder(rustix::process::geteuid().is_root(), |name| std::env::var_os(name)),
    };
    Ok(CachePlace { folder, is_chosen, bytes, key })
}

/// Whether a folder is there and belongs to another user.
pub fn is_of_another(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|about| about.uid() != rustix::process::geteuid().as_raw())
}

/// The folder that nobody chose. What else lies in `~/.cache/runnel` is none of a mount's business.
fn default_folder(is_root: bool, variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    if is_root {
        return Some(SYSTEM.into());
    }
    // Relative paths are to be ignored, as the XDG Base Directory Specification says.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("runnel/device"))
}

impl CachePlace {
    /// The folder, for who needs one.
    ///
    /// # Errors
    /// There is none.
    pub fn folder(&self) -> anyhow::Result<&Path> {
        let why = match self.is_chosen {
            true => "`none` was chosen",
            false => "neither XDG_CACHE_HOME nor HOME is an absolute path",
        };
        let none = || failure::usage(format!("there is no device cache: {why}\nhint: name a folder: --cache DIR"));
        self.folder.as_deref().ok_or_else(none)
    }

    /// Opens the cache as large as it is, to look at it. A folder that was chosen and is not there
    /// is not made.
    ///
    /// # Errors
    /// There is none, or what the disk says.
    pub fn look(&self) -> anyhow::Result<Cache> {
        let folder = self.folder()?;
        let named = || folder.display().to_string();
        if self.is_chosen {
            std::fs::read_dir(folder).with_context(named)?;
        }
        Cache::open_sealed(folder, Some(u64::MAX), self.key.as_ref()).with_context(named)
    }

    /// Opens the cache, or says why it cannot be used: programs run without it. Whoever chose its
    /// folder is told, too.
    pub fn open(&self) -> (Option<Arc<Cache>>, Option<String>) {
        let Some(folder) = &self.folder else { return (None, None) };
        match self.open_in(folder) {
            Ok(cache) => (Some(Arc::new(cache)), None),
            Err(error) => {
                let problem = format!("{}: {error}", folder.display());
                if self.is_chosen {
                    tell!("warning: no device cache: {problem}");
                }
                (None, Some(problem))
            }
        }
    }

    /// Opens the cache, which must be there for this.
    ///
    /// # Errors
    /// There is none, or what the disk says.
    pub fn open_or_fail(&self) -> anyhow::Result<Arc<Cache>> {
        let folder = self.folder()?;
        Ok(Arc::new(self.open_in(folder).with_context(|| folder.display().to_string())?))
    }

    /// What it cannot read is in its way. It goes, and somebody is told why all is fetched again.
    fn open_in(&self, folder: &Path) -> std::io::Result<Cache> {
        let cache = Cache::open_sealed(folder, self.bytes, self.key.as_ref())?;
        // If it is busy, the next one does this.
        if cache.discard_unreadable().is_ok()
            && let Some(text) = self.discarded(&cache.unreadable())
        {
            tell!("note: {}: {text}", folder.display());
        }
        Ok(cache)
    }

    fn discarded(&self, found: &Unreadable) -> Option<String> {
        let Unreadable { bytes, pinned_bytes, kept_bytes } = *found;
        let why = match &self.key {
            Some(_) => "not encrypted with the key that is given",
            None => "encrypted, and no key is given",
        };
        let mut texts = Vec::new();
        if bytes > 0 {
            texts.push(format!("{} of the device cache are removed: {why}", human(bytes)));
        }
        if pinned_bytes > 0 {
            texts.push(format!("{} of that were pinned, and `runnel pin` fetches them again", human(pinned_bytes)));
        }
        if kept_bytes > 0 {
            texts.push(format!("{} that are pinned cannot be used: {why}", human(kept_bytes)));
        }
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_folder_follows_the_user() {
        let with = |is_root, cache: &str, home: &str| {
            default_folder(is_root, |name| match name {
                "XDG_CACHE_HOME" => Some(cache.into()),
                _ => Some(home.into()),
            })
        };
        assert_eq!(with(true, "/c", "/h"), Some("/var/cache/runnel".into()));
        assert_eq!(with(false, "/c", "/h"), Some("/c/runnel/device".into()));
        for relative in ["c", "", "./c"] {
            assert_eq!(with(false, relative, "/h"), Some("/h/.cache/runnel/device".into()), "{relative:?}");
        }
        assert_eq!(with(false, "", ""), None, "no home");
    }
}
