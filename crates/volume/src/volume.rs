//! The volume as its server uses it: look, read, commit, lease.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLockReadGuard};

use crate::committer::{Committer, Shared, random, scan};
use crate::disk::{Disk, DiskFile, FileStat, Kind, Space};
use crate::format::SECRET_BYTES;
use crate::group::{GroupCommit, died, locked};
use crate::info::{BlockTable, Blocks, Entry, Info, InfoListing, Listing};
use crate::lease::Leases;
use crate::listing::names_after;
use crate::path::OWN_FOLDER;
use crate::real::RealDisk;
use crate::recover::Recovered;
use crate::table::{Table, volume_id};
use crate::xattrs::Xattrs;
use crate::{Committed, FileId, Mode, Options, Seen, Transaction, VolumeError, VolumePath};

/// Bytes that one call reads at most: what a reader may hold up a commit for.
pub const READ_BYTES_MAX: u64 = 4 << 20;

/// Blocks that one call of [`Volume::block_table`] tells of at most.
pub const TABLE_BLOCKS_MAX: u32 = 1 << 20;

/// Entries of one page of a listing, at most.
pub const LIST_ENTRIES_MAX: usize = 4096;

/// Pages that one call looks at until one has an entry that is served.
const LIST_ROUNDS_MAX: usize = 16;

/// How often a read is repeated when the file changes behind our back while it is read.
const READ_TRIES: usize = 4;

/// An open volume. All calls block, and may be made from several threads.
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
    /// Without it nothing is changed.
    writer: Option<GroupCommit>,
    options: Options,
    id: u128,
    recovered: Recovered,
}

impl Volume {
    /// Opens a folder of this machine; recovers it if it was not closed cleanly. `journal` is the
    /// folder of the journal, on any file system; without it that is `.runnel` in the folder
    /// itself.
    ///
    /// # Errors
    /// [`VolumeError::InUse`], [`VolumeError::NeedsRecovery`] (when read only),
    /// [`VolumeError::Corrupt`], [`VolumeError::NoSpace`], or what the system says.
    pub fn open(folder: &Path, journal: Option<&Path>, options: Options) -> Result<Volume, VolumeError> {
        use std::os::unix::ffi::OsStrExt;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| VolumeError::io("opening", path.as_os_str().as_bytes(), error)
        };
        let tree = RealDisk::open(folder).map_err(failed(folder))?;
        let own = match journal {
            Some(journal) => Some(RealDisk::open(journal).map_err(failed(journal))?),
            None => match tree.folder(OWN_FOLDER, options.mode == Mode::ReadWrite) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && options.mode == Mode::ReadOnly => None,
                // As in /proc.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let path = folder.join(".runnel").display().to_string();
                    let source = io::Error::other("its file system lets nobody make folders there");
                    return Err(VolumeError::Io { what: "making", path, source });
                }
                other => Some(other.map_err(failed(folder))?),
            },
        };
        Volume::on(Arc::new(tree), own.map(|own| Arc::new(own) as Arc<dyn Disk>), options)
    }

    /// Opens a volume on any disk. `own` is the folder of the journal; it may be missing only for
    /// reading.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn on(tree: Arc<dyn Disk>, own: Option<Arc<dyn Disk>>, options: Options) -> Result<Volume, VolumeError> {
        options.check()?;
        let (writer, shared, recovered) = match (options.mode, own) {
            (Mode::ReadWrite, Some(own)) => {
                let (committer, shared, recovered) = Committer::open(tree, own, options)?;
                (Some(GroupCommit::new(committer)), shared, recovered)
            }
            (Mode::ReadWrite, None) => {
                return Err(VolumeError::io("opening", OWN_FOLDER, io::ErrorKind::NotFound.into()));
            }
            (Mode::ReadOnly, own) => {
                let table = match own.as_deref().map(|own| Table::load(own).map(|table| (own, table))).transpose()? {
                    Some((own, Some(table))) => {
                        if scan(own, &table)?.frames > 0 {
                            return Err(VolumeError::NeedsRecovery);
                        }
                        table
                    }
                    _ => Table::new(Default::default()),
                };
                (None, Arc::new(Shared::new(tree, table, 0)), Recovered::default())
            }
        };
        let known = locked(&shared.table).id;
        let id = match known {
            0 => {
                let top = shared.tree.stat(b"").map_err(|error| VolumeError::io("looking at", b"", error))?;
                volume_id(top.identity)
            }
            id => id,
        };
        Ok(Volume { shared, writer, options, id, recovered })
    }

    /// Which volume this is: the same after a restart, and as long as its journal folder goes with
    /// it. Without one (read only), it is another one when the folder is.
    pub fn id(&self) -> u128 {
        self.id
    }

    /// How it was opened.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What opening had to recover.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// How much room there is, on the disk and within the quota.
    ///
    /// # Errors
    /// What the system says.
    pub fn space(&self) -> Result<Space, VolumeError> {
        let space = self.shared.tree.space().map_err(|error| VolumeError::io("asking for room in", b"", error))?;
        let Some(quota) = self.options.quota_bytes else { return Ok(space) };
        let left = quota.saturating_sub(self.shared.size_bytes());
        Ok(Space { all_bytes: space.all_bytes.min(quota), bytes: space.bytes.min(left), ..space })
    }

    /// What is at a path. To look a name up in a folder, [`VolumePath::join`] it.
    ///
    /// # Errors
    /// [`VolumeError::NotFound`], [`VolumeError::NotFolder`], [`VolumeError::Special`], or what the
    /// system says.
    pub fn stat(&self, path: &VolumePath) -> Result<Info, VolumeError> {
        let _gate = self.gate()?;
        let mut info = self.look(path).map(|stat| self.info(&stat))?;
        // Our own folder is none for others.
        if path.is_top() && info.links > 2 && self.shared.tree.stat(OWN_FOLDER).is_ok() {
            info.links -= 1;
        }
        Ok(info)
    }

    /// Entries of a folder in order of their names: the first `limit` after the name `after`.
    /// Special files are left out.
    ///
    /// # Errors
    /// As [`Volume::stat`]; [`VolumeError::TooLarge`] for a folder of over
    /// [`crate::FOLDER_ENTRIES_MAX`] entries.
    pub fn list(&self, path: &VolumePath, after: &[u8], limit: usize) -> Result<Listing, VolumeError> {
        let InfoListing { seen, entries, more } = self.list_infos(path, after, limit)?;
        let entries = entries.into_iter().map(|(name, info)| Entry { name, kind: info.kind }).collect();
        Ok(Listing { seen, entries, more })
    }

    /// As [`Volume::list`], with what each entry is. An entry that is a mount point, that goes away
    /// meanwhile, or whose path would be too long is left out, in both.
    ///
    /// # Errors
    /// As [`Volume::list`].
    pub fn list_infos(&self, path: &VolumePath, after: &[u8], limit: usize) -> Result<InfoListing, VolumeError> {
        let wanted = limit.clamp(1, LIST_ENTRIES_MAX);
        let (mut limit, mut after) = (wanted, after.to_vec());
        for _ in 0..LIST_ROUNDS_MAX {
            // Not longer: commits wait for it.
            let _gate = self.gate()?;
            let (seen, names, more) = self.page(path, &after, limit)?;
            let infos = names.iter().filter_map(|name| {
                let stat = self.look(&path.join(name).ok()?).ok()?;
                Some((name.clone(), self.info(&stat)))
            });
            let mut entries: Vec<_> = infos.take(wanted + 1).collect();
            match names.last() {
                // All of the page were left out: whoever asks needs a name to go on after.
                Some(last) if more && entries.is_empty() => after.clone_from(last),
                _ => {
                    let more = more || entries.len() > wanted;
                    entries.truncate(wanted);
                    return Ok(InfoListing { seen, entries, more });
                }
            }
            limit = LIST_ENTRIES_MAX;
        }
        let limit = (LIST_ROUNDS_MAX * LIST_ENTRIES_MAX) as u64;
        Err(VolumeError::TooLarge { what: "entries in a row that are not served", found: limit + 1, limit })
    }

    /// The first names after one; what they stand for was not looked at yet.
    fn page(&self, path: &VolumePath, after: &[u8], limit: usize) -> Result<(Seen, Vec<Vec<u8>>, bool), VolumeError> {
        let stat = self.look(path)?;
        if stat.kind != Kind::Folder {
            return Err(VolumeError::NotFolder { path: path.to_string() });
        }
        let seen = self.seen(&stat);
        let (names, more) = names_after(self.shared.tree.as_ref(), path, after, limit)?;
        Ok((seen, names, more))
    }

    /// Where a symbolic link points; nothing follows it.
    ///
    /// # Errors
    /// As [`Volume::stat`]; [`VolumeError::Invalid`] for anything else.
    pub fn read_link(&self, path: &VolumePath) -> Result<Vec<u8>, VolumeError> {
        let _gate = self.gate()?;
        if self.look(path)?.kind != Kind::Symlink {
            return Err(VolumeError::Invalid { path: path.to_string(), why: "it is no symbolic link" });
        }
        self.shared.tree.read_link(path.as_bytes()).map_err(|error| VolumeError::io("reading", path.as_bytes(), error))
    }

    /// What is at a path, and its extended attributes: those of users, without our own, and access
    /// control lists. If others gave it more than [`crate::XATTRS_BYTES_MAX`] bytes, those that
    /// fit.
    ///
    /// # Errors
    /// As [`Volume::stat`].
    pub fn xattrs(&self, path: &VolumePath) -> Result<(Info, Xattrs), VolumeError> {
        let _gate = self.gate()?;
        let info = self.look(path).map(|stat| self.info(&stat))?;
        let failed = |error| VolumeError::io("reading extended attributes of", path.as_bytes(), error);
        let has = info.has_xattrs && info.kind != Kind::Symlink;
        let xattrs = if has { self.shared.tree.xattrs(path.as_bytes()).map_err(failed)? } else { Xattrs::new() };
        Ok((Info { has_xattrs: !xattrs.is_empty(), ..info }, xattrs))
    }

    /// Reads `count` whole blocks from block `first`, all of one version. Blocks after the end are
    /// left out.
    ///
    /// # Errors
    /// As [`Volume::stat`]; [`VolumeError::NotFile`]; [`VolumeError::Stale`] if the path leads to a
    /// file that is not the `expected` one, or to nothing; [`VolumeError::TooLarge`] for over
    /// [`READ_BYTES_MAX`]; [`VolumeError::Busy`] if somebody outside keeps changing the file.
    pub fn read(
        &self,
        path: &VolumePath,
        expected: Option<FileId>,
        first: u64,
        count: u32,
    ) -> Result<Blocks, VolumeError> {
        let block = u64::from(self.options.block_bytes);
        let wanted = block * u64::from(count);
        if wanted > READ_BYTES_MAX {
            return Err(VolumeError::TooLarge { what: "bytes of a read", found: wanted, limit: READ_BYTES_MAX });
        }
        self.stable(path, expected, |file, stat, seen| {
            let size = stat.stamp.size;
            let start = first.saturating_mul(block).min(size);
            let mut bytes = vec![0; wanted.min(size - start) as usize];
            let read = file.read_at(start, &mut bytes)?;
            bytes.truncate(read);
            Ok(Blocks { seen, size, first, bytes })
        })
    }

    /// Reads single blocks in the order given, all of one version, one after the other; the last
    /// block of the file may be short, and those after the end are left out. [`Blocks::first`] is
    /// the first of them.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub fn read_each(
        &self,
        path: &VolumePath,
        expected: Option<FileId>,
        blocks: &[u64],
    ) -> Result<Blocks, VolumeError> {
        let block = u64::from(self.options.block_bytes);
        let wanted = block.saturating_mul(blocks.len() as u64);
        if wanted > READ_BYTES_MAX {
            return Err(VolumeError::TooLarge { what: "bytes of a read", found: wanted, limit: READ_BYTES_MAX });
        }
        self.stable(path, expected, |file, stat, seen| {
            let size = stat.stamp.size;
            let mut bytes = Vec::with_capacity(wanted as usize);
            // Blocks that follow each other are one call.
            for run in blocks.chunk_by(|before, after| before.checked_add(1) == Some(*after)) {
                let start = run[0].saturating_mul(block).min(size);
                let at = bytes.len();
                bytes.resize(at + (block * run.len() as u64).min(size - start) as usize, 0);
                let read = file.read_at(start, &mut bytes[at..])?;
                bytes.truncate(at + read);
            }
            Ok(Blocks { seen, size, first: blocks.first().copied().unwrap_or(0), bytes })
        })
    }

    /// Which of `count` blocks from block `first` are holes, which read as zeros and need not be
    /// sent.
    ///
    /// # Errors
    /// As [`Volume::read`], with [`TABLE_BLOCKS_MAX`].
    pub fn block_table(
        &self,
        path: &VolumePath,
        expected: Option<FileId>,
        first: u64,
        count: u32,
    ) -> Result<BlockTable, VolumeError> {
        if count > TABLE_BLOCKS_MAX {
            let (found, limit) = (u64::from(count), u64::from(TABLE_BLOCKS_MAX));
            return Err(VolumeError::TooLarge { what: "blocks of a block table", found, limit });
        }
        let block = u64::from(self.options.block_bytes);
        self.stable(path, expected, |file, stat, seen| {
            let size = stat.stamp.size;
            let end = size.div_ceil(block).min(first.saturating_add(u64::from(count)));
            let mut present = vec![false; end.saturating_sub(first) as usize];
            let mut at = first.saturating_mul(block);
            while at < end.saturating_mul(block).min(size) {
                let Some((from, to)) = file.data_after(at)? else {
                    break;
                };
                for index in from.max(at) / block..to.div_ceil(block).min(end) {
                    present[(index - first) as usize] = true;
                }
                // The next block that is not marked; always further.
                at = to.max(at + 1).div_ceil(block) * block;
            }
            Ok(BlockTable { seen, size, first, present })
        })
    }

    /// Commits a transaction; when it returns, it is on stable storage and every reader sees it.
    /// Commits of several threads share a sync.
    ///
    /// # Errors
    /// Nothing was applied, except that after [`VolumeError::Refused`] a part may be, and after
    /// [`VolumeError::Broken`] the transaction may be found when the volume is opened again.
    pub fn commit(&self, transaction: Transaction) -> Result<Committed, VolumeError> {
        self.commit_all(vec![transaction]).pop().unwrap_or_else(died)
    }

    /// Commits several transactions in their order, with as few syncs as possible; each is
    /// committed or refused by itself.
    ///
    /// # Errors
    /// As [`Volume::commit`], for each.
    pub fn commit_all(&self, transactions: Vec<Transaction>) -> Vec<Result<Committed, VolumeError>> {
        match &self.writer {
            Some(writer) => writer.commit_all(transactions),
            None => transactions.iter().map(|_| Err(VolumeError::ReadOnly)).collect(),
        }
    }

    /// Brings the files to stable storage and empties the journal; commits wait meanwhile. Also
    /// happens when the journal is full and when the volume is dropped. Whoever serves a volume
    /// calls this when nothing was committed for a while, since changes behind the server's back
    /// are not seen between a crash and its recovery.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`], [`VolumeError::Broken`].
    pub fn checkpoint(&self) -> Result<(), VolumeError> {
        self.writer.as_ref().map_or(Ok(()), GroupCommit::checkpoint)
    }

    /// Whether the volume stopped after a failure, so that every call is [`VolumeError::Broken`]
    /// until it is opened again.
    pub fn is_broken(&self) -> bool {
        self.gate().is_err()
    }

    /// Bytes in the journal since the last checkpoint.
    pub fn journal_bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, GroupCommit::journal_bytes)
    }

    /// The leases of its files.
    pub fn leases(&self) -> &Leases {
        &self.shared.leases
    }

    /// Gives out a number for a device, which nobody else has, and the secret that shows that it is
    /// its own.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`]; what the system says that has no random numbers.
    pub fn enrol(&self) -> Result<(u128, [u8; SECRET_BYTES]), VolumeError> {
        let number = u128::from_le_bytes(random()?).max(1);
        Ok((number, self.secret(number)?))
    }

    /// The secret of a device. Nothing is kept for it: it follows from the number and a key of the
    /// volume.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`]: there is no key, and nothing that it would be for.
    pub fn secret(&self, device: u128) -> Result<[u8; SECRET_BYTES], VolumeError> {
        self.writer.as_ref().ok_or(VolumeError::ReadOnly)?;
        Ok(locked(&self.shared.table).secret(device))
    }

    /// Keeps transactions from being applied, unless the volume has stopped.
    fn gate(&self) -> Result<RwLockReadGuard<'_, Option<String>>, VolumeError> {
        let gate = self.shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        match &*gate {
            Some(why) => Err(VolumeError::Broken { why: why.clone() }),
            None => Ok(gate),
        }
    }

    fn look(&self, path: &VolumePath) -> Result<FileStat, VolumeError> {
        let stat = self.shared.tree.stat(path.as_bytes());
        let stat = stat.map_err(|error| VolumeError::io("looking at", path.as_bytes(), error))?;
        if stat.kind == Kind::Special {
            return Err(VolumeError::Special { path: path.to_string() });
        }
        Ok(stat)
    }

    fn info(&self, stat: &FileStat) -> Info {
        Info {
            seen: self.seen(stat),
            kind: stat.kind,
            size: stat.stamp.size,
            block_bytes: self.options.block_bytes,
            mtime_ns: stat.stamp.mtime_ns,
            ctime_ns: stat.stamp.ctime_ns,
            atime_ns: stat.atime_ns,
            mode: stat.mode,
            owner: stat.owner,
            rdev: stat.rdev,
            links: stat.links,
            stored_bytes: stat.stored_bytes,
            has_xattrs: stat.has_xattrs,
        }
    }

    fn seen(&self, stat: &FileStat) -> Seen {
        locked(&self.shared.table).seen(stat)
    }

    /// Does `read` with a file that does not change meanwhile.
    fn stable<T>(
        &self,
        path: &VolumePath,
        expected: Option<FileId>,
        read: impl Fn(&dyn DiskFile, &FileStat, Seen) -> io::Result<T>,
    ) -> Result<T, VolumeError> {
        let _gate = self.gate()?;
        let stale = || VolumeError::Stale { path: path.to_string() };
        let stat = self.look(path).map_err(|error| match error {
            VolumeError::NotFound { .. } | VolumeError::NotFolder { .. } if expected.is_some() => stale(),
            other => other,
        })?;
        if expected.is_some_and(|expected| self.seen(&stat).file != expected) {
            return Err(stale());
        }
        if stat.kind != Kind::File {
            return Err(VolumeError::NotFile { path: path.to_string() });
        }
        let failed = |error| VolumeError::io("reading", path.as_bytes(), error);
        let file = self.shared.tree.open(path.as_bytes(), false).map_err(failed)?;
        for _ in 0..READ_TRIES {
            let before = file.stat().map_err(failed)?;
            let seen = self.seen(&before);
            if expected.is_some_and(|expected| seen.file != expected) {
                return Err(stale());
            }
            let result = read(file.as_ref(), &before, seen).map_err(failed)?;
            if file.stat().map_err(failed)?.stamp == before.stamp {
                return Ok(result);
            }
        }
        Err(VolumeError::Busy { path: path.to_string() })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Only saves the next opening a recovery.
        let _ = self.checkpoint();
    }
}
