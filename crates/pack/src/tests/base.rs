//! Updates of a base: the image is that of the tree, and keeps the blocks of what did not change.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use image::{Codec, Filter, Metadata};
use profile::{Hot, HotFile};
use proptest::prelude::*;
use units::{BlockId, Rng, SplitMix64};

use super::build::*;
use super::recompress::gzip;
use crate::compare::{CompareOptions, assert_equal, compare};
use crate::{BaseReport, FileImage, Method, Options, PackError, Report, Silent, Stages, pack};

/// The same text for a seed, other text for another.
fn text(seed: u64, lines: u64) -> String {
    (0..lines).map(|line| format!("line {line} of {seed}: {}\n", (line + 7) * (seed + 13) % 9973)).collect()
}

/// Long words out of two thousand, which only a dictionary makes short.
fn words(seed: u64) -> String {
    let mut random = SplitMix64(seed);
    let word = |_| {
        let number = random.below(2000);
        blake3::hash(&number.to_le_bytes()).to_hex()[..24].to_string() + "\n"
    };
    (0..800).map(word).collect()
}

/// Machine code (this program's own), texts, dense and compressed files.
fn tree(base: &Path) {
    let program = fs::read("/proc/self/exe").unwrap();
    write(&base.join("bin/program"), &program[..program.len().min(3 << 20)]);
    for index in 0..40u64 {
        write(&base.join(format!("doc/text-{index}")), text(index, 900));
        write(&base.join(format!("doc/dense-{index}")), noise(index, 5000));
        write(&base.join(format!("gz/{index}.gz")), gzip(9, text(index + 100, 300).as_bytes()).unwrap_or_default());
    }
}

fn small() -> Options {
    Options { stages: Stages::ALL, derive_hashes: true, level: Some(3), ..quick() }
}

fn opened(image: &Path) -> Metadata {
    Metadata::open(&FileImage::open(image).unwrap(), &Default::default()).unwrap()
}

/// The hashes of the blocks of an image.
fn hashes(image: &Path) -> Vec<[u8; 32]> {
    let metadata = opened(image);
    (0..metadata.block_count()).map(|block| metadata.block_hash(BlockId(block)).unwrap()).collect()
}

/// Packs with a base and checks all that holds for every update.
#[track_caller]
fn update(source: &Path, base: &Path, out: &Path, options: &Options) -> (Report, BaseReport) {
    let report = packed(directory(source), out, &Options { base: Some(base.into()), ..options.clone() });
    let target = out.with_extension("extracted");
    unpack(out, &target).unwrap();
    assert_equal(source, &target, &CompareOptions::default());
    let found = report.base.unwrap();
    let old: BTreeSet<_> = hashes(base).into_iter().collect();
    let new = hashes(out);
    assert!(new.iter().filter(|hash| old.contains(*hash)).count() as u64 >= found.reused_blocks);
    assert_eq!((found.reused_blocks + found.new_blocks, found.base_blocks), (report.blocks, hashes(base).len() as u64));
    let metadata = opened(out);
    let raw: u64 =
        (0..metadata.block_count()).map(|id| u64::from(metadata.block(BlockId(id)).unwrap().raw_bytes)).sum();
    assert_eq!(raw, report.chunks.unique_bytes + found.dead_bytes);
    assert!(found.dead_bytes * 50 <= raw, "{} dead of {raw}", found.dead_bytes);
    (report, found)
}

struct Scene {
    scratch: tempfile::TempDir,
    source: PathBuf,
    old: PathBuf,
    new: PathBuf,
}

/// A tree and its image.
fn scene(options: &Options) -> Scene {
    let scratch = scratch();
    let at = |name| scratch.path().join(name);
    let (source, old, new) = (at("source"), at("old.rnl"), at("new.rnl"));
    tree(&source);
    packed(directory(&source), &old, options);
    Scene { source, old, new, scratch }
}

#[test]
fn an_unchanged_tree_gives_the_same_image_whatever_the_options() {
    let hot = || {
        let pages = (0..60).collect();
        let files = vec![HotFile { path: b"doc/text-3".to_vec(), size: text(3, 900).len() as u64, pages }];
        Hot { files, ..Hot::default() }
    };
    let all = [
        quick(),
        small(),
        Options { hot: hot(), hot_block_bytes: Some(256 << 10), ..small() },
        Options { codec: Codec::Xz, ..small() },
        Options { codec: Codec::Lz4, block_bytes: 16 << 10, ..small() },
        Options { codec: Codec::Stored, level: None, ..quick() },
    ];
    for options in all {
        let scene = scene(&options);
        let (_, found) = update(&scene.source, &scene.old, &scene.new, &options);
        assert_eq!((found.new_blocks, found.dead_bytes), (0, 0));
        assert!(fs::read(&scene.old).unwrap() == fs::read(&scene.new).unwrap(), "{options:?}");
    }
}

#[test]
fn one_changed_file_makes_few_new_blocks_and_no_threads_show() {
    for options in [quick(), small()] {
        let scene = scene(&options);
        let changed = text(7, 900).replace("line 800 of 7", "a line that is longer than it was");
        write(&scene.source.join("doc/text-7"), changed);
        write(&scene.source.join("gz/7.gz"), gzip(9, text(1000, 300).as_bytes()).unwrap_or_default());
        write(&scene.source.join("doc/text-30"), [text(30, 900).as_bytes(), b"and a line at the end\n"].concat());
        let (report, found) = update(&scene.source, &scene.old, &scene.new, &options);
        assert!(found.reused_blocks * 10 >= found.base_blocks * 9 && found.new_blocks <= 3, "{found:?}");
        assert!(found.dead_bytes > 0);
        // Pages before the change stay: of each file there is one old page less than half of it.
        assert!(found.new_bytes * 20 < found.reused_bytes, "{found:?}");
        let again = Options { threads: 1, base: Some(scene.old.clone()), ..options.clone() };
        let other = scene.scratch.path().join("again.rnl");
        assert_eq!(packed(directory(&scene.source), &other, &again).id, report.id, "threads show");
    }
}

#[test]
fn dictionaries_are_kept_and_serve_new_blocks_too() {
    let options = Options { block_bytes: 8192, chunk_bytes: Some(4096), ..small() };
    let scene = scene(&options);
    for index in 0..160 {
        write(&scene.source.join(format!("doc/words-{index}")), words(index));
    }
    let first = packed(directory(&scene.source), &scene.old, &options);
    let dictionaries = |image: &Path| opened(image).dictionaries(&FileImage::open(image).unwrap()).unwrap();
    let old = dictionaries(&scene.old);
    assert!(first.bytes_dictionaries > 0);
    write(&scene.source.join("doc/words-50"), words(1000));
    let (_, found) = update(&scene.source, &scene.old, &scene.new, &options);
    assert!(dictionaries(&scene.new) == old && found.new_blocks > 0);
    let known: BTreeSet<_> = hashes(&scene.old).into_iter().collect();
    let metadata = opened(&scene.new);
    let new = hashes(&scene.new).into_iter().zip(0..).filter(|(hash, _)| !known.contains(hash));
    let uses = new.filter(|(_, id)| metadata.block(BlockId(*id)).unwrap().dictionary.is_some()).count();
    assert!(uses > 0, "no new block uses one: {found:?}");
    // A base of which nothing is kept gives none either.
    let other = scene.scratch.path().join("other");
    write(&other.join("text"), text(5000, 2000));
    let (report, found) = update(&other, &scene.old, &scene.scratch.path().join("other.rnl"), &options);
    assert_eq!((found.reused_blocks, report.bytes_dictionaries), (0, 0));
}

#[test]
fn filtered_code_stays_only_where_it_decodes_alike() {
    // Each chunk is its own block, so that none is left for lack of others.
    let options = Options { block_bytes: 4096, chunk_bytes: Some(4096), ..small() };
    let scene = scene(&options);
    let filtered = |image: &Path| {
        let metadata = opened(image);
        let blocks = (0..metadata.block_count()).filter_map(|id| metadata.block(BlockId(id)));
        blocks.filter(|block| block.filter.is_of_chunks()).count()
    };
    if filtered(&scene.old) == 0 {
        eprintln!("skipped: this program's code has no filter");
        return;
    }
    // The same pages one page further on in a file that comes first.
    let program = fs::read(scene.source.join("bin/program")).unwrap();
    fs::remove_file(scene.source.join("bin/program")).unwrap();
    write(&scene.source.join("bin/a"), [&noise(9, 4096), &program[..]].concat());
    let (_, found) = update(&scene.source, &scene.old, &scene.new, &options);
    assert!(found.new_blocks as usize > filtered(&scene.old) / 2, "{found:?}");
    assert!(found.reused_blocks > 100, "{found:?}");
}

#[test]
fn a_base_of_other_options_is_used_as_far_as_it_goes() {
    let old = Options { codec: Codec::Xz, block_bytes: 256 << 10, ..small() };
    let scene = scene(&old);
    write(&scene.source.join("doc/text-1"), text(1000, 900));
    let other = Options { codec: Codec::Lz4, block_bytes: 32 << 10, stages: Stages::STREAM, ..quick() };
    let (_, found) = update(&scene.source, &scene.old, &scene.new, &other);
    assert!(found.reused_blocks + 1 >= found.base_blocks, "{found:?}");
    assert_eq!(opened(&scene.new).chunk_bytes(), 4096);
    let has_text = |image: &Path| {
        let metadata = opened(image);
        let mut blocks = (0..metadata.block_count()).filter_map(|id| metadata.block(BlockId(id)));
        blocks.any(|block| block.filter == Filter::Deflate)
    };
    assert!(has_text(&scene.old) || gzip(9, b"").is_none());
    // A kernel with runnelfs lacks what some blocks need: those are made anew.
    let best = Options { level: Some(19), ..small() };
    let scene_zstd = super::base::scene(&best);
    assert!(has_text(&scene_zstd.old) || gzip(9, b"").is_none());
    fs::create_dir(scene_zstd.source.join("sbin")).unwrap();
    write(&scene_zstd.source.join("sbin/init"), b"#!/bin/sh\n");
    fs::set_permissions(scene_zstd.source.join("sbin/init"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    for folder in ["dev", "proc", "sys", "run"] {
        fs::create_dir(scene_zstd.source.join(folder)).unwrap();
    }
    let plain = Stages { recompress: false, dictionary: false, ..Stages::ALL };
    let bootable = Options { bootable: true, stages: plain, ..best };
    let (report, found) = update(&scene_zstd.source, &scene_zstd.old, &scene_zstd.new, &bootable);
    let metadata = opened(&scene_zstd.new);
    let blocks: Vec<_> = (0..metadata.block_count()).filter_map(|id| metadata.block(BlockId(id))).collect();
    assert!(blocks.iter().all(|block| block.dictionary.is_none() && block.filter != Filter::Deflate));
    assert!(found.reused_blocks > 0 && report.bytes_dictionaries == 0, "{found:?}");
}

#[test]
fn what_a_trace_calls_hot_lies_in_hot_blocks_of_an_update_too() {
    let hot = |name: u64| {
        let file =
            HotFile { path: format!("doc/text-{name}").into(), size: text(name, 900).len() as u64, pages: vec![0, 1] };
        Options { hot: Hot { files: vec![file], ..Hot::default() }, ..small() }
    };
    let scene = scene(&hot(3));
    let is_hot = |image: &Path, name: u64| {
        let metadata = opened(image);
        let inode = metadata.resolve(format!("/doc/text-{name}").as_bytes()).unwrap();
        let chunks = metadata.page_chunks(units::PageId::new(inode, 0)).unwrap();
        let first = chunks.chunks().next().unwrap();
        metadata.chunk(first).unwrap().block.0 < metadata.hot_blocks()
    };
    assert!(is_hot(&scene.old, 3) && !is_hot(&scene.old, 4));
    update(&scene.source, &scene.old, &scene.new, &hot(4));
    assert!(is_hot(&scene.new, 4) && !is_hot(&scene.new, 3));
    // Without a trace hot blocks stay what they are.
    update(&scene.source, &scene.old, &scene.scratch.path().join("none.rnl"), &small());
    assert!(is_hot(&scene.scratch.path().join("none.rnl"), 3));
}

#[test]
fn a_chain_of_updates_keeps_its_dead_bytes_bounded() {
    let scene = scene(&small());
    let mut base = scene.old.clone();
    let mut reused = 0;
    for round in 0..5u64 {
        for index in (round..40).step_by(5) {
            write(&scene.source.join(format!("doc/text-{index}")), text(index + 1000 * (round + 1), 900));
        }
        fs::remove_file(scene.source.join(format!("doc/dense-{round}"))).unwrap();
        let out = scene.scratch.path().join(format!("{round}.rnl"));
        reused += update(&scene.source, &base, &out, &small()).1.reused_blocks;
        base = out;
    }
    assert!(reused > 100, "{reused}");
    let (fresh, last) = (scene.new, fs::metadata(base).unwrap().len());
    let fresh = packed(directory(&scene.source), &fresh, &small()).bytes_out;
    assert!(last * 100 < fresh * 115, "{last} bytes, packed afresh {fresh}");
}

#[test]
fn hostile_bases_are_refused_by_name_and_nothing_is_written() {
    let scene = scene(&small());
    let whole = fs::read(&scene.old).unwrap();
    let bad = scene.scratch.path().join("bad.rnl");
    let refused = |bytes: &[u8], expected: &str| {
        write(&bad, bytes);
        let options = Options { base: Some(bad.clone()), ..small() };
        let error = pack(directory(&scene.source), &scene.new, &options, &Silent).unwrap_err();
        assert!(matches!(error, PackError::Base { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains("bad.rnl") && error.contains(expected), "{error}");
        assert!(!scene.new.exists());
    };
    refused(b"a text, and no image at all", "image");
    refused(&whole[..whole.len() - 1], "");
    refused(&[], "");
    let at = |offset: usize| {
        let mut bytes = whole.clone();
        bytes[offset] ^= 1;
        bytes
    };
    let metadata = opened(&scene.old);
    for block in [0, metadata.block_count() / 2, metadata.block_count() - 1] {
        let entry = metadata.block(BlockId(block)).unwrap();
        refused(&at(entry.file_offset as usize + entry.stored_bytes as usize / 2), &format!("block {block}"));
    }
    refused(&at(whole.len() - 1), "");
    refused(&at(200), "");
    let missing = Options { base: Some(scene.scratch.path().join("missing.rnl")), ..small() };
    let error = pack(directory(&scene.source), &scene.new, &missing, &Silent).unwrap_err();
    assert!(error.to_string().contains("missing.rnl"), "{error}");
}

#[test]
fn options_that_no_base_has_are_refused() {
    let scene = scene(&quick());
    let base = || Some(scene.old.clone());
    let refused = |options: Options, expected: &str| {
        let error = pack(directory(&scene.source), &scene.new, &options, &Silent).unwrap_err();
        assert!(matches!(error, PackError::Option { .. }) && error.to_string().contains(expected), "{error}");
    };
    refused(
        Options { base: base(), chunk_bytes: Some(1024), ..quick() },
        "chunk size is 1024, must be 4096, as in the base",
    );
    let stages = Stages { deduplicate: false, ..Stages::STREAM };
    refused(Options { base: base(), stages, ..quick() }, "deduplication is off, must be on with a base");
    refused(Options { base: base(), explain: true, ..quick() }, "explaining is on, must be off with a base");
}

/// A file of a random tree: its name, and pages by the seed of each.
type Files = Vec<(u8, Vec<u64>)>;

fn lay_out(source: &Path, files: &Files) {
    let _ = fs::remove_dir_all(source);
    fs::create_dir_all(source).unwrap();
    for (name, seeds) in files {
        let page = |seed: &u64| match seed {
            0 => vec![0; 4096],
            seed if seed % 3 == 0 => text(*seed, 400).into_bytes()[..4096].to_vec(),
            seed => noise(*seed, 4096 - (*seed as usize % 2) * 1000),
        };
        write(&source.join(name.to_string()), seeds.iter().flat_map(page).collect::<Vec<u8>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn prop_updates_of_random_trees_come_back_and_are_the_same_for_all_threads(
        versions in proptest::collection::vec(
            proptest::collection::vec((0..6u8, proptest::collection::vec(0..40u64, 0..12)), 0..10), 2..5,
        ),
        pages in 1..=4u32,
        greedy in any::<bool>(),
    ) {
        let scratch = scratch();
        let source = scratch.path().join("source");
        let sort = if greedy { Method::Greedy } else { Method::None };
        let options = Options { block_bytes: pages * 4096, stages: Stages { sort, ..Stages::ALL }, ..quick() };
        let mut base = None;
        for (index, files) in versions.iter().enumerate() {
            lay_out(&source, files);
            let out = scratch.path().join(format!("{index}.rnl"));
            let options = Options { base: base.clone(), ..options.clone() };
            let report = packed(directory(&source), &out, &options);
            let target = scratch.path().join(format!("{index}"));
            unpack(&out, &target).unwrap();
            let found = compare(&source, &target, &CompareOptions::default()).unwrap();
            prop_assert!(found.differences.is_empty(), "{:?}", found.differences);
            let one = scratch.path().join("one.rnl");
            prop_assert_eq!(packed(directory(&source), &one, &Options { threads: 1, ..options }).id, report.id);
            base = Some(out);
        }
    }
}
