//! The engines, each as a cache of at most [`LIMIT`] bytes that drops what was put first.
//!
//! None syncs each record: a cache may lose the newest of them, and a sync costs flash more than
//! the record. What each does on its own besides is left on.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cache::{Cache, Kind, Owner};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use redb::{Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

/// What a device cache may hold by default.
pub const LIMIT: u64 = 64 << 20;

/// What is written at once or kept in memory: as much as a log of the device cache.
const PART: u64 = 4 << 20;

/// Memory that an engine may use to read.
const MEMORY: u64 = 8 << 20;

pub const NAMES: [&str; 4] = ["files", "redb", "fjall", "cacache"];

pub type Key = [u8; 32];

pub trait Engine {
    /// Puts a record. It is whole or absent afterwards.
    fn put(&mut self, key: &Key, payload: &[u8]) -> anyhow::Result<()>;
    fn get(&mut self, key: &Key) -> anyhow::Result<Option<Vec<u8>>>;
    /// Finds out which records there are, as a start of an image does.
    fn list(&mut self) -> anyhow::Result<usize>;
}

pub fn open(name: &str, folder: &Path) -> anyhow::Result<Box<dyn Engine>> {
    Ok(match name {
        "files" => Box::new(Files::open(folder)?),
        "redb" => Box::new(Redb::open(folder)?),
        "fjall" => Box::new(Fjall::open(folder)?),
        "cacache" => Box::new(Cacache { folder: folder.join("cacache"), kept: Queue::default() }),
        _ => bail!("no engine {name}"),
    })
}

/// What is there in the order in which it was put, for engines that know no order.
#[derive(Default)]
struct Queue {
    records: VecDeque<(Key, u64)>,
    bytes: u64,
}

impl Queue {
    /// Adds a record; returns those that go for it.
    fn add(&mut self, key: Key, bytes: u64) -> Vec<Key> {
        self.records.push_back((key, bytes));
        self.bytes += bytes;
        let mut gone = Vec::new();
        while self.bytes > LIMIT
            && let Some((key, bytes)) = self.records.pop_front()
        {
            self.bytes -= bytes;
            gone.push(key);
        }
        gone
    }
}

const OWNER: Owner = Owner([7; 32]);

/// The device cache.
struct Files {
    cache: Cache,
    lock: PathBuf,
}

impl Files {
    fn open(folder: &Path) -> anyhow::Result<Files> {
        let folder = folder.join("cache");
        Ok(Files { cache: Cache::open(&folder, Some(LIMIT))?, lock: folder.join("images.lock") })
    }
}

impl Engine for Files {
    fn put(&mut self, key: &Key, payload: &[u8]) -> anyhow::Result<()> {
        let put = || self.cache.put(&OWNER, Kind::Block, &cache::Key(*key), &[0; 4], payload);
        if !put()? {
            // It takes no more in an hour than its limit; another hour begins.
            OpenOptions::new().write(true).open(&self.lock)?.write_all_at(&[0; 8], 8)?;
            anyhow::ensure!(put()?, "the cache takes nothing");
        }
        Ok(())
    }

    fn get(&mut self, key: &Key) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.cache.read(Kind::Block, &cache::Key(*key)))
    }

    fn list(&mut self) -> anyhow::Result<usize> {
        Ok(self.cache.records(&OWNER, Kind::Block).len())
    }
}

const RECORDS: TableDefinition<&Key, &[u8]> = TableDefinition::new("records");
/// Which record was put when.
const ORDER: TableDefinition<u64, (&Key, u64)> = TableDefinition::new("order");

/// A transaction for each record, of which one in [`PART`] bytes is synced.
struct Redb {
    database: redb::Database,
    next: u64,
    bytes: u64,
    unsynced: u64,
}

impl Redb {
    fn open(folder: &Path) -> anyhow::Result<Redb> {
        let database = redb::Database::builder().set_cache_size(MEMORY as usize).create(folder.join("redb"))?;
        let write = database.begin_write()?;
        let (mut next, mut bytes) = (0, 0);
        {
            write.open_table(RECORDS)?;
            for record in write.open_table(ORDER)?.iter()? {
                let (at, record) = record?;
                next = at.value() + 1;
                bytes += record.value().1;
            }
        }
        match next {
            0 => write.commit()?,
            _ => write.abort()?,
        }
        Ok(Redb { database, next, bytes, unsynced: 0 })
    }

    fn write(&mut self, key: &Key, payload: &[u8]) -> Result<(), redb::Error> {
        let mut write = self.database.begin_write()?;
        self.unsynced += payload.len() as u64;
        if self.unsynced < PART {
            write.set_durability(Durability::None)?;
        } else {
            self.unsynced = 0;
        }
        {
            let mut records = write.open_table(RECORDS)?;
            let mut order = write.open_table(ORDER)?;
            records.insert(key, payload)?;
            order.insert(self.next, (key, payload.len() as u64))?;
            self.next += 1;
            self.bytes += payload.len() as u64;
            while self.bytes > LIMIT {
                let Some((_, oldest)) = order.pop_first()? else { break };
                let (key, bytes) = oldest.value();
                records.remove(key)?;
                self.bytes -= bytes;
            }
        }
        write.commit()?;
        Ok(())
    }
}

impl Engine for Redb {
    fn put(&mut self, key: &Key, payload: &[u8]) -> anyhow::Result<()> {
        Ok(self.write(key, payload)?)
    }

    fn get(&mut self, key: &Key) -> anyhow::Result<Option<Vec<u8>>> {
        let read = self.database.begin_read()?.open_table(RECORDS)?;
        Ok(read.get(key)?.map(|found| found.value().to_vec()))
    }

    fn list(&mut self) -> anyhow::Result<usize> {
        // The order has all keys, and is small.
        let order = self.database.begin_read()?.open_table(ORDER)?;
        let listed = order.iter()?.filter_map(Result::ok).filter(|(_, record)| record.value().0 != &[0; 32]).count();
        anyhow::ensure!(listed as u64 == order.len()?, "records that cannot be read");
        Ok(listed)
    }
}

/// Values lie apart from keys, since they are large. The strategy that fjall has for caches (Fifo)
/// takes keys in ascending order only, and panics on hashes.
struct Fjall {
    database: Database,
    records: Keyspace,
    kept: Queue,
}

impl Fjall {
    fn open(folder: &Path) -> anyhow::Result<Fjall> {
        let database = Database::builder(folder.join("fjall")).cache_size(MEMORY).open()?;
        let apart = Some(KvSeparationOptions::default());
        let options = || KeyspaceCreateOptions::default().max_memtable_size(PART).with_kv_separation(apart);
        let records = database.keyspace("records", options)?;
        Ok(Fjall { database, records, kept: Queue::default() })
    }
}

impl Drop for Fjall {
    fn drop(&mut self) {
        let _ = self.database.persist(PersistMode::Buffer);
    }
}

impl Engine for Fjall {
    fn put(&mut self, key: &Key, payload: &[u8]) -> anyhow::Result<()> {
        self.records.insert(key, payload)?;
        for gone in self.kept.add(*key, payload.len() as u64) {
            self.records.remove(gone)?;
        }
        Ok(())
    }

    fn get(&mut self, key: &Key) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.records.get(key)?.map(|found| found.to_vec()))
    }

    fn list(&mut self) -> anyhow::Result<usize> {
        self.records.iter().try_fold(0, |count, record| Ok(count + record.key()?.len() / 32))
    }
}

/// Files named by what they hold, and files with the names of these.
struct Cacache {
    folder: PathBuf,
    kept: Queue,
}

fn name(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Engine for Cacache {
    fn put(&mut self, key: &Key, payload: &[u8]) -> anyhow::Result<()> {
        cacache::write_sync(&self.folder, name(key), payload)?;
        for gone in self.kept.add(*key, payload.len() as u64) {
            let about = cacache::metadata_sync(&self.folder, name(&gone))?.context("what was put is there")?;
            cacache::remove_hash_sync(&self.folder, &about.integrity)?;
            cacache::remove_sync(&self.folder, name(&gone))?;
        }
        Ok(())
    }

    fn get(&mut self, key: &Key) -> anyhow::Result<Option<Vec<u8>>> {
        // It also fails on what is damaged, which it sees by itself.
        Ok(cacache::read_sync(&self.folder, name(key)).ok())
    }

    fn list(&mut self) -> anyhow::Result<usize> {
        Ok(cacache::list_sync(&self.folder).filter(Result::is_ok).count())
    }
}
