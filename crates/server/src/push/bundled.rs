//! What of a bundle is pushed, and in which codec.
//!
//! The pieces between two restart points are a *group*. When its first piece has its turn, what the
//! device lacks of the group is looked up, and the codec is chosen whose bytes cost least
//! ([`Speed`]). In zstd all pieces go up to the last one that is needed, since each needs those
//! before it. In LZ4, and uncompressed, pieces that are not needed are left out, and one of which
//! little is needed is made anew without the rest.
//!
//! A push that begins in the middle of an action begins in the group of its first page: with the
//! pieces before it if zstd is cheaper all the same, else right there.

use std::sync::Arc;

use units::{PAGE_BYTES, PageId};

use crate::bundle::Bundle;
use crate::bundle::policy::LIVE_PAGE_NANOS;
use crate::speed::{PushCodec, Speed};

/// What a page comes to that is compressed live with LZ4, in bytes, and the processor time of that
/// in nanoseconds: its share of a decoded block, copies and LZ4.
pub(super) const FAST_PAGE_BYTES: u64 = 2_100;
pub(super) const FAST_PAGE_NANOS: u64 = 12_000;

/// What LZ4 takes live, in percent of what LZ4-HC takes in a bundle.
const FAST_PERCENT: u64 = 110;

/// Which of some pages the device lacks.
pub(super) type Lacks<'a> = &'a dyn Fn(&[PageId]) -> Vec<bool>;

/// A bundle that is being pushed.
pub(super) struct Bundled {
    pub bundle: Arc<Bundle>,
    /// Position of the first page that is needed.
    start: u32,
    /// The device affords the window of zstd.
    takes_zstd: bool,
    /// The group of the last piece.
    group: Option<Group>,
}

/// How a group is pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    number: u32,
    codec: PushCodec,
    /// Piece behind the last one that is needed.
    through: u32,
    nanos: u64,
}

/// What to do with a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The device needs nothing of it.
    Skip,
    /// It goes as the bundle has it.
    Whole(PushCodec),
    /// These pages of it go, by themselves in this codec.
    Some(PushCodec, Vec<PageId>),
}

impl Bundled {
    /// A push whose first page is at position `start` of the bundle.
    pub fn new(bundle: Arc<Bundle>, start: u32, takes_zstd: bool) -> Bundled {
        Bundled { bundle, start, takes_zstd, group: None }
    }

    /// Window that the device needs; 0 for none.
    pub fn window_log(&self) -> u8 {
        if self.takes_zstd { self.bundle.window_log } else { 0 }
    }

    /// Whether the page at this position is pushed if the device lacks it.
    pub fn is_wanted(&self, position: u32) -> bool {
        position >= self.start
    }

    /// What to do with piece `index`. To be asked of each piece from the first one of a group on,
    /// in order.
    pub fn step(&mut self, index: u32, lacks: Lacks<'_>, speed: &Speed) -> Step {
        let number = index / self.bundle.restart_pieces.max(1);
        let group = match self.group.filter(|group| group.number == number) {
            Some(group) => group,
            None => self.plan(number, lacks, speed),
        };
        self.group = Some(group);
        if group.codec == PushCodec::Zstd && index < group.through {
            return Step::Whole(PushCodec::Zstd);
        }
        // Also a piece behind the last one that was needed: meanwhile the device may have lost it.
        let lacking = self.lacking(index, lacks);
        if lacking.is_empty() {
            return Step::Skip;
        }
        let codec = if group.codec == PushCodec::Zstd { PushCodec::Lz4 } else { group.codec };
        self.group = Some(Group { codec, ..group });
        if is_most(lacking.len(), self.bundle.piece_pages(index).len()) {
            Step::Whole(codec)
        } else {
            Step::Some(codec, lacking)
        }
    }

    /// What it takes until the device has all that it lacks, in nanoseconds of its link and its
    /// processor, and of ours for what is compressed anew.
    pub fn nanos(&self, lacks: Lacks<'_>, speed: &Speed) -> u64 {
        let group_pieces = self.bundle.restart_pieces.max(1);
        let first = self.start / self.bundle.piece_pages.max(1) / group_pieces;
        let groups = first..self.bundle.piece_count().div_ceil(group_pieces);
        groups.map(|number| self.plan(number, lacks, speed).nanos).fold(0, u64::saturating_add)
    }

    /// The same for a stream that is compressed live and has just what the device lacks. Some parts
    /// of a program compress worse than others, so each page is taken to be like its piece.
    pub fn live_nanos(&self, lacks: Lacks<'_>, speed: &Speed) -> u64 {
        let bundle = &self.bundle;
        let first = self.start / bundle.piece_pages.max(1);
        let pieces = (first..bundle.piece_count()).map(|index| {
            let (lacking, pages) = (self.lacking(index, lacks).len() as u64, bundle.piece_pages(index).len() as u64);
            (lacking, bundle.live_bytes(index) * lacking / pages.max(1))
        });
        let (lacking, bytes) = pieces.fold((0, 0), |(all, sum), (lacking, bytes)| (all + lacking, sum + bytes));
        speed.nanos(PushCodec::Zstd, bytes, lacking * PAGE_BYTES as u64) + lacking * LIVE_PAGE_NANOS
    }

    /// How a group is pushed best.
    fn plan(&self, number: u32, lacks: Lacks<'_>, speed: &Speed) -> Group {
        let bundle = &self.bundle;
        let first = number.saturating_mul(bundle.restart_pieces);
        let pieces = first..first.saturating_add(bundle.restart_pieces).min(bundle.piece_count());
        let (mut zstd_bytes, mut zstd_raw, mut through) = (0, 0, first);
        let mut nanos = [0u64; PushCodec::ALL.len()];
        for index in pieces {
            let pages = bundle.piece_pages(index).len();
            let lacking = self.lacking(index, lacks).len();
            zstd_bytes += bundle.piece_bytes(index, PushCodec::Zstd);
            zstd_raw += (pages * PAGE_BYTES) as u64;
            if lacking == 0 {
                continue;
            }
            through = index + 1;
            nanos[PushCodec::Zstd as usize] = speed.nanos(PushCodec::Zstd, zstd_bytes, zstd_raw);
            for codec in [PushCodec::Lz4, PushCodec::Stored] {
                let bytes = bundle.piece_bytes(index, codec);
                let piece = if is_most(lacking, pages) {
                    speed.nanos(codec, bytes, (pages * PAGE_BYTES) as u64)
                } else {
                    let (lacking, pages) = (lacking as u64, pages as u64);
                    let bytes = bytes * lacking / pages * FAST_PERCENT / 100;
                    speed.nanos(codec, bytes, lacking * PAGE_BYTES as u64) + lacking * FAST_PAGE_NANOS
                };
                nanos[codec as usize] = nanos[codec as usize].saturating_add(piece);
            }
        }
        let can_go = |codec: &PushCodec| bundle.has(*codec) && (*codec != PushCodec::Zstd || self.takes_zstd);
        let codec = PushCodec::ALL.into_iter().filter(can_go).min_by_key(|codec| nanos[*codec as usize]);
        let codec = codec.unwrap_or(PushCodec::Lz4);
        Group { number, codec, through, nanos: nanos[codec as usize] }
    }

    /// The pages of a piece that are needed.
    fn lacking(&self, index: u32, lacks: Lacks<'_>) -> Vec<PageId> {
        let pages = self.bundle.piece_pages(index);
        let before = self.start.saturating_sub(self.bundle.positions(index).start) as usize;
        let Some(wanted) = pages.get(before..) else { return Vec::new() };
        wanted.iter().copied().zip(lacks(wanted)).filter(|(_, lacks)| *lacks).map(|(page, _)| page).collect()
    }
}

/// Whether so many pages are needed of a piece that it goes as it is.
fn is_most(lacking: usize, pages: usize) -> bool {
    lacking * 2 >= pages
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use store::Memory;
    use units::{ActionId, ImageId, InodeId, Rng, SplitMix64};

    use super::*;
    use crate::bundle::policy::{Forms, Grade};
    use crate::bundle::{Recipe, build};

    const PAGES: u32 = 700;

    fn page(index: u32) -> PageId {
        PageId::new(InodeId(2), index)
    }

    /// A bundle of 22 pieces in three groups.
    pub fn bundle() -> Arc<Bundle> {
        bundle_with(false)
    }

    fn bundle_with(stored: bool) -> Arc<Bundle> {
        let mut rng = SplitMix64(5);
        // zstd needs two bits for each of these, LZ4 more than twice as many.
        bundle_of(stored, (0..PAGES as usize * PAGE_BYTES).map(|_| b"push"[rng.below(4) as usize]).collect())
    }

    fn bundle_of(stored: bool, bytes: Vec<u8>) -> Arc<Bundle> {
        let (store, image, action) = (Memory::new(), ImageId([1; 32]), ActionId(3));
        let pages = (0..PAGES).map(page).collect();
        let recipe = Recipe { image, action, pages, piece_pages: 32, forms: Forms { grade: Grade::Quick, stored } };
        let read = |page: PageId, out: &mut Vec<u8>| {
            let start = page.index as usize * PAGE_BYTES;
            out.extend_from_slice(&bytes[start..start + PAGE_BYTES]);
            Ok(PAGE_BYTES)
        };
        assert!(build(&store, &recipe, &read, &|| false).unwrap());
        Arc::new(Bundle::open(&store, image, action).unwrap().unwrap())
    }

    fn fast() -> Speed {
        Speed::of_link(Some(1 << 30))
    }

    /// So slow that zstd wins, although it saves but half of the bytes of LZ4.
    fn slow() -> Speed {
        Speed::of_link(Some(1 << 20))
    }

    /// What becomes of each piece from the group of `start` on, if the device has the pages of
    /// `has`.
    fn steps(start: u32, has: &HashSet<PageId>, takes_zstd: bool, speed: &Speed) -> Vec<(u32, Step)> {
        let bundle = bundle();
        let lacks = |pages: &[PageId]| pages.iter().map(|page| !has.contains(page)).collect();
        let first = start / 32 / bundle.restart_pieces * bundle.restart_pieces;
        let mut bundled = Bundled::new(bundle.clone(), start, takes_zstd);
        (first..bundle.piece_count()).map(|index| (index, bundled.step(index, &lacks, speed))).collect()
    }

    fn whole(steps: &[(u32, Step)], codec: PushCodec) -> Vec<u32> {
        steps.iter().filter(|(_, step)| *step == Step::Whole(codec)).map(|(index, _)| *index).collect()
    }

    #[test]
    fn a_slow_link_gets_zstd_from_a_restart_point_and_a_fast_one_lz4_from_any_piece() {
        let none = HashSet::new();
        assert_eq!(whole(&steps(0, &none, true, &slow()), PushCodec::Zstd), (0..22).collect::<Vec<_>>());
        assert_eq!(whole(&steps(0, &none, true, &fast()), PushCodec::Lz4), (0..22).collect::<Vec<_>>());
        assert_eq!(whole(&steps(0, &none, false, &slow()), PushCodec::Lz4), (0..22).collect::<Vec<_>>());
        // From piece 9 on, one piece behind the restart point at 8.
        let found = steps(288, &none, true, &slow());
        assert_eq!(whole(&found, PushCodec::Zstd), (8..22).collect::<Vec<_>>(), "one piece more is worth it");
        assert_eq!(whole(&steps(288, &none, true, &fast()), PushCodec::Lz4), (9..22).collect::<Vec<_>>());
        // From the last piece before the restart point at 16 on.
        let found = steps(15 * 32, &none, true, &slow());
        assert_eq!(whole(&found, PushCodec::Lz4), [15]);
        assert_eq!(whole(&found, PushCodec::Zstd), (16..22).collect::<Vec<_>>());
    }

    #[test]
    fn a_part_that_compresses_badly_does_so_live_too() {
        let (mut rng, zeros) = (SplitMix64(5), 512 * PAGE_BYTES);
        let noise = (zeros..PAGES as usize * PAGE_BYTES).map(|_| rng.below(256) as u8);
        let bundle = bundle_of(false, std::iter::repeat_n(0, zeros).chain(noise).collect());
        let lacks = |pages: &[PageId]| vec![true; pages.len()];
        for start in [0, 512] {
            let bundled = Bundled::new(bundle.clone(), start, true);
            let (made, live) = (bundled.nanos(&lacks, &slow()), bundled.live_nanos(&lacks, &slow()));
            assert!(made < live && live < made + made / 10, "{made} and {live} ns from {start} on");
        }
    }

    #[test]
    fn pieces_that_the_device_has_are_left_out_and_of_others_what_it_has_if_that_is_most() {
        let mut has: HashSet<PageId> = (4 * 32..6 * 32).map(page).collect();
        has.extend((8 * 32..16 * 32).map(page));
        has.extend((17 * 32..17 * 32 + 30).map(page));
        has.extend((18 * 32..18 * 32 + 3).map(page));
        let found = steps(0, &has, true, &fast());
        let skipped: Vec<u32> = found.iter().filter(|(_, step)| *step == Step::Skip).map(|(index, _)| *index).collect();
        assert_eq!(skipped, [4, 5, 8, 9, 10, 11, 12, 13, 14, 15]);
        let some: Vec<&(u32, Step)> = found.iter().filter(|(_, step)| matches!(step, Step::Some(..))).collect();
        assert_eq!(some, [&(17, Step::Some(PushCodec::Lz4, vec![page(17 * 32 + 30), page(17 * 32 + 31)]))]);
        assert!(whole(&found, PushCodec::Lz4).contains(&18));
        // zstd needs the pieces before.
        has.retain(|page| page.index >= 5 * 32);
        let found = steps(0, &has, true, &slow());
        assert_eq!(whole(&found, PushCodec::Zstd)[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!((8..16).all(|index| found[index as usize].1 == Step::Skip), "a group that the device has");
    }

    #[test]
    fn a_page_that_was_lost_meanwhile_comes_by_itself() {
        let bundle = bundle();
        let mut bundled = Bundled::new(bundle.clone(), 0, true);
        let has_tail = |pages: &[PageId]| pages.iter().map(|page| page.index < 32).collect();
        assert_eq!(bundled.step(0, &has_tail, &slow()), Step::Whole(PushCodec::Zstd));
        assert_eq!(bundled.step(1, &has_tail, &slow()), Step::Skip);
        let lost = |pages: &[PageId]| pages.iter().map(|page| page.index == 70).collect();
        assert_eq!(bundled.step(2, &lost, &slow()), Step::Some(PushCodec::Lz4, vec![page(70)]));
        let all = |pages: &[PageId]| vec![true; pages.len()];
        assert_eq!(bundled.step(3, &all, &slow()), Step::Whole(PushCodec::Lz4), "the zstd stream has a gap");
        assert_eq!(bundled.step(8, &all, &slow()), Step::Whole(PushCodec::Zstd), "up to the next restart point");
    }

    #[test]
    fn a_bundle_goes_uncompressed_over_a_fast_link_if_it_can() {
        let all = |pages: &[PageId]| vec![true; pages.len()];
        let few = |pages: &[PageId]| pages.iter().map(|page| page.index % 32 == 9).collect();
        let mut bundled = Bundled::new(bundle_with(true), 0, true);
        assert_eq!(bundled.step(0, &all, &fast()), Step::Whole(PushCodec::Stored));
        assert_eq!(bundled.step(1, &few, &fast()), Step::Some(PushCodec::Stored, vec![page(41)]));
        assert_eq!(bundled.step(8, &all, &slow()), Step::Whole(PushCodec::Zstd), "the link became slow");
    }

    #[test]
    fn what_is_wanted_of_a_bundle_says_what_it_costs() {
        let bundle = bundle();
        let all = |pages: &[PageId]| vec![true; pages.len()];
        let few = |pages: &[PageId]| pages.iter().map(|page| page.index % 32 == 0).collect();
        let cost = |start, lacks: Lacks<'_>| Bundled::new(bundle.clone(), start, true).nanos(lacks, &slow());
        assert!(cost(0, &few) < cost(0, &all) && cost(512, &all) < cost(0, &all));
        assert_eq!(cost(0, &|pages| vec![false; pages.len()]), 0);
        assert_eq!(Bundled::new(bundle.clone(), 0, false).window_log(), 0);
        assert!(!Bundled::new(bundle, 40, true).is_wanted(39));
    }
}
