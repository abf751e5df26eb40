//! The store of a server: a folder, or a place in object storage with a cache on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use objects::{Address, CacheOptions, Place};

use crate::failure;

/// Where root keeps the cache, by default.
const SYSTEM: &str = "/var/cache/runnel";

/// Memory for blocks: the hottest ones, and those that are on their way to devices.
const MEMORY_BYTES: usize = 64 << 20;

/// The cache of a store in object storage.
#[derive(clap::Args)]
#[command(next_help_heading = "Stores in object storage")]
pub struct StoreArgs {
    /// Folder for what was read from a store given as a URL, and for uploads on their way there; of
    /// one server [default: /var/cache/runnel/store-… for root, else in $XDG_CACHE_HOME/runnel]
    #[arg(long, value_name = "DIR")]
    store_cache: Option<PathBuf>,

    /// Size of what was read at most, in MiB [default: 4096]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(256..))]
    store_cache_size: Option<u32>,
}

impl StoreArgs {
    /// MiB by default.
    const SIZE: u32 = 4096;
}

/// The store that was chosen.
pub enum Chosen {
    Folder(PathBuf),
    Remote { place: Place, cache: CacheOptions },
}

impl Chosen {
    /// What the arguments say.
    pub fn of(store: &Path, args: &StoreArgs) -> anyhow::Result<Chosen> {
        // A path that is no text is no URL.
        let address = store.to_str().map_or_else(|| Ok(Address::Folder(store.to_owned())), Address::parse);
        match address.map_err(|error| failure::usage(error.to_string()))? {
            Address::Folder(folder) if args.store_cache.is_some() || args.store_cache_size.is_some() => {
                Err(failure::usage(format!(
                    "--store-cache and --store-cache-size are for stores by URL, and {} is a folder",
                    folder.display()
                )))
            }
            Address::Folder(folder) => Ok(Chosen::Folder(folder)),
            Address::Remote(place) => {
                let folder = match &args.store_cache {
                    Some(folder) => folder.clone(),
                    None => default_folder(&place)?,
                };
                let disk_bytes = u64::from(args.store_cache_size.unwrap_or(StoreArgs::SIZE)) << 20;
                Ok(Chosen::Remote { place, cache: CacheOptions { folder, disk_bytes, memory_bytes: MEMORY_BYTES } })
            }
        }
    }

    /// For the server.
    pub fn at(&self) -> server::StoreAt {
        match self {
            Chosen::Folder(folder) => server::StoreAt::Folder(folder.clone()),
            Chosen::Remote { place, cache } => {
                let (place, cache) = (place.clone(), cache.clone());
                server::StoreAt::Later(Arc::new(move || objects::open(&place, &cache)))
            }
        }
    }

    /// The folder that the server writes.
    pub fn folder(&self) -> &Path {
        match self {
            Chosen::Folder(folder) => folder,
            Chosen::Remote { cache, .. } => &cache.folder,
        }
    }

    /// Where it is in object storage, if it is there.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Chosen::Folder(_) => None,
            Chosen::Remote { place, .. } => Some(place),
        }
    }
}

impl std::fmt::Display for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Chosen::Folder(folder) => write!(f, "{}", folder.display()),
            Chosen::Remote { place, .. } => write!(f, "{place}"),
        }
    }
}

/// A folder for each store, so that servers of two stores do not need one to be named.
fn default_folder(place: &Place) -> anyhow::Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = match rustix::process::geteuid().is_root() {
        true => Some(PathBuf::from(SYSTEM)),
        false => absolute("XDG_CACHE_HOME")
            .or_else(|| Some(absolute("HOME")?.join(".cache")))
            .map(|caches| caches.join("runnel")),
    };
    let name: String = place.to_string().chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '-' }).collect();
    let none = "there is no folder for the cache of the store: neither XDG_CACHE_HOME nor HOME is an absolute path\n\
                hint: name one: --store-cache DIR";
    caches.map(|caches| caches.join(format!("store-{name}"))).ok_or_else(|| failure::usage(none.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(store: &str, cache: Option<&str>) -> anyhow::Result<Chosen> {
        let args = StoreArgs { store_cache: cache.map(PathBuf::from), store_cache_size: None };
        Chosen::of(store.as_ref(), &args)
    }

    #[test]
    fn a_store_is_a_folder_or_a_place_with_a_cache() {
        let folder = chosen("/srv/runnel", None).unwrap();
        assert!(folder.place().is_none() && folder.folder() == Path::new("/srv/runnel"));
        assert_eq!(chosen("file:///srv/runnel", None).unwrap().folder(), Path::new("/srv/runnel"));
        let remote = chosen("s3://images/prod", Some("/cache")).unwrap();
        assert_eq!((remote.to_string().as_str(), remote.folder()), ("s3://images/prod", Path::new("/cache")));
        let named = default_folder(remote.place().unwrap()).unwrap();
        assert!(named.ends_with("store-s3---images-prod"), "{}", named.display());
    }

    #[test]
    fn what_cannot_be_a_store_is_a_mistake_of_usage() {
        for (store, cache, says) in [
            ("/srv/runnel", Some("/cache"), "are for stores by URL"),
            ("ftp://host/x", None, "ftp:// is no store"),
            ("s3://", None, "has no bucket"),
            ("s3://a:b@c/d", None, "credentials and options come from the environment"),
        ] {
            let error = chosen(store, cache).err().unwrap().to_string();
            assert!(error.contains(says), "{store}: {error}");
        }
    }
}
