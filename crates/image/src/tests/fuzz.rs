//! The fuzzer: mutated and random images must be refused or be wholly usable, never panic, never
//! loop.
//!
//! Three kinds of input: raw damage (mostly stopped by the superblock's hash), damage with the
//! superblock's hash made right, and changed fields of decoded sections with every hash, size and
//! offset made right, which is the only way into the deep validation.

use super::parts::{Parts, seal};
use super::tree::{everything, plain, random_fixture, random_tree};
use crate::format::*;
use crate::{ImageError, Limits, Metadata};
use units::{BlockId, ChunkId, InodeId, PageId, Rng, SplitMix64};

/// Uses everything an opened image offers.
fn exercise(metadata: &Metadata) {
    let mut text = String::new();
    crate::dump(metadata, &mut text).unwrap();
    assert!(text.starts_with("image "));
    for id in (0..=metadata.inode_count() + 1).map(InodeId) {
        for entry in metadata.entries(id) {
            assert_eq!(metadata.lookup(id, entry.name), Some(entry.inode));
        }
        assert!(metadata.extents(id).all(|run| run.chunks > 0));
        let pages = metadata.page_count(id);
        for index in [0, 1, 2, pages / 2, pages.saturating_sub(1), pages, u32::MAX] {
            let page = PageId::new(id, index);
            assert_eq!(metadata.page_chunks(page).is_some(), index < pages);
            let bytes = vec![0; metadata.page_bytes(page).unwrap_or(0)];
            let _ = metadata.verify_page(page, &bytes);
        }
        if let Some(path) = metadata.path(id) {
            assert_eq!(metadata.resolve(&path), Some(id));
            let _ = metadata.resolve_following(&path);
        }
        metadata.xattrs(id).for_each(|(name, _)| assert!(!name.is_empty()));
        assert!(metadata.symlink(id).is_none_or(|target| !target.is_empty()));
    }
    for chunk in (0..metadata.chunk_count()).map(ChunkId) {
        let place = metadata.chunk(chunk).unwrap();
        assert!(metadata.block_chunks(place.block).any(|other| other == chunk));
        let owner = metadata.chunk_owner(chunk).unwrap();
        assert!(metadata.page_chunks(owner).unwrap().chunks().any(|other| other == chunk));
    }
    let mut out = Vec::new();
    for block in (0..metadata.block_count()).map(BlockId) {
        assert!(metadata.decode_block(block, b"not it", &mut out).is_err());
    }
}

/// Values that stand at borders of something.
fn interesting(rng: &mut impl Rng, old: u32) -> u32 {
    match rng.below(8) {
        0 => 0,
        1 => u32::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ (1 << rng.below(32)),
        5 => rng.below(64) as u32,
        6 => old.wrapping_add(4096),
        _ => rng.next_u64() as u32,
    }
}

/// Changes one to three fields of random sections, or a section's length.
fn mutate_parts(rng: &mut impl Rng, parts: &mut Parts) {
    for _ in 0..1 + rng.below(3) {
        let which = rng.below(parts.sections.len() as u64) as usize;
        let raw = &mut parts.sections[which].2;
        if raw.len() < 4 || rng.below(10) == 0 {
            let bytes = raw.len() + rng.below(9) as usize;
            raw.resize(bytes.saturating_sub(4), 0);
            continue;
        }
        let at = rng.below(raw.len() as u64 / 4) as usize * 4;
        let old = u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        raw[at..at + 4].copy_from_slice(&interesting(rng, old).to_le_bytes());
    }
    if rng.below(4) == 0 {
        // Let the counts follow the sections, so that added and removed records are judged too.
        let count = |parts: &mut Parts, kind, bytes: usize| (parts.section(kind).len() / bytes) as u32;
        let inodes = count(parts, SECTION_INODES, size_of::<Inode>());
        let extents = count(parts, SECTION_EXTENTS, size_of::<Extent>());
        parts.superblock.inode_count.set(inodes);
        parts.superblock.extent_count.set(extents);
    }
}

#[derive(Default, Debug)]
struct Outcome {
    opened: usize,
    deep: usize,
    shallow: usize,
}

fn fuzz(seed: u64, rounds: usize) -> Outcome {
    let mut rng = SplitMix64(seed);
    let mut outcome = Outcome::default();
    let mut image = plain().pack(&everything()).unwrap();
    let mut pristine = Parts::of(&image);
    for round in 0..rounds {
        if round % 100 == 99 {
            let fixture = random_fixture(&mut rng);
            image = fixture.pack(&random_tree(&mut rng, 1 << fixture.params.chunk_shift)).unwrap();
            pristine = Parts::of(&image);
        }
        let mut mutant = image.clone();
        match rng.below(8) {
            0 => mutant = (0..rng.below(9000)).map(|_| rng.next_u64() as u8).collect(),
            1 => {
                let at = rng.below(mutant.len() as u64) as usize;
                mutant[at] ^= 1 << rng.below(8);
            }
            2 => {
                let at = rng.below(128 + 64 * 11) as usize;
                mutant[at] = rng.next_u64() as u8;
                seal(&mut mutant);
            }
            _ => {
                let mut parts = pristine.clone();
                mutate_parts(&mut rng, &mut parts);
                mutant = parts.assemble();
            }
        }
        match Metadata::open(&mutant, &Limits::default()) {
            Ok(metadata) => {
                exercise(&metadata);
                outcome.opened += 1;
            }
            Err(ImageError::Corrupt { section, .. }) if section != "superblock" => outcome.deep += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                outcome.shallow += 1;
            }
        }
    }
    outcome
}

#[test]
fn fuzz_open_survives_hostile_images() {
    let outcome = fuzz(2, 20_000);
    // The canary on reach: inputs must get as far as the deep validation, and some must be harmless
    // changes that pass it (an owner, a time, a device number), or the accessors are not exercised.
    assert!(outcome.deep > 5000, "{outcome:?}");
    assert!(outcome.opened > 1000, "{outcome:?}");
    assert!(outcome.shallow > 1000, "{outcome:?}");
}

/// The canary on judgement: were the rule against cycles absent, exercising this image would never
/// end; so the fuzzer would notice. It must be refused.
#[test]
fn fuzz_canary_a_directory_cycle_is_refused() {
    let mut parts = Parts::of(&plain().pack(&everything()).unwrap());
    let metadata = super::open(&parts.assemble()).unwrap();
    let (outer, inner) =
        (metadata.resolve(b"home/\xff\xfe").unwrap(), metadata.resolve(b"home/\xff\xfe/deep").unwrap());
    // The entry "home/\xff\xfe" is made to name its own subdirectory, and the subdirectory's entry
    // to name it.
    let size = size_of::<Entry>();
    let entry_of = |id: InodeId| metadata.raw_inode(id).unwrap().entry.get() as usize * size + 4;
    let inode_of = |id: InodeId| (id.0 as usize - 1) * size_of::<Inode>() + 48;
    let (of_outer, of_inner) =
        (metadata.raw_inode(outer).unwrap().entry.get(), metadata.raw_inode(inner).unwrap().entry.get());
    parts.set(SECTION_ENTRIES, entry_of(outer), inner.0);
    parts.set(SECTION_ENTRIES, entry_of(inner), outer.0);
    parts.set(SECTION_INODES, inode_of(outer), of_inner);
    parts.set(SECTION_INODES, inode_of(inner), of_outer);
    let error = super::open(&parts.assemble()).unwrap_err().to_string();
    assert!(error.contains("number of a subdirectory"), "{error}");
}
