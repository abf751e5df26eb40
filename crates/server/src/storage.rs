//! The store of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store::{Claim, Local, Sharing, Store};

use crate::config::{Config, StoreAt};
use crate::error::ServerError;
use crate::log::Logger;
use crate::upload::DISK_BYTES_LEFT;

/// What can be made again, bundles and decoded blocks, takes this part at most of the room that the
/// disk would have without it.
const FREE_PART: u64 = 8;

/// Bytes that are left free for what cannot be made again: uploads, and what is learned.
const FREE_BYTES: u64 = DISK_BYTES_LEFT + (64 << 20);

/// Whether the store can take so many bytes more of what can be made again, of which it has `held`
/// bytes. Whoever may read can have that made, and must not fill the disk so.
pub(crate) fn has_room(store: &dyn Store, held: u64, bytes: u64) -> bool {
    !store.is_read_only() && store.free_bytes().is_none_or(|free| fits(held, bytes, free))
}

fn fits(held: u64, bytes: u64, free: u64) -> bool {
    let all = held.saturating_add(bytes);
    all <= free.saturating_add(held) / FREE_PART && bytes <= free.saturating_sub(FREE_BYTES)
}

/// An open store. A folder that this server writes is claimed, so that no other server writes it.
pub(crate) struct Storage {
    store: Arc<dyn Store>,
    /// A warning said that the store is gone.
    is_gone: AtomicBool,
    claim: Option<Arc<Claim>>,
}

impl Storage {
    /// Opens the store of a configuration.
    pub fn open(config: &Config) -> Result<Storage, ServerError> {
        let (store, claim): (Arc<dyn Store>, _) = match &config.store {
            StoreAt::Folder(path) => {
                let store = Local::open(path)?;
                let claim = store.claim(config.sharing())?;
                (Arc::new(store), claim)
            }
            StoreAt::Open(store) => (store.clone(), None),
            StoreAt::Later(open) => (open()?, None),
        };
        if let (true, Some(key)) = (store.is_read_only(), &config.timestamp_key) {
            let reason = "a timestamp cannot be signed, since the store is read-only".to_owned();
            return Err(ServerError::TimestampKey { path: key.file.clone(), reason });
        }
        if let (true, StoreAt::Folder(path)) =
            (store.is_read_only() && config.sharing() == Sharing::Alone, &config.store)
        {
            config.log.warning(format_args!(
                "the store is read-only: {} cannot be written, so uploads are refused and what is learned is not saved; \
                 give the server's user the right to write there, or serve with --read-only and --frozen",
                path.display()
            ));
        }
        Ok(Storage { store, is_gone: AtomicBool::new(false), claim: claim.map(Arc::new) })
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The folder is claimed for as long as somebody has this.
    pub fn claim(&self) -> Option<Arc<Claim>> {
        self.claim.clone()
    }

    /// Says once that the store is gone or does not answer, and once that it is back.
    pub fn check(&self, log: &Logger) {
        let gone = self.store.check().err();
        match (&gone, self.is_gone.swap(gone.is_some(), Ordering::Relaxed)) {
            (Some(error), false) if error.is_away() => {
                log.warning(format_args!("{error}; what is cached is served meanwhile"));
            }
            (Some(error), false) => log.warning(error),
            (None, true) => log.info("the store is back"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_made_again_leaves_room_for_what_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let store = Local::open(folder.path()).unwrap();
        let free = store.free_bytes().unwrap();
        assert!(!has_room(&store, 0, free / 4), "of the disk");
        assert!(has_room(&store::Memory::new(), 0, free), "it does not know");
        assert!(fits(0, 100 << 20, 800 << 20) && !fits(0, 101 << 20, 800 << 20));
        assert!(fits(90 << 20, 10 << 20, 710 << 20) && !fits(90 << 20, 11 << 20, 710 << 20), "all together");
        // However small they are, they end before uploads are refused.
        assert!(fits(0, 4096, FREE_BYTES + 4096) && !fits(0, 4096, FREE_BYTES + 4095) && !fits(0, 1, 0));
        const { assert!(FREE_BYTES > DISK_BYTES_LEFT) };
    }
}
