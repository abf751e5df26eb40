//! Which pages a start reads: recorded from real programs in a mounted image, or chosen by a stated
//! rule.
//!
//! Recording uses `runnel record` where the binary has it; otherwise a server that knows nothing is
//! started, the program runs in a mount of it, and what the server learned is taken. Both see exact
//! pages, since the mount asks the kernel not to read ahead. Sets are named by paths, so they hold
//! for every image of the same tree.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use trace::{Event, Header, How, Source, Writer};
use units::{Moment, PAGE_BYTES, PageId, Rng, SplitMix64, Token};

use super::layout::Opened;
use super::measure;
use super::packer::Packer;
use crate::link::Link;
use crate::product::{Product, learn};
use crate::site::Site;
use crate::stage::remove;

/// Bytes of a page of a device.
pub const DEVICE_PAGE_BYTES: u64 = 4096;

/// Seed of the sets that are chosen.
pub const SEED: u64 = 42;

/// The Python start: an interpreter with modules that small tools import.
const PYTHON: &[&str] =
    &["/usr/bin/python3", "-c", "import json,email,ssl,argparse,subprocess,logging,urllib.request,sqlite3,decimal"];

/// The shell start: a script that calls the usual tools, as at the start of a machine.
const SHELL: &[&str] = &[
    "/bin/bash",
    "-c",
    "ls -l /etc >/dev/null; perl -e 'use POSIX; use Data::Dumper; print 1' >/dev/null; dpkg-query -W >/dev/null; \
     apt-cache policy >/dev/null; grep -r root /etc/passwd | sed s/root/x/ | sort >/dev/null; true",
];

/// The recorded starts: name, what people read, program.
pub const PROGRAMS: [(&str, &str, &[&str]); 2] =
    [("python", "Python with nine modules", PYTHON), ("shell", "a shell script with perl, dpkg-query and apt", SHELL)];

/// Shares of a tree that the chosen sets hold, percent.
pub const HOT_SHARES: [u64; 2] = [12, 40];

/// A page of a file, whatever image it is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page {
    /// Path from the root.
    pub path: Vec<u8>,
    /// Index in the file.
    pub index: u32,
}

/// The pages that something reads, in order, each once.
#[derive(Clone, Debug)]
pub struct ReadSet {
    /// Its name.
    pub name: String,
    /// The pages.
    pub pages: Vec<Page>,
    /// Whether their order is that of a program. Chosen sets have none.
    pub is_ordered: bool,
    /// The same as a trace file.
    pub trace: PathBuf,
}

/// In which order the files of an image lie in it.
pub type Ranks = BTreeMap<Vec<u8>, u64>;

impl ReadSet {
    /// Pages of several sets.
    pub fn union(name: &str, sets: &[&ReadSet], base: &Opened, folder: &Path) -> anyhow::Result<ReadSet> {
        let mut seen = BTreeSet::new();
        let all = sets.iter().flat_map(|set| &set.pages);
        let pages: Vec<Page> = all.filter(|page| seen.insert((*page).clone())).cloned().collect();
        ReadSet::write(name, pages, base, folder)
    }

    /// The set that an earlier run recorded in `folder`, if there is one.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn load(name: &str, base: &Opened, folder: &Path) -> anyhow::Result<Option<ReadSet>> {
        let trace = folder.join(format!("{name}.trace"));
        if !trace.exists() {
            return Ok(None);
        }
        let named = |page: PageId| Some(Page { path: base.metadata().path(page.inode)?, index: page.index });
        let pages = touched(&trace)?.into_iter().filter_map(named).collect();
        Ok(Some(ReadSet { name: name.to_string(), pages, is_ordered: true, trace }))
    }

    fn write(name: &str, pages: Vec<Page>, base: &Opened, folder: &Path) -> anyhow::Result<ReadSet> {
        let trace = folder.join(format!("{name}.trace"));
        let found: Vec<PageId> = pages.iter().filter_map(|page| base.page(page)).collect();
        ensure!(!found.is_empty(), "the read set {name} holds no page of the image");
        let mut writer = Writer::new(&Header { image: base.metadata().id(), source: Source::Mount });
        let token = Token(1);
        writer.push(&Event::Start { token, at: Moment(0), name: name.as_bytes().to_vec() })?;
        for (at, page) in (1..).zip(&found) {
            // Names make the trace fit the tree itself, and other images of it.
            if !writer.knows(page.inode) {
                let path = base.metadata().path(page.inode).unwrap_or_default();
                let size = base.metadata().inode(page.inode).map_or(0, |inode| inode.size());
                let path = path.strip_prefix(b"/").map(<[u8]>::to_vec).unwrap_or(path);
                writer.push(&Event::File { inode: page.inode, size, path })?;
            }
            writer.push(&Event::Touch { token, at: Moment(at), page: *page, how: How::Demand })?;
        }
        writer.push(&Event::End { token, at: Moment(found.len() as u64 + 1) })?;
        writer.finish()?;
        std::fs::write(&trace, writer.take()).with_context(|| format!("cannot write {}", trace.display()))?;
        Ok(ReadSet { name: name.to_string(), pages, is_ordered: true, trace })
    }

    /// The pages in the order in which an image is to be read: that of the program, else that in
    /// which files lie in the image, which `ranks` tells where it is not that of their paths.
    /// SquashFS keeps three decoded blocks of small files: read in any other order, each small file
    /// costs such a block again (267 MB of an image of 58 MB for 40 % of the pages, and minutes
    /// with blocks of 1 MiB in LZMA), which says nothing about the layout.
    pub fn in_order_of(&self, ranks: Option<&Ranks>) -> Cow<'_, [Page]> {
        if self.is_ordered {
            return Cow::Borrowed(&self.pages);
        }
        let mut pages = self.pages.clone();
        let rank = |page: &Page| ranks.and_then(|ranks| ranks.get(&page.path).copied()).unwrap_or(0);
        pages.sort_by_cached_key(|page| (rank(page), page.clone()));
        Cow::Owned(pages)
    }

    /// Bytes of its pages in `image`.
    pub fn bytes(&self, image: &Opened) -> u64 {
        let pages: BTreeSet<PageId> = self.pages.iter().filter_map(|page| image.page(page)).collect();
        pages.iter().filter_map(|page| image.metadata().page_bytes(*page)).map(|bytes| bytes as u64).sum()
    }
}

/// Records a start of `program` in `image`.
///
/// # Errors
/// The image cannot be mounted, or the program fails; the message holds what it said.
pub fn record(
    packer: &Packer,
    name: &str,
    program: &[&str],
    image: &Path,
    base: &Opened,
    folder: &Path,
) -> anyhow::Result<ReadSet> {
    let pages = if packer.records() {
        let trace = folder.join(format!("{name}.recorded"));
        remove(&trace)?;
        let mut command = Command::new(&packer.runnel);
        command.arg("record").arg("-o").arg(&trace).arg(image).arg("--").args(program);
        measure::run(environment(&mut command))?;
        touched(&trace)?
    } else {
        learned(packer, program, image, folder)?
    };
    let mut seen = BTreeSet::new();
    let first = pages.into_iter().filter(|page| seen.insert(*page));
    let named = first.filter_map(|page| Some(Page { path: base.metadata().path(page.inode)?, index: page.index }));
    ReadSet::write(name, named.collect(), base, folder)
}

fn environment(command: &mut Command) -> &mut Command {
    command.env_clear().envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8"), ("HOME", "/tmp")]);
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/")
}

/// The pages of a trace file.
fn touched(path: &Path) -> anyhow::Result<Vec<PageId>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
    let found = trace::read(&bytes, &trace::Limits::default());
    let found = found.with_context(|| format!("{} is no trace that can be used", path.display()))?;
    let page = |event: &Event| match event {
        Event::Touch { page, .. } => Some(*page),
        _ => None,
    };
    Ok(found.events.iter().filter_map(page).collect())
}

/// The pages that a server learns from one start.
fn learned(packer: &Packer, program: &[&str], image: &Path, folder: &Path) -> anyhow::Result<Vec<PageId>> {
    let product = Product { runnel: packer.runnel.clone() };
    // The order does not depend on the link, the time of recording does.
    let link: Link = "lan".parse()?;
    let store = product.fresh_store(image, folder.join("store"))?;
    let mut server = product.serve(&store, &link, 1, &[], folder)?;
    learn(&mut server, &store, |server| {
        let mounted = product.mount_remote(server, &[], folder)?;
        let mut command = Command::new(&packer.runnel);
        command.arg("enter").arg(mounted.root()).arg("--").args(program);
        measure::run(environment(&mut command))?;
        mounted.close()
    })?;
    server.stop()?;
    let mut pages = Vec::new();
    for path in store.learned_files() {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let set = profile::decode(&bytes, &profile::Limits::default());
        let set = set.with_context(|| format!("{} is no actions file", path.display()))?;
        pages.extend(set.iter().flat_map(|action| action.pages.clone()));
    }
    ensure!(!pages.is_empty(), "the server learned nothing from a start of {}", program[0]);
    Ok(pages)
}

/// A set of `percent` of the bytes of the tree: files in a random order, of each a run of pages of
/// random length (a quarter of it to all) from a random place, until there are enough. The same for
/// every image of the tree.
///
/// # Errors
/// The trace cannot be written.
pub fn chosen(percent: u64, base: &Opened, folder: &Path) -> anyhow::Result<ReadSet> {
    let mut random = SplitMix64(SEED);
    let mut files: Vec<_> = base.files().filter(|inode| base.metadata().page_count(*inode) > 0).collect();
    let count = |inode| base.metadata().page_count(inode);
    let total: u64 = files.iter().map(|inode| u64::from(count(*inode)) * PAGE_BYTES as u64).sum();
    let (mut bytes, mut pages) = (0, Vec::new());
    while bytes < total * percent / 100 && !files.is_empty() {
        let inode = files.swap_remove((random.next_u64() % files.len() as u64) as usize);
        let all = count(inode);
        let least = all.div_ceil(4);
        let length = least + (random.next_u64() % u64::from(all - least + 1)) as u32;
        let first = (random.next_u64() % u64::from(all - length + 1)) as u32;
        let Some(path) = base.metadata().path(inode) else { continue };
        pages.extend((first..first + length).map(|index| Page { path: path.clone(), index }));
        bytes += u64::from(length) * PAGE_BYTES as u64;
    }
    let set = ReadSet::write(&format!("hot-{percent}"), pages, base, folder)?;
    Ok(ReadSet { is_ordered: false, ..set })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pack::{Options, Silent};

    #[test]
    fn chosen_sets_are_of_the_stated_size_and_come_back_from_their_traces() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (tree, image) = (folder.path().join("tree"), folder.path().join("image.rnl"));
        std::fs::create_dir_all(tree.join("d"))?;
        for index in 0..60 {
            std::fs::write(tree.join(format!("d/f{index}")), vec![index as u8; 4096 * (1 + index % 7)])?;
        }
        pack::pack(pack::Source::detect(&tree)?, &image, &Options::default(), &Silent)?;
        let base = Opened::open(&image)?;
        let set = chosen(40, &base, folder.path())?;
        let total: u64 = (0..60).map(|index| 4096 * (1 + index % 7)).sum();
        let share = set.bytes(&base) as f64 / total as f64;
        assert!((0.40..0.52).contains(&share), "{share}");
        assert_eq!(chosen(40, &base, folder.path())?.pages, set.pages, "the same every time");
        let found = trace::read(&std::fs::read(&set.trace)?, &trace::Limits::default())?;
        assert!(found.events.iter().any(|event| matches!(event, Event::File { path, .. } if path.starts_with(b"d/f"))));
        let known = ReadSet::load(&set.name, &base, folder.path())?.map(|set| set.pages);
        assert_eq!(known.as_ref(), Some(&set.pages));
        assert!(ReadSet::load("none", &base, folder.path())?.is_none());
        let by_path = set.in_order_of(None);
        assert!(by_path.is_sorted() && by_path.len() == set.pages.len() && !set.pages.is_sorted());
        let last = by_path.last().expect("there are some").path.clone();
        let ranks = Ranks::from_iter(set.pages.iter().map(|page| (page.path.clone(), u64::from(page.path != last))));
        assert_eq!(set.in_order_of(Some(&ranks)).first().map(|page| &page.path), Some(&last));
        let both = ReadSet::union("both", &[&set, &set], &base, folder.path())?;
        assert_eq!(both.pages, set.pages);
        assert_eq!(both.in_order_of(None)[..], set.pages[..], "a recorded order stays");
        Ok(())
    }
}
