//! The committer: stages a group of transactions, writes it to the journal, applies it, and makes
//! checkpoints.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::apply::Applier;
use crate::disk::{Disk, DiskFile, Kind, is_full};
use crate::format::SECRET_BYTES;
use crate::journal::{self, JOURNAL, Journal};
use crate::lease::Leases;
use crate::locks::Locks;
use crate::path::{OWN_FOLDER, join};
use crate::record::{self, Record};
use crate::recover::{Recovered, recover, tidy_up};
use crate::reserve::Reserve;
use crate::staging::{Limits, Staging};
use crate::table::{TABLE, Table, Tracked, read_whole, volume_id};
use crate::{Committed, FileId, Options, Transaction, VolumeError};

/// Longest journal that is read: what [`Options::journal_bytes`] may be.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// Times that a transaction which is in the journal is tried to be brought to the files before the
/// volume stops.
const HEALS_MAX: usize = 8;

/// Inodes that stay free besides those that a group needs.
const FILES_SPARE: u64 = 8;

/// State that readers and the writer share.
pub(crate) struct Shared {
    pub tree: Arc<dyn Disk>,
    pub leases: Leases,
    pub locks: Locks,
    pub table: Mutex<Table>,
    /// Shared by readers, exclusive while records are applied. Holds why the volume stopped, if it
    /// did.
    pub gate: RwLock<Option<String>>,
    /// Sum of all file sizes; counted only under a quota.
    size_bytes: AtomicU64,
}

impl Shared {
    pub fn new(tree: Arc<dyn Disk>, table: Table, size_bytes: u64) -> Shared {
        Shared {
            tree,
            leases: Leases::default(),
            locks: Locks::default(),
            table: Mutex::new(table),
            gate: RwLock::new(None),
            size_bytes: AtomicU64::new(size_bytes),
        }
    }

    /// Sum of all file sizes, bytes; counted only under a quota.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }
}

/// State of the writer alone.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    own: Arc<dyn Disk>,
    journal: Journal,
    reserve: Reserve,
    options: Options,
    /// Closed with the writer, which ends the lock.
    _lock: Box<dyn DiskFile>,
}

/// A group before it is written.
struct Staged {
    records: Vec<Record>,
    size_change: i64,
    /// Results that hold only if it is written.
    depending: Vec<usize>,
    /// Of each transaction in it its result, and where its records end.
    ends: Vec<(usize, usize)>,
}

/// Why a group was not applied.
enum Unwritten {
    /// The volume stopped, or the journal is full: nothing of the group holds.
    All(VolumeError),
    /// The file system refuses this record, and whatever comes after it is not done.
    From(usize, VolumeError),
}

impl From<VolumeError> for Unwritten {
    fn from(error: VolumeError) -> Unwritten {
        Unwritten::All(error)
    }
}

impl Committer {
    /// Locks the journal folder, recovers, and makes a checkpoint.
    pub fn open(
        tree: Arc<dyn Disk>,
        own: Arc<dyn Disk>,
        options: Options,
    ) -> Result<(Committer, Arc<Shared>, Recovered), VolumeError> {
        let lock = lock(own.as_ref())?;
        let failed = |error| VolumeError::io("making", OWN_FOLDER, error);
        let mut reserve = Reserve::open(tree.as_ref()).map_err(failed)?;
        let mut recovered = Recovered::default();
        let mut table = match Table::load(own.as_ref())? {
            None => Table::new(random()?),
            Some(mut table) => {
                recovered = replay(tree.as_ref(), own.as_ref(), &mut table)?;
                table
            }
        };
        let stat = tree.stat(b"").map_err(|error| VolumeError::io("looking at", b"", error))?;
        if table.get(FileId::TOP).is_none_or(|top| top.identity != stat.identity) {
            let version = table.seen(&stat).version;
            let (identity, stamp) = (stat.identity, stat.stamp);
            table.insert(FileId::TOP, Tracked { identity, version, stamp, changed: table.sequence });
        }
        if table.id == 0 {
            table.id = volume_id(stat.identity);
        }
        if table.device_key == [0; SECRET_BYTES] {
            table.device_key = random()?;
        }
        table.shrink(options.files_max);
        settle(tree.as_ref(), own.as_ref(), &mut table)?;
        let journal = Journal::open(own.as_ref(), options.journal_bytes, table.key, table.sequence)?;
        // Not needed yet; a full disk shows when something is to be written.
        let _ = reserve.ensure(1);
        let size_bytes = if options.quota_bytes.is_some() { count_bytes(tree.as_ref())? } else { 0 };
        let shared = Arc::new(Shared::new(tree, table, size_bytes));
        let committer = Committer { shared: shared.clone(), own, journal, reserve, options, _lock: lock };
        Ok((committer, shared, recovered))
    }

    /// Commits transactions in order, in as few frames as they fit in. One that fails does not
    /// disturb the others.
    pub fn commit(&mut self, transactions: &[&Transaction]) -> Vec<Result<Committed, VolumeError>> {
        let mut results = Vec::with_capacity(transactions.len());
        while results.len() < transactions.len() {
            self.group(&transactions[results.len()..], &mut results);
        }
        results
    }

    /// Commits the first of `transactions`, and those after it that fit in the same frame.
    fn group(&mut self, transactions: &[&Transaction], results: &mut Vec<Result<Committed, VolumeError>>) {
        let staged = self.stage(transactions, results);
        let staged = match staged {
            Ok(staged) => staged,
            Err(error) => {
                results.push(Err(error));
                return;
            }
        };
        if staged.records.iter().all(|record| matches!(record, Record::Known { .. })) {
            return;
        }
        match self.write(&staged) {
            Ok(()) => {}
            Err(Unwritten::All(error)) => {
                let why = error.to_string();
                for index in staged.depending {
                    results[index] = Err(match &error {
                        VolumeError::NoSpace { what } => VolumeError::NoSpace { what },
                        _ => VolumeError::Broken { why: why.clone() },
                    });
                }
            }
            Err(Unwritten::From(index, error)) => {
                // Those after it open the next group.
                results.truncate(index);
                results.push(Err(error));
            }
        }
    }

    /// Stages at least one transaction.
    fn stage(
        &mut self,
        transactions: &[&Transaction],
        results: &mut Vec<Result<Committed, VolumeError>>,
    ) -> Result<Staged, VolumeError> {
        if let Some(why) = self.shared.gate.read().unwrap_or_else(PoisonError::into_inner).clone() {
            return Err(VolumeError::Broken { why });
        }
        let limit = self.options.journal_bytes / 4;
        let limits = Limits { quota_bytes: self.options.quota_bytes, ranges: self.reserve.ranges };
        let shared = self.shared.clone();
        let mut table = shared.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut staging = Staging::new(shared.tree.as_ref(), &shared.leases, &mut table, limits)?;
        let (mut size_change, mut depending, mut ends) = (0, Vec::new(), Vec::new());
        for (index, transaction) in transactions.iter().enumerate() {
            if let Some(repeated) = transaction.writer.map_or(Ok(None), |writer| staging.repeated(writer)).transpose() {
                if repeated.as_ref().is_ok_and(|repeated| !repeated.durable) {
                    depending.push(results.len());
                }
                results.push(repeated.map(|repeated| repeated.committed));
                continue;
            }
            let mut over = false;
            let result = staging.add(transaction, |needs, records| {
                let found = records.iter().map(Record::bytes_max).sum();
                if found > limit {
                    over = true;
                    return Err(VolumeError::TooLarge { what: "bytes of a transaction", found, limit });
                }
                if needs.size_change > 0
                    && let Some(quota) = self.options.quota_bytes
                    && self.shared.size_bytes().saturating_add_signed(needs.size_change) > quota
                {
                    return Err(VolumeError::OverQuota { quota_bytes: quota });
                }
                if needs.files > 0 {
                    let space =
                        shared.tree.space().map_err(|error| VolumeError::io("asking for room in", b"", error))?;
                    if space.files < needs.files + FILES_SPARE {
                        return Err(VolumeError::NoSpace { what: "the disk has no inodes left" });
                    }
                }
                let kept = self.reserve.ensure(needs.bytes);
                // What the group needs together may be more than what each of them needs.
                over = index > 0 && matches!(kept, Err(VolumeError::NoSpace { .. }));
                kept
            });
            let waits = over || matches!(result, Err(VolumeError::Busy { .. }));
            if waits && index > 0 {
                // It opens the next group: there what it reads of this one is on the disk.
                break;
            }
            size_change = staging.needs().size_change;
            if result.is_ok() {
                depending.push(results.len());
                ends.push((results.len(), staging.records().len()));
            }
            results.push(result);
        }
        Ok(Staged { records: staging.into_records(), size_change, depending, ends })
    }

    /// Journal, then apply.
    fn write(&mut self, staged: &Staged) -> Result<(), Unwritten> {
        let Staged { records, size_change, .. } = staged;
        let mut payload = Vec::new();
        record::encode(records, &mut payload);
        if !self.journal.fits(payload.len()) {
            self.checkpoint()?;
        }
        if let Err(error) = self.journal.append(&payload, records.len() as u32) {
            return Err(self.stop(format!("the journal could not be written: {error}")).into());
        }
        drop(payload);
        let shared = self.shared.clone();
        let mut gate = shared.gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut table = shared.table.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = self.journal.sequence;
        let mut applier = Applier::new(shared.tree.as_ref());
        let applied = applier.apply(records, sequence, &mut table, &mut || self.reserve.release());
        drop(applier);
        let applied = match applied {
            Err((index, error)) if is_refusal(&error) => {
                drop((gate, table));
                return Err(self.take_back(staged, index, error));
            }
            other => other.map_err(|(_, error)| error),
        };
        let size_bytes = shared.size_bytes().saturating_add_signed(*size_change);
        shared.size_bytes.store(size_bytes, Ordering::Relaxed);
        // Somebody else may have moved or removed a file while this was on its way, or the disk
        // failed for once. The transactions are in the journal: recovery brings the files there
        // from any state. Whoever works in the folder beside the server may be in its way once
        // more.
        let healed = applied.or_else(|error| {
            let tries = (1..HEALS_MAX).map(|_| self.heal(&mut table)).find(Result::is_ok);
            tries.unwrap_or_else(|| self.heal(&mut table)).map_err(|second| (error, second))
        });
        healed.map_err(|(error, second)| {
            let why = format!("a transaction could not be applied: {error}; nor recovered: {second}");
            *gate = Some(why.clone());
            VolumeError::Broken { why }.into()
        })
    }

    /// The file system refuses a record: of the group, of which nobody was told yet, the journal
    /// keeps the transactions before. They are applied, those after it are not, and of the refused
    /// one a part may be.
    fn take_back(&mut self, staged: &Staged, index: usize, source: io::Error) -> Unwritten {
        let after = staged.ends.iter().position(|(_, end)| index < *end);
        let Some((after, result)) = after.map(|after| (after, staged.ends[after].0)) else {
            return self.stop(format!("a record of no transaction could not be applied: {source}")).into();
        };
        let kept = &staged.records[..after.checked_sub(1).map_or(0, |before| staged.ends[before].1)];
        let mut payload = Vec::new();
        record::encode(kept, &mut payload);
        if let Err(second) = self.journal.replace(&payload, kept.len() as u32) {
            let why = format!("a transaction could not be applied: {source}; nor taken out of the journal: {second}");
            return self.stop(why).into();
        }
        // A recovery would bring files back to where the refused transaction took them from.
        // Without room for that they wait for the next checkpoint.
        if let Err(error @ VolumeError::Broken { .. }) = self.checkpoint() {
            return error.into();
        }
        if self.options.quota_bytes.is_some() {
            // The part that is applied may be of any size.
            match count_bytes(self.shared.tree.as_ref()) {
                Ok(bytes) => self.shared.size_bytes.store(bytes, Ordering::Relaxed),
                Err(error) => return self.stop(format!("the files could not be counted: {error}")).into(),
            }
        }
        Unwritten::From(result, VolumeError::Refused { source })
    }

    /// Recovers while readers wait.
    fn heal(&mut self, table: &mut Table) -> Result<(), VolumeError> {
        self.reserve.release().map_err(|error| VolumeError::io("releasing", b".runnel/reserve", error))?;
        replay(self.shared.tree.as_ref(), self.own.as_ref(), table)?;
        settle(self.shared.tree.as_ref(), self.own.as_ref(), table)?;
        self.journal.restart(table.key);
        Ok(())
    }

    /// Brings all files to stable storage and begins the journal anew.
    pub fn checkpoint(&mut self) -> Result<(), VolumeError> {
        if let Some(why) = self.shared.gate.read().unwrap_or_else(PoisonError::into_inner).clone() {
            return Err(VolumeError::Broken { why });
        }
        if self.journal.is_empty() {
            return Ok(());
        }
        let key = random()?;
        if let Err(error) = self.shared.tree.sync_all() {
            // What could not be written may be lost from the cache too; only the journal has it
            // now.
            return Err(self.stop(format!("the files could not be synced: {error}")));
        }
        let table = {
            let mut table = self.shared.table.lock().unwrap_or_else(PoisonError::into_inner);
            table.shrink(self.options.files_max);
            let mut next = table.clone();
            (next.key, next.sequence) = (key, self.journal.sequence);
            next
        };
        let mut stored = table.store(self.own.as_ref());
        if stored.as_ref().is_err_and(is_full) {
            stored = self.reserve.release().and_then(|()| table.store(self.own.as_ref()));
        }
        match stored {
            Ok(()) => {
                let mut shared = self.shared.table.lock().unwrap_or_else(PoisonError::into_inner);
                (shared.key, shared.sequence) = (key, table.sequence);
                self.journal.restart(key);
                Ok(())
            }
            // The old table is still there, and the journal goes with it.
            Err(error) if is_full(&error) => Err(VolumeError::NoSpace { what: "the disk of the journal is full" }),
            Err(error) => Err(self.stop(format!("the table could not be written: {error}"))),
        }
    }

    /// Bytes of the journal in use.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.bytes()
    }

    fn stop(&self, why: String) -> VolumeError {
        *self.shared.gate.write().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
        VolumeError::Broken { why }
    }
}

/// Whether the file system said no, and will say it again. What may be because somebody else works
/// in the folder, or because the disk failed for once, a recovery mends; so what we found
/// ourselves, which has no number.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    let refuses = matches!(
        error.kind(),
        PermissionDenied
            | Unsupported
            | TooManyLinks
            | FileTooLarge
            | InvalidInput
            | InvalidFilename
            | ResourceBusy
            | ExecutableFileBusy
    );
    refuses && error.raw_os_error().is_some()
}

/// Brings files and table to what the journal says.
fn replay(tree: &dyn Disk, own: &dyn Disk, table: &mut Table) -> Result<Recovered, VolumeError> {
    let scan = scan(own, table)?;
    let mut recovered = Recovered::default();
    if scan.frames > 0 {
        journal::secure(own, scan.bytes).map_err(|error| VolumeError::io("writing", JOURNAL, error))?;
        recovered = recover(tree, &scan.records, table.sequence + scan.frames, table)?;
        table.sequence += scan.frames;
    }
    (recovered.groups, recovered.torn) = (scan.frames, scan.torn);
    Ok(recovered)
}

/// Makes the checkpoint after [`replay`].
fn settle(tree: &dyn Disk, own: &dyn Disk, table: &mut Table) -> Result<(), VolumeError> {
    tree.sync_all().map_err(|error| VolumeError::io("syncing", b"", error))?;
    tidy_up(tree, table).map_err(|error| VolumeError::io("tidying up", OWN_FOLDER, error))?;
    table.key = random()?;
    table.store(own).map_err(|error| VolumeError::io("writing", TABLE, error))
}

/// Reads the journal that belongs to a table.
pub(crate) fn scan(own: &dyn Disk, table: &Table) -> Result<journal::Scan, VolumeError> {
    let failed = |error| VolumeError::io("reading", JOURNAL, error);
    match own.open(JOURNAL, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(journal::Scan::default()),
        other => {
            let bytes = read_whole(other.map_err(failed)?.as_ref(), JOURNAL_BYTES_MAX).map_err(failed)?;
            journal::scan(&bytes, &table.key, table.sequence)
        }
    }
}

/// Longest process number, with its line end.
const HOLDER_BYTES_MAX: usize = 16;

fn lock(own: &dyn Disk) -> Result<Box<dyn DiskFile>, VolumeError> {
    let failed = |error| VolumeError::io("opening", b"lock", error);
    let file = match own.open(b"lock", true) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match own.create(b"lock", 0o600) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => own.open(b"lock", true).map_err(failed)?,
            other => other.map_err(failed)?,
        },
        other => other.map_err(failed)?,
    };
    match file.lock() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            // Only for the message; whoever has the lock may be about to write its number.
            let mut holder = [0; HOLDER_BYTES_MAX];
            let bytes = file.read_at(0, &mut holder).unwrap_or(0);
            let holder = std::str::from_utf8(&holder[..bytes]).ok().and_then(|text| text.trim().parse().ok());
            Err(VolumeError::InUse { holder })
        }
        Err(error) => Err(VolumeError::io("locking", b"lock", error)),
        Ok(()) => Ok(file),
    }
}

/// Random bytes, for a key or a number.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], VolumeError> {
    let mut bytes = [0; N];
    let failed = |error: getrandom::Error| VolumeError::io("drawing a key for", JOURNAL, io::Error::other(error));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Sum of the sizes of all regular files.
fn count_bytes(tree: &dyn Disk) -> Result<u64, VolumeError> {
    let mut total = 0u64;
    let mut linked = HashSet::new();
    let mut open = BTreeSet::from([Vec::new()]);
    while let Some(folder) = open.pop_first() {
        let mut files = Vec::new();
        let listed = tree.list(&folder, &mut |name, kind| {
            match kind {
                Kind::Folder if folder.is_empty() && name == OWN_FOLDER => {}
                Kind::Folder => drop(open.insert(join(&folder, name))),
                Kind::File => files.push(join(&folder, name)),
                _ => {}
            }
            true
        });
        match listed {
            // A mount point, or gone meanwhile.
            Err(error) if matches!(error.kind(), io::ErrorKind::CrossesDevices | io::ErrorKind::NotFound) => continue,
            other => other.map_err(|error| VolumeError::io("listing", &folder, error))?,
        }
        for file in files {
            let Ok(stat) = tree.stat(&file) else { continue };
            if stat.links < 2 || linked.insert(stat.identity) {
                total = total.saturating_add(stat.stamp.size);
            }
        }
    }
    Ok(total)
}
