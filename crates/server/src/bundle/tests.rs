//! Bundles without a server: what is built is found, decodes to the pages, and no damaged byte gets
//! through.

use std::sync::Arc;
use std::time::Duration;

use codec::StreamDecoder;
use image::fixture::{Fixture, Node};
use image::{Limits, Metadata};
use predict::{ActionPredictor, Predictor, Reader};
use store::{Fault, FaultKind, FaultPlan, Memory};
use units::{Moment, PAGE_BYTES, PageId, Token};
use wire::PieceForm;

use super::*;
use crate::account::Account;
use crate::blocks::BlockCache;
use crate::bundler::{Bundler, Kind};
use crate::config::Shares;
use crate::learning::Learning;
use crate::lock::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::published::Published;

/// What bundles are made of here.
const QUICK: Forms = Forms { grade: Grade::Quick, stored: true };
const BEST: Forms = Forms { grade: Grade::Best, stored: false };

/// An open image with one file of `pages` pages, the last one short.
fn published(pages: usize) -> (Published, Vec<u8>) {
    let content: Vec<u8> = (0..pages * PAGE_BYTES - 100).map(|at| (at * at / 977) as u8).collect();
    let bytes = Fixture::default().pack(&[Node::file(b"file", &content)]).unwrap();
    let metadata = Metadata::open(&bytes, &Limits::default()).unwrap();
    let store = Memory::new();
    store.put_atomic("image", &bytes).unwrap();
    let shares = Shares { decoded: 1 << 20, ..Shares::default() };
    let predictor = ActionPredictor::new(metadata.id(), predict::Config::default());
    let (blocks, metrics) = (Arc::new(BlockCache::new(&shares)), Arc::new(Metrics::default()));
    let object = store.open("image").unwrap();
    let account = Account::new(1 << 20);
    let memory = account.take(Learning::bytes_of(&predictor)).unwrap();
    let predictor = Learning::new(predictor, memory);
    let reserved = account.take(0).unwrap();
    (Published::new(metadata, object, predictor, blocks, metrics, reserved), content)
}

/// Every third page, then the others: an order unlike that of the file.
fn recipe(image: &Published, pages: u32) -> Recipe {
    let file = image.metadata.resolve(b"/file").unwrap();
    let mut order: Vec<u32> = (0..pages).collect();
    order.sort_by_key(|index| (index % 3, *index));
    let pages: Vec<PageId> = order.into_iter().map(|index| PageId::new(file, index)).collect();
    Recipe { image: image.id, action: ActionId(7), pages: pages.into(), piece_pages: 32, forms: QUICK }
}

/// Builds a bundle of pages of `image`.
fn build(store: &dyn Store, image: &Published, recipe: &Recipe, stop: &dyn Fn() -> bool) -> Result<bool, Failure> {
    super::build(store, recipe, &|page, out: &mut Vec<u8>| image.page(page, out), stop)
}

fn open(store: &dyn Store, recipe: &Recipe) -> Result<Option<Bundle>, Failure> {
    Bundle::open(store, recipe.image, recipe.action)
}

#[test]
fn pieces_decode_one_after_the_other_to_the_pages_of_the_action() {
    let (image, content) = published(70);
    let recipe = recipe(&image, 70);
    let store = Memory::new();
    assert!(open(&store, &recipe).unwrap().is_none());
    assert!(build(&store, &image, &recipe, &|| false).unwrap());
    let bytes = store.len(&key(recipe.image, recipe.action)).unwrap();
    assert_eq!((build::held_bytes(&store).unwrap(), bytes > 0), (bytes, true));
    let bundle = open(&store, &recipe).unwrap().unwrap();
    assert_eq!((bundle.window_log, bundle.piece_pages, bundle.restart_pieces, bundle.forms), (20, 32, 8, QUICK));
    assert_eq!(bundle.pages, recipe.pages, "a bundle says itself what it holds");
    let mut decoder = StreamDecoder::new(20).unwrap();
    for (index, pages) in recipe.pages.chunks(32).enumerate() {
        let expected: Vec<u8> = pages.iter().flat_map(|page| page_of(&content, *page)).copied().collect();
        let mut raw = Vec::new();
        let piece = bundle.piece(index as u32, PushCodec::Zstd).unwrap();
        let (form, stored) = PieceForm::split(&piece).unwrap();
        assert_eq!(form, if index == 0 { PieceForm::ZstdBegins } else { PieceForm::ZstdContinues });
        decoder.piece(stored, expected.len(), &mut raw).unwrap();
        assert_eq!(raw, expected, "piece {index}");
        let piece = bundle.piece(index as u32, PushCodec::Lz4).unwrap();
        let (form, stored) = PieceForm::split(&piece).unwrap();
        assert_eq!(form, PieceForm::Lz4);
        codec::decode(codec::Codec::Lz4, stored, expected.len(), &mut raw).unwrap();
        assert_eq!(raw, expected, "piece {index} by itself");
        let piece = bundle.piece(index as u32, PushCodec::Stored).unwrap();
        assert_eq!(PieceForm::split(&piece), Some((PieceForm::Stored, &expected[..])));
        assert_eq!(bundle.piece_pages(index as u32), pages);
    }
    for codec in PushCodec::ALL {
        assert!(bundle.piece(3, codec).is_err());
    }
}

/// The bytes of a page of `content`.
fn page_of(content: &[u8], page: PageId) -> &[u8] {
    let start = page.index as usize * PAGE_BYTES;
    &content[start..(start + PAGE_BYTES).min(content.len())]
}

#[test]
fn a_stream_can_be_entered_at_each_restart_point() {
    let (image, content) = published(600);
    let store = Memory::new();
    let recipe = recipe(&image, 600);
    assert!(build(&store, &image, &recipe, &|| false).unwrap());
    let bundle = open(&store, &recipe).unwrap().unwrap();
    assert_eq!((bundle.piece_count(), bundle.restart_pieces), (19, 8));
    for first in [0, 8, 16] {
        let mut decoder = StreamDecoder::new(20).unwrap();
        for index in first..bundle.piece_count().min(first + 8) {
            let piece = bundle.piece(index, PushCodec::Zstd).unwrap();
            let (form, stored) = PieceForm::split(&piece).unwrap();
            assert_eq!(form == PieceForm::ZstdBegins, index == first);
            let pages = bundle.piece_pages(index).iter();
            let expected: Vec<u8> = pages.flat_map(|page| page_of(&content, *page)).copied().collect();
            let mut raw = Vec::new();
            decoder.piece(stored, expected.len(), &mut raw).unwrap();
            assert_eq!(raw, expected, "piece {index}");
        }
    }
    for (position, page) in recipe.pages.iter().enumerate() {
        assert_eq!(bundle.position(*page), Some(position as u32));
    }
    assert_eq!(bundle.position(PageId::new(recipe.pages[0].inode, 600)), None);
}

#[test]
fn a_new_bundle_takes_the_place_of_the_old_one_which_stays_readable() {
    let (image, _) = published(70);
    let store = Memory::new();
    let old = recipe(&image, 40);
    assert!(build(&store, &image, &old, &|| false).unwrap());
    let opened = open(&store, &old).unwrap().unwrap();
    let first = opened.piece(0, PushCodec::Zstd).unwrap();
    let new = Recipe { forms: BEST, ..recipe(&image, 70) };
    assert!(build(&store, &image, &new, &|| false).unwrap());
    assert_eq!(opened.piece(0, PushCodec::Zstd).unwrap(), first);
    let opened = open(&store, &new).unwrap().unwrap();
    assert_eq!((opened.pages.len(), opened.forms), (70, BEST));
    assert!(!opened.has(PushCodec::Stored) && opened.piece(0, PushCodec::Stored).is_err());
    assert!(Bundle::open(&store, image.id, ActionId(8)).unwrap().is_none());
}

#[test]
fn a_bundle_tells_what_it_lacks_of_its_action_and_what_it_has_too_much() {
    let (image, _) = published(70);
    let store = Memory::new();
    let recipe = recipe(&image, 60);
    build(&store, &image, &recipe, &|| false).unwrap();
    let bundle = open(&store, &recipe).unwrap().unwrap();
    assert_eq!(bundle.fit(&recipe.pages), Fit { lacking: 0, surplus: 0 });
    let file = recipe.pages[0].inode;
    let moved: Vec<PageId> = (10..70).rev().map(|index| PageId::new(file, index)).collect();
    assert_eq!(bundle.fit(&moved), Fit { lacking: 10, surplus: 10 });
    assert_eq!(bundle.fit(&recipe.pages[..50]), Fit { lacking: 0, surplus: 10 });
    assert!(bundle.lacking(&[moved[10], moved[9]]).eq([moved[9]]));
}

#[test]
fn fuzz_no_damaged_bundle_gives_a_wrong_piece() {
    let (image, _) = published(70);
    let recipe = recipe(&image, 70);
    let store = Memory::new();
    build(&store, &image, &recipe, &|| false).unwrap();
    let whole = store.get(&key(recipe.image, recipe.action), 1 << 20).unwrap();
    let pieces = |store: &Memory| -> Result<Vec<Bytes>, Failure> {
        let bundle = open(store, &recipe)?.ok_or_else(|| Failure::bad_request("gone"))?;
        let codecs = PushCodec::ALL;
        (0..3).flat_map(|index| codecs.map(|codec| bundle.piece(index, codec))).collect()
    };
    let expected = pieces(&store).unwrap();
    let mut rng = units::SplitMix64(3);
    // Every byte of header, table and list, and a sample of the pieces: each is covered by a hash.
    let head = size_of::<Header>() + 3 * size_of::<Piece>() + 70 * PAGE_NUMBER_BYTES;
    let places = (0..head).chain((0..200).map(|_| units::Rng::below(&mut rng, whole.len() as u64) as usize));
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        store.put_atomic(&key(recipe.image, recipe.action), &damaged).unwrap();
        assert!(pieces(&store).is_err(), "the damage at byte {at} was not noticed");
    }
    for length in [0, 10, head - 1, head, whole.len() - 1] {
        store.put_atomic(&key(recipe.image, recipe.action), &whole[..length]).unwrap();
        assert!(pieces(&store).is_err(), "cut at {length}");
    }
    store.put_atomic(&key(recipe.image, recipe.action), &[whole.clone(), vec![0]].concat()).unwrap();
    assert!(pieces(&store).is_err(), "one byte too many");
    store.put_atomic(&key(recipe.image, recipe.action), &whole).unwrap();
    assert_eq!(pieces(&store).unwrap(), expected);
}

#[test]
fn building_can_be_stopped_and_a_fault_leaves_no_bundle() {
    let (image, _) = published(70);
    let recipe = recipe(&image, 70);
    let store = Memory::new();
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 2
    };
    assert!(!build(&store, &image, &recipe, &stop).unwrap());
    assert!(open(&store, &recipe).unwrap().is_none());

    let counting = Fault::new(Arc::new(Memory::new()), FaultPlan::default());
    build(&counting, &image, &recipe, &|| false).unwrap();
    for operation in 0..counting.operations() {
        for kind in [FaultKind::ShortWrite, FaultKind::Full, FaultKind::CrashBefore] {
            let plan = FaultPlan { at: Some((operation, kind)), ..FaultPlan::default() };
            let fault = Fault::new(Arc::new(store.clone()), plan);
            build(&fault, &image, &recipe, &|| false).unwrap_err();
            assert!(open(&store, &recipe).unwrap().is_none(), "{kind:?} at {operation}");
        }
    }
}

#[test]
fn an_action_of_which_a_sixth_is_new_gets_its_bundle_before_the_next_start() {
    let (image, _) = published(400);
    let image = Arc::new(image);
    let file = image.metadata.resolve(b"/file").unwrap();
    let log = Logger::new(|_, _| {});
    let bundler = Bundler::start(Arc::new(Memory::new()), Arc::new(Metrics::default()), log).unwrap();
    let mut starts = 0;
    // Leaves out one page in so many.
    let mut start = |without: u32| {
        starts += 1;
        let mut predictor = locked(&image.predictor);
        let (token, now) = (Token(starts), Moment(1_000_000 * starts as u64));
        let pages = (0..400).filter(|index| index % without != 1);
        pages.for_each(|index| _ = predictor.touch(Reader::default(), token, PageId::new(file, index), now));
        predictor.end(token, now);
        let changed = predictor.take_changed();
        drop(predictor);
        bundler.keep_up(&image, changed, Moment(0));
        [Kind::Open, Kind::Quick].into_iter().for_each(|kind| bundler.wait(kind, Duration::MAX));
        image.bundles.get(ActionId(1)).map_or(0, |bundle| bundle.pages.len())
    };
    // The second and the third one are audits, and two pages that only the third one leaves out
    // stay. No start is charged for what came live.
    assert_eq!([6, 6, 100].map(&mut start), [333, 333, 398]);
    // The page that the next audit finds waits.
    (0..8).for_each(|_| assert_eq!(start(1000), 398));
    assert_eq!(locked(&image.predictor).action(ActionId(1)).unwrap().pages.len(), 399);
}
