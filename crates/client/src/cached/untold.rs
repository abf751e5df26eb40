//! Runs of programs that no server was told of, since they needed nothing of one.
//!
//! A server learns from touches. A run that finds all of its pages in the device cache sends none,
//! so what it touched is kept in the cache, and a later connection tells the server
//! ([`crate::tell`]). Only runs are kept that the device learned from, and that were seen whole:
//! nothing was put into the page cache for them, where touches are invisible. As on a server, a run
//! that was quiet for a while is over.

use std::collections::{HashMap, HashSet};

use cache::{Cache, Key, Kind, Owner};
use connection::Server;
use image::Metadata;
use units::{ImageId, PageId, Token};

use super::start::hashed;
use super::{label_of, pages_of};

/// Runs of one image that are kept for one server; further ones are not. 512 KiB of the cache, if
/// all are as long as they may be.
pub(crate) const RUNS_MAX: u8 = 16;

/// Pages of one run: more than programs touch while they start. A longer run is not kept.
pub(crate) const RUN_PAGES_MAX: usize = 4096;

/// A server learns nothing from shorter runs.
const RUN_PAGES_MIN: usize = 4;

/// Running programs that are watched, as many as the schedule remembers.
const WATCHED_MAX: usize = 64;

/// Where the runs of an image are kept that a server was not told of: records of the device cache.
/// One that is empty is free.
pub(crate) struct Untold {
    owner: Owner,
    keys: Vec<Key>,
}

impl Untold {
    /// Those for `server`. No other one is told.
    pub fn of(server: &Server, image: &ImageId) -> Untold {
        let server = server.to_string();
        let key = |number: u8| hashed(&[b"run", server.as_bytes(), b"\0", &image.0, &[number]]);
        Untold { owner: Owner(image.0), keys: (0..RUNS_MAX).map(key).collect() }
    }

    /// Records that are not empty, the oldest first.
    fn taken(&self, cache: &Cache) -> Vec<Key> {
        let found = cache.records(&self.owner, Kind::Run).into_iter();
        found.filter(|found| found.payload_bytes > 0 && self.keys.contains(&found.key)).map(|found| found.key).collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self, cache: &Cache) -> bool {
        self.taken(cache).is_empty()
    }

    /// The key for one more run, if it is to be kept, and its record.
    pub fn record_of(&self, cache: &Cache, pages: &[PageId]) -> Option<(Key, Vec<u8>)> {
        if !(RUN_PAGES_MIN..=RUN_PAGES_MAX).contains(&pages.len()) {
            return None;
        }
        let taken: HashSet<Key> = self.taken(cache).into_iter().collect();
        let free = self.keys.iter().find(|key| !taken.contains(key))?;
        Some((*free, label_of(pages)))
    }

    /// The runs, the oldest first. One that is damaged, or is not of the image, has no pages.
    pub fn runs(&self, cache: &Cache, metadata: &Metadata) -> Vec<(Key, Vec<PageId>)> {
        let run = |key| {
            let record = cache.read(Kind::Run, &key).filter(|record| record.len().is_multiple_of(8));
            let pages = record.map_or_else(Vec::new, |record| pages_of(&record));
            let is_good = pages.len() <= RUN_PAGES_MAX && pages.iter().all(|page| metadata.page_bytes(*page).is_some());
            (key, if is_good { pages } else { Vec::new() })
        };
        self.taken(cache).into_iter().map(run).collect()
    }

    /// The server has taken a run. If that cannot be written, it is told again another time.
    pub fn told(&self, cache: &Cache, key: &Key) {
        let _ = cache.put(&self.owner, Kind::Run, key, &[], &[]);
    }
}

/// What running programs touch, as far as it can be told later.
#[derive(Default)]
pub(super) struct Watch {
    runs: HashMap<Token, Watched>,
}

#[derive(Default)]
struct Watched {
    pages: Vec<PageId>,
    /// It was quiet for a while: what follows belongs to another action.
    is_over: bool,
    /// It has too many pages, or some that were not seen.
    is_lost: bool,
}

impl Watch {
    /// A program touched a page for the first time.
    pub fn touched(&mut self, token: Token, page: PageId) {
        if self.runs.len() >= WATCHED_MAX && !self.runs.contains_key(&token) {
            return;
        }
        let run = self.runs.entry(token).or_default();
        if run.is_over || run.is_lost {
            return;
        }
        run.pages.push(page);
        if run.pages.len() > RUN_PAGES_MAX {
            run.lose();
        }
    }

    /// Further touches of a program may be invisible.
    pub fn hidden(&mut self, token: Token) {
        if let Some(run) = self.runs.get_mut(&token).filter(|run| !run.is_over) {
            run.lose();
        }
    }

    /// A program was quiet for so long that its action is over. `is_new`: something was learned.
    pub fn over(&mut self, token: Token, is_new: bool) {
        if let Some(run) = self.runs.get_mut(&token).filter(|run| !run.is_over) {
            run.is_over = true;
            if !is_new {
                run.lose();
            }
        }
    }

    /// A program ended. Returns what it touched in order, unless nothing was learned from that, or
    /// it is not known.
    pub fn end(&mut self, token: Token, is_new: bool) -> Vec<PageId> {
        self.over(token, is_new);
        self.runs.remove(&token).map_or_else(Vec::new, |run| run.pages)
    }
}

impl Watched {
    fn lose(&mut self) {
        self.is_lost = true;
        self.pages = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::tree::Tree;
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::FileExt;
    use units::InodeId;

    fn page(index: u32) -> PageId {
        PageId::new(InodeId(2), index)
    }

    fn run(watch: &mut Watch, token: u128, pages: u32) {
        (0..pages).for_each(|index| watch.touched(Token(token), page(index)));
    }

    #[test]
    fn only_runs_that_were_seen_whole_are_known() {
        let mut watch = Watch::default();
        run(&mut watch, 1, 9);
        run(&mut watch, 2, RUN_PAGES_MAX as u32);
        run(&mut watch, 3, 2 * RUN_PAGES_MAX as u32);
        run(&mut watch, 4, 5);
        watch.hidden(Token(4));
        run(&mut watch, 4, 5);
        run(&mut watch, 5, 5);
        watch.over(Token(5), true);
        watch.hidden(Token(5));
        run(&mut watch, 5, 9);
        run(&mut watch, 6, 9);
        watch.over(Token(6), false);
        let known: Vec<usize> = (1..=7).map(|token| watch.end(Token(token), true).len()).collect();
        assert_eq!(known, [9, RUN_PAGES_MAX, 0, 0, 5, 0, 0]);
        run(&mut watch, 1, 9);
        assert!(watch.end(Token(1), false).is_empty(), "nothing new");
        assert!(watch.runs.is_empty());
        (0..1000).for_each(|token| run(&mut watch, token, 1));
        assert_eq!(watch.runs.len(), WATCHED_MAX);
    }

    /// A cache, and the records of an image in it.
    struct Kept {
        folder: tempfile::TempDir,
        tree: Tree,
        untold: Untold,
    }

    impl Kept {
        fn new() -> Kept {
            let tree = Tree::plain();
            let untold = Untold::of(&Server::parse("runnel://one").unwrap(), &tree.metadata.id());
            Kept { folder: tempfile::tempdir().unwrap(), tree, untold }
        }

        fn cache(&self) -> Cache {
            Cache::open(&self.folder.path().join("cache"), Some(4 << 20)).unwrap()
        }

        /// Whether a run is kept.
        fn add(&self, cache: &Cache, pages: &[PageId]) -> bool {
            let record = self.untold.record_of(cache, pages);
            record.is_some_and(|(key, record)| cache.put(&self.untold.owner, Kind::Run, &key, &[], &record).unwrap())
        }

        fn pages(&self, range: std::ops::Range<u32>) -> Vec<PageId> {
            range.map(|index| PageId::new(self.tree.big(), index)).collect()
        }

        fn runs(&self, cache: &Cache) -> Vec<Vec<PageId>> {
            self.untold.runs(cache, &self.tree.metadata).into_iter().map(|(_, pages)| pages).collect()
        }
    }

    #[test]
    fn runs_are_kept_in_order_up_to_a_bound_until_they_are_told() {
        let kept = Kept::new();
        let cache = kept.cache();
        assert!(!kept.add(&cache, &kept.pages(0..3)), "nothing is learned from it");
        assert!(!kept.add(&cache, &vec![kept.pages(0..1)[0]; RUN_PAGES_MAX + 1]));
        let runs: Vec<_> = (0..u32::from(RUNS_MAX)).map(|number| kept.pages(number..number + 20)).collect();
        assert!(runs.iter().all(|run| kept.add(&cache, run)) && !kept.add(&cache, &runs[0]));
        drop(cache);
        let cache = kept.cache();
        assert_eq!(kept.runs(&cache), runs);
        let other = Untold::of(&Server::parse("runnel://two").unwrap(), &kept.tree.metadata.id());
        assert!(other.is_empty(&cache), "what one server may know the other one is not told");
        let keys: Vec<Key> = kept.untold.runs(&cache, &kept.tree.metadata).iter().map(|(key, _)| *key).collect();
        kept.untold.told(&cache, &keys[3]);
        assert!(kept.add(&cache, &runs[0]) && !kept.add(&cache, &runs[0]), "its place is free");
        assert_eq!(kept.runs(&cache).last(), Some(&runs[0]));
        keys.iter().for_each(|key| kept.untold.told(&cache, key));
        drop(cache);
        assert!(kept.untold.is_empty(&kept.cache()));
    }

    #[test]
    fn a_record_that_is_damaged_or_not_of_the_image_has_no_pages() {
        let kept = Kept::new();
        let cache = kept.cache();
        assert!(kept.add(&cache, &kept.pages(0..20)));
        drop(cache);
        let log = fs::read_dir(kept.folder.path().join("cache")).unwrap().map(|entry| entry.unwrap().path());
        let log = log.into_iter().find(|path| path.extension().is_some_and(|end| end == "log")).unwrap();
        // The header of the log and the head of the record take 160 bytes.
        OpenOptions::new().write(true).open(log).unwrap().write_all_at(&[7], 170).unwrap();
        assert_eq!(kept.runs(&kept.cache()), [Vec::new()]);

        let kept = Kept::new();
        let cache = kept.cache();
        let beyond = [kept.pages(0..8), kept.pages(1_000_000..1_000_001)].concat();
        assert!(kept.add(&cache, &beyond) && kept.add(&cache, &kept.pages(0..8)));
        assert_eq!(kept.runs(&cache), [Vec::new(), kept.pages(0..8)]);
        let (key, mut record) = kept.untold.record_of(&cache, &kept.pages(0..8)).unwrap();
        record.push(0);
        assert!(cache.put(&kept.untold.owner, Kind::Run, &key, &[], &record).unwrap());
        assert_eq!(kept.runs(&cache)[2], []);
    }
}
