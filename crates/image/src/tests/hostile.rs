//! Damaged and hostile images: every flipped byte, every truncation, and every rule of the format
//! broken by itself.

use super::parts::{Parts, seal};
use super::tree::{dictionary, everything, plain};
use super::{check, open};
use crate::fixture::Fixture;
use crate::format::*;
use crate::{Codec, Filter, ImageError, Limits, Metadata};
use units::{Rng, SplitMix64};

pub(super) fn image() -> Vec<u8> {
    plain().pack(&everything()).unwrap()
}

#[test]
fn every_flipped_byte_is_detected() {
    let mut image = image();
    check(&image).unwrap();
    for at in 0..image.len() {
        for mask in [0x01, 0x80, 0xff] {
            image[at] ^= mask;
            assert!(check(&image).is_err(), "byte {at} ^ {mask:#x} went unnoticed");
            image[at] ^= mask;
        }
    }
    check(&image).unwrap();
}

#[test]
fn every_flipped_byte_of_a_compressed_image_is_detected() {
    let mut fixture = plain();
    fixture.params.metadata_codec = Codec::Zstd;
    fixture.codecs = vec![Codec::Zstd, Codec::Lz4, Codec::Xz];
    let mut image = fixture.pack(&everything()).unwrap();
    for at in 0..image.len() {
        image[at] ^= 0x10;
        assert!(check(&image).is_err(), "byte {at} went unnoticed");
        image[at] ^= 0x10;
    }
}

#[test]
fn every_truncation_and_addition_is_detected() {
    let image = image();
    for bytes in 0..image.len() {
        let error = open(&image[..bytes]).unwrap_err();
        assert!(matches!(error, ImageError::FileLength { .. }), "at {bytes}: {error}");
    }
    for more in [1, 100] {
        let longer = [&image[..], &vec![0; more]].concat();
        assert!(matches!(open(&longer), Err(ImageError::FileLength { .. })));
    }
}

/// Whatever codes the blocks and the metadata, and whether the chunk hashes are in the file or
/// follow from the blocks.
#[test]
fn three_thousand_flips_and_two_hundred_truncations_of_every_kind_of_image_are_detected() {
    let mut rng = SplitMix64(20);
    for derive in [false, true] {
        for (index, mut fixture) in super::contradiction::codecs().into_iter().enumerate() {
            fixture.params.derive_hashes = derive;
            fixture.params.metadata_codec = [Codec::Zstd, Codec::Xz, Codec::Lz4][index % 3];
            let mut image = fixture.pack(&everything()).unwrap();
            check(&image).unwrap();
            for _ in 0..3000 {
                let at = rng.below(image.len() as u64) as usize;
                let mask = 1 + rng.below(255) as u8;
                image[at] ^= mask;
                assert!(check(&image).is_err(), "byte {at} ^ {mask:#x} of fixture {index}, derive {derive}");
                image[at] ^= mask;
            }
            for _ in 0..200 {
                let bytes = rng.below(image.len() as u64) as usize;
                assert!(check(&image[..bytes]).is_err(), "{bytes} bytes of fixture {index}, derive {derive}");
            }
        }
    }
}

#[test]
fn other_files_are_called_no_image() {
    for other in [&b"\x7fELF"[..], &[0; 5000], &[b'x'; 4096], b"hello"] {
        let error = open(other).unwrap_err();
        assert!(matches!(error, ImageError::Magic { .. }), "{error}");
        assert!(error.to_string().contains("not a Runnel image"), "{error}");
    }
}

#[test]
fn an_image_without_its_superblock_is_no_image() {
    // A packer that was stopped leaves the first page zero.
    let mut torn = image();
    torn[..4096].fill(0);
    assert!(matches!(open(&torn), Err(ImageError::Magic { .. })));
}

/// Changes bytes of the superblock, makes its hash right, and returns what opening says.
fn with_superblock(change: impl FnOnce(&mut [u8])) -> String {
    let mut image = image();
    change(&mut image[..4096]);
    seal(&mut image);
    open(&image).unwrap_err().to_string()
}

#[test]
fn a_newer_image_asks_for_a_newer_runnel() {
    let newer = "needs a newer runnel";
    assert!(with_superblock(|s| s[8] = 2).contains(newer));
    assert!(with_superblock(|s| s[12] = 64).contains(newer));
    // A codec, a section flag, and a required kind this version does not know.
    assert!(with_superblock(|s| s[128 + 4] = 9).contains(newer));
    assert!(with_superblock(|s| s[128 + 5] = 4).contains(newer));
    let mut parts = Parts::of(&image());
    parts.sections.push((77, 0, b"unknown".to_vec()));
    assert!(open(&parts.assemble()).unwrap_err().to_string().contains(newer));
    let mut parts = Parts::of(&image());
    parts.section(SECTION_BLOCKS)[8] = 9;
    assert!(open(&parts.assemble()).unwrap_err().to_string().contains(newer));
}

#[test]
fn optional_sections_are_skipped_but_verified() {
    let mut parts = Parts::of(&image());
    parts.sections.push((SECTION_PROFILE, SECTION_OPTIONAL, b"some profile".to_vec()));
    parts.sections.push((1000, SECTION_OPTIONAL, b"from the future".to_vec()));
    let mut image = parts.assemble();
    let metadata = open(&image).unwrap();
    check(&image).unwrap();
    let profile = metadata.optional_section(&&image[..], SECTION_PROFILE).unwrap();
    assert_eq!(profile.as_deref(), Some(&b"some profile"[..]));
    assert_eq!(metadata.optional_section(&&image[..], SECTION_SIGNATURE).unwrap(), None);
    assert_eq!(metadata.optional_section(&&image[..], SECTION_INODES).unwrap(), None);
    let last = image.len() - 1;
    image[last] ^= 1;
    assert!(matches!(open(&image), Err(ImageError::SectionHash { .. })));
}

#[test]
fn every_rule_of_the_superblock_holds() {
    let cases: [(usize, u8, &str); 18] = [
        (8, 0, "format version"),
        (10, 13, "chunk size"),
        (10, 7, "chunk size"),
        (11, 1, "reserved"),
        (24, 1, "end of the metadata region"),
        (40, 1, "raw size of a block"),
        (42, 1, "largest raw size"),
        (44, 200, "raw size of a section"),
        (60, 200, "raw size of a section"),
        (64, 63, "number of sections"),
        (64, 13, "section kind"),
        (128 + 2 * 64 + 6, 1, "newer runnel: filter"),
        (128 + 4 * 64 + 6, 2, "newer runnel: filter"),
        (69, 1, "reserved"),
        (72, 1, "hot blocks"),
        (76, 1, "reserved"),
        (12, 32 | 2, "dictionary sections"),
        (4095, 1, "reserved"),
    ];
    for (at, value, expected) in cases {
        let error = with_superblock(|s| s[at] = value);
        assert!(error.contains(expected), "byte {at} = {value}: {error}");
    }
}

#[test]
fn every_rule_of_the_section_table_holds() {
    // What is added to which byte of the first entry.
    let cases: [(usize, u8, &str); 9] = [
        (0, 2, "section kind"),
        (0, 255, "section kind"),
        (5, 1, "flags of a required section"),
        (7, 1, "reserved"),
        (6, 3, "newer runnel: filter"),
        (8, 1, "start of a section"),
        (16, 1, "stored size"),
        (24, 1, "stored size"),
        (32, 1, "is damaged"),
    ];
    for (at, more, expected) in cases {
        let error = with_superblock(|s| s[128 + at] = s[128 + at].wrapping_add(more));
        assert!(error.contains(expected), "byte {at} + {more}: {error}");
    }
}

#[test]
fn a_missing_section_is_named() {
    for kind in SECTIONS_REQUIRED.into_iter().chain([SECTION_BLOCK_HASHES]) {
        let mut parts = Parts::of(&image());
        let i = parts.sections.iter().position(|section| section.0 == kind).unwrap();
        let last = parts.sections.len() - 1;
        parts.sections.remove(i);
        parts.superblock.sections[last] = zerocopy::FromZeros::new_zeroed();
        let error = open(&parts.assemble()).unwrap_err().to_string();
        let name = crate::section_name(kind);
        assert!(error.contains(&format!("section {name}, ")) && error.contains("sections of this kind"), "{error}");
    }
}

/// The older layout of the block table has rules of its own.
#[test]
fn every_rule_of_blocks_that_hold_their_hashes_holds() {
    let mut fixture = plain();
    fixture.params.derive_hashes = true;
    let pristine = Parts::of(&fixture.pack(&everything()).unwrap());
    let cases = [
        (0, 4097, "start of a block"),
        (8, 1, "raw start"),
        (16, 1, "stored size"),
        (20, 0, "raw size of a block"),
        (28, 1, "size of an expansion"),
    ];
    for (at, value, expected) in cases {
        let mut parts = pristine.clone();
        parts.set(SECTION_BLOCKS, at, value);
        let Err(ImageError::Corrupt { what, offset, .. }) = open(&parts.assemble()) else { panic!("byte {at}") };
        assert!(what.contains(expected) && offset == at as u64, "byte {at}: {what} at {offset}");
    }
    // Hashes that have their own section do not go with hashes that are derived.
    let mut parts = pristine;
    let features = parts.superblock.features.get();
    parts.superblock.features.set(features | FEATURE_BLOCK_HASHES);
    assert!(open(&parts.assemble()).is_err());
}

#[test]
fn hashes_of_blocks_are_stored_as_they_are() {
    let mut image = image();
    let at = open(&image).unwrap().section_report().iter().position(|s| s.kind == SECTION_BLOCK_HASHES).unwrap();
    image[128 + 64 * at + 4] = Codec::Zstd.to_u8();
    seal(&mut image);
    assert!(open(&image).unwrap_err().to_string().contains("codec of the hashes of blocks"));
}

#[test]
fn limits_bound_what_is_read() {
    let image = image();
    let limits = Limits::default();
    let superblock = open(&image).unwrap().superblock().clone();
    let cases = [
        Limits { metadata_bytes_max: superblock.metadata_bytes - 1, ..limits },
        Limits { inodes_max: superblock.inode_count - 1, ..limits },
        Limits { entries_max: superblock.entry_count - 1, ..limits },
        Limits { chunks_max: superblock.chunk_count - 1, ..limits },
        Limits { blocks_max: superblock.block_count - 1, ..limits },
        Limits { block_bytes_max: superblock.block_bytes - 1, ..limits },
        Limits { depth_max: 2, ..limits },
    ];
    for limits in cases {
        let error = Metadata::open(&&image[..], &limits).unwrap_err();
        assert!(matches!(error, ImageError::Limit { .. }), "{error}");
    }
    // Sections that claim to be large are refused before anything is allocated for them.
    let claim = with_superblock(|s| s[128 + 24..128 + 32].copy_from_slice(&u64::MAX.to_le_bytes()));
    assert!(claim.contains("limit"), "{claim}");
}

/// One broken rule: section, byte offset, new value, and what the error must say.
type Case = (u32, usize, u32, &'static str);

fn expect(cases: &[Case]) {
    let pristine = Parts::of(&image());
    for &(kind, at, value, expected) in cases {
        let mut parts = pristine.clone();
        assert_ne!(parts.get(kind, at), value, "section {kind} byte {at} has this value already");
        parts.set(kind, at, value);
        match open(&parts.assemble()) {
            Err(ImageError::Corrupt { what, .. }) => {
                assert!(what.contains(expected), "section {kind} byte {at} = {value}: {what}");
            }
            other => panic!("section {kind} byte {at} = {value}: {other:?}"),
        }
    }
}

/// Byte offset of an inode, found by its path, in its section.
fn inode_at(path: &[u8]) -> usize {
    (open(&image()).unwrap().resolve(path).unwrap().0 as usize - 1) * size_of::<Inode>()
}

#[test]
fn every_rule_of_inodes_holds() {
    let (file, dir, link) = (inode_at(b"bin/sudo"), inode_at(b"home"), inode_at(b"bin/sh"));
    let (pipe, char) = (inode_at(b"pipe"), inode_at(b"null"));
    let kind = SECTION_INODES;
    expect(&[
        (kind, 0, 0o100644, "root's type"),
        (kind, file, 0o644, "file type"),
        (kind, file, 0o644 | 0o170000, "file type"),
        (kind, file, 0o100644 | (1 << 16), "reserved"),
        (kind, file + 12, 3, "link count"),
        (kind, dir + 12, 9, "link count"),
        (kind, file + 32, 1_000_000_000, "nanoseconds"),
        (kind, file + 36, 2, "xattr set"),
        (kind, file + 16, 0, "number of extents"),
        (kind, file + 16, 5000, "length of a chunk inside"),
        (kind, file + 20, 1 << 16, "size of a file"),
        (kind, dir + 16, 1, "size of no file"),
        (kind, pipe + 16, 1, "size of no file"),
        (kind, char + 16, 1, "size of no file"),
        (kind, link + 16, 0, "length of a link target"),
        (kind, link + 16, 4096, "length of a link target"),
        (kind, link + 52, u32::MAX, "end of a link target"),
        (kind, file + 52, 1, "payload"),
        (kind, dir + 52, 1, "payload"),
        (kind, 40, 1, "first extent"),
        (kind, 44, 1, "first entry"),
        (kind, file + 40, 1, "number of extents of no file"),
        (kind, file + 40, u32::MAX, "first extent"),
        (kind, dir + 40, 0, "first extent"),
        (kind, dir + 44, u32::MAX, "first entry"),
        (kind, file + 48, 0, "first entry that names"),
        (kind, dir + 48, 0, "first entry that names"),
        (kind, 48, 0, "entry of the root"),
    ]);
}

#[test]
fn every_rule_of_directories_holds() {
    let entry_bytes = size_of::<Entry>();
    let metadata = open(&image()).unwrap();
    let number = |path: &[u8]| metadata.resolve(path).unwrap().0;
    // Entries of the root come first, in the order of their names.
    let root: Vec<_> = metadata.entries(units::InodeId::ROOT).map(|entry| entry.name.to_vec()).collect();
    let at = |name: &[u8]| root.iter().position(|other| other == name).unwrap() * entry_bytes;
    let deep = (0..metadata.tables.entries.len())
        .find(|&i| metadata.tables.entries.get(i).unwrap().inode.get() == number(b"home/\xff\xfe/deep"))
        .unwrap() as usize;
    let kind = SECTION_ENTRIES;
    expect(&[
        (kind, 4, 0, "the inode, at most"),
        (kind, 4, metadata.inode_count() + 1, "the inode, at most"),
        (kind, at(b"bin") + 4, 1, "number of a subdirectory"),
        (kind, deep * entry_bytes + 4, number(b"home"), "number of a subdirectory"),
        (kind, deep * entry_bytes + 4, number(b"home/\xff\xfe"), "number of a subdirectory"),
        (kind, at(b"vacant") + 4, number(b"home"), "number of names of a directory"),
        (kind, at(b"pipe") + 4, number(b"vacant"), "first entry that names"),
        (kind, at(b"vacant") + 4, number(b"pipe"), "link count"),
        (kind, at(b"null") + 4, number(b"disk"), "number of entries that name"),
        (kind, 0, 1, "offset of a name"),
        (kind, entry_bytes, 0, "length of a name"),
        (kind, entry_bytes, u32::MAX, "length of a name"),
    ]);
    let name = metadata.tables.names.windows(3).position(|name| name == b"bin").unwrap();
    let name_cases = [
        (name, &b"zin"[..], "order of this name"),
        (name, b"b/n", "a byte of a name"),
        (name, b"b\0n", "a byte of a name"),
    ];
    for (at, bytes, expected) in name_cases {
        let mut parts = Parts::of(&image());
        parts.section(SECTION_NAMES)[at..at + bytes.len()].copy_from_slice(bytes);
        let error = open(&parts.assemble()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut parts = Parts::of(&image());
    parts.section(SECTION_NAMES).resize(10_000, b'x');
    assert!(open(&parts.assemble()).unwrap_err().to_string().contains("length of a name"));
}

#[test]
fn every_rule_of_extended_attributes_holds() {
    expect(&[
        (SECTION_XATTR_SETS, 0, 1, "first attribute of a set"),
        (SECTION_XATTRS, 0, 1, "offset of a name"),
        (SECTION_XATTRS, 4, 0, "length of a name"),
        (SECTION_XATTRS, 4, u32::MAX, "offset of a value"),
        (SECTION_XATTRS, 8, u32::MAX, "offset of a value"),
        (SECTION_XATTR_BYTES, 0, u32::from_le_bytes(*b"zzzz"), "order of this name"),
        (SECTION_XATTR_BYTES, 0, 0, "length of a name without NUL"),
    ]);
    let mut parts = Parts::of(&image());
    parts.section(SECTION_XATTRS).push(0);
    assert!(open(&parts.assemble()).unwrap_err().to_string().contains("after the last record"));
    let mut parts = Parts::of(&image());
    parts.section(SECTION_XATTR_SETS).extend([0; 4]);
    assert!(open(&parts.assemble()).unwrap_err().to_string().contains("end of a set"));
}

#[test]
fn every_rule_of_data_holds() {
    let metadata = open(&image()).unwrap();
    let chunk = metadata.tables.chunks.get(2).unwrap().place.get();
    expect(&[
        (SECTION_EXTENTS, 0, 1, "position of an extent"),
        (SECTION_EXTENTS, 4, 1, "first chunk"),
        (SECTION_EXTENTS, metadata.tables.extents.byte_len() - 4, HOLE, "number of chunks that files refer to"),
        (SECTION_BLOCKS, 0, 1, "stored size"),
        (SECTION_BLOCKS, 4, 0, "raw size of a block"),
        (SECTION_BLOCKS, 4, u32::MAX, "raw size of a block"),
        (SECTION_BLOCKS, 12, 1, "size of an expansion"),
    ]);
    let length = 1 << CHUNK_LENGTH_SHIFT;
    for (place, expected) in [
        (chunk & (length - 1), "length of a chunk"),
        ((chunk & (length - 1)) | (4097 * length), "length of a chunk"),
        ((chunk & !(length - 1)) | (length - 1), "position of a chunk"),
        (chunk + 100, "end of a chunk"),
        (chunk - length, "length of the last chunk"),
    ] {
        let mut parts = Parts::of(&image());
        parts.set_u64(SECTION_CHUNKS, 16, place);
        let error = open(&parts.assemble()).unwrap_err().to_string();
        assert!(error.contains(expected), "chunk at {place:#x}: {error}");
    }
    let mut parts = Parts::of(&image());
    parts.blocks.push(0);
    assert!(open(&parts.assemble()).unwrap_err().to_string().contains("end of the last block"));
}

#[test]
fn every_rule_of_filters_dictionaries_and_heat_holds() {
    let fixture = Fixture {
        codecs: vec![Codec::Zstd],
        filters: vec![Filter::X86_64],
        dictionary: Some(dictionary()),
        hot_blocks: 1,
        ..plain()
    };
    let image = fixture.pack(&everything()).unwrap();
    check(&image).unwrap();
    assert_eq!(open(&image).unwrap().hot_blocks(), 1);
    let refused = |change: &dyn Fn(&mut Parts), expected: &str| {
        let mut parts = Parts::of(&image);
        change(&mut parts);
        let error = open(&parts.assemble()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let features =
        |features: u32| move |parts: &mut Parts| parts.superblock.features.set(features | FEATURE_BLOCK_HASHES);
    refused(&features(FEATURE_DICTIONARIES | FEATURE_HOT), "filter of a block, by the features");
    refused(&features(FEATURE_FILTERS | FEATURE_DICTIONARIES), "hot blocks");
    refused(&features(FEATURE_FILTERS | FEATURE_HOT), "newer runnel: required section");
    refused(&|parts| parts.superblock.hot_blocks.set(1 << 20), "hot blocks");
    refused(&|parts| parts.section(SECTION_BLOCKS)[9] = 9, "newer runnel: block filter");
    refused(&|parts| parts.section(SECTION_BLOCKS)[10] = 2, "dictionary of a block");
    refused(&|parts| parts.section(SECTION_BLOCKS)[11] = 1, "reserved");
    refused(&|parts| parts.set(SECTION_DICTIONARIES, 0, 0), "number of dictionaries");
    refused(&|parts| parts.set(SECTION_DICTIONARIES, 0, 256), "number of dictionaries");
    refused(&|parts| parts.set(SECTION_DICTIONARIES, 0, 200), "end of a dictionary");
    refused(&|parts| parts.set(SECTION_DICTIONARIES, 4, u32::MAX), "end of a dictionary");
    let short = dictionary().len() as u32 - 1;
    refused(&|parts| parts.set(SECTION_DICTIONARIES, 4, short), "end of the last dictionary");
    refused(&|parts| parts.set(SECTION_DICTIONARIES, 4, 100), "dictionary 0 of the image cannot be used");
    refused(&|parts| parts.section(SECTION_DICTIONARIES).truncate(3), "size of the section");
    // Two chunks at one place: undoing the filter of one would change the other.
    let metadata = open(&image).unwrap();
    let chunks: Vec<_> = metadata.tables.chunks.iter().copied().collect();
    let fits = |a: &Chunk, b: &Chunk| a.bytes() <= b.bytes() && a.position() != b.position();
    let pairs = chunks.iter().enumerate().flat_map(|(at, a)| chunks.iter().map(move |b| (at, a, b)));
    let (at, moved, onto) = pairs.into_iter().find(|(_, a, b)| fits(a, b)).expect("one chunk fits over another");
    let place = u64::from(moved.bytes()) << CHUNK_LENGTH_SHIFT | onto.position();
    refused(&|parts| parts.set_u64(SECTION_CHUNKS, at * 8, place), "the position of a chunk, at least");
}

#[test]
fn every_rule_of_deflate_blocks_holds() {
    let fixture = Fixture { codecs: vec![Codec::Zstd], filters: vec![Filter::Deflate], ..plain() };
    let image = fixture.pack(&everything()).unwrap();
    check(&image).unwrap();
    let mut parts = Parts::of(&image);
    let blocks = parts.section(SECTION_BLOCKS).to_vec();
    let at = blocks.chunks(16).position(|block| block[9] == FILTER_DEFLATE).expect("some block compresses") * 16;
    let raw = u32::from_le_bytes(std::array::from_fn(|i| blocks[at + 4 + i]));
    assert_eq!(parts.superblock.features.get() & (FEATURE_FILTERS | FEATURE_DEFLATE), FEATURE_DEFLATE);
    let refused = |change: &dyn Fn(&mut Parts), expected: &str| {
        let mut parts = Parts::of(&image);
        change(&mut parts);
        let error = open(&parts.assemble()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let expansion = |bytes: u32| move |parts: &mut Parts| parts.set(SECTION_BLOCKS, at + 12, bytes);
    refused(
        &|parts| parts.superblock.features.set(FEATURE_FILTERS | FEATURE_BLOCK_HASHES),
        "filter of a block, by the features",
    );
    refused(&|parts| parts.section(SECTION_BLOCKS)[at + 9] = 0, "size of an expansion");
    refused(&|parts| parts.section(SECTION_BLOCKS)[at + 9] = 1, "filter of a block, by the features");
    refused(&expansion(0), "size of an expansion");
    refused(&expansion(raw * crate::limits::EXPANSION_RATIO_ACCEPTED + 1), "size of an expansion");
    refused(&expansion(crate::limits::EXPANSION_BYTES_ACCEPTED + 1), "size of an expansion");
    // A size that may be, but is not the one that comes out: an error of the block alone.
    let mut parts = Parts::of(&image);
    expansion(raw)(&mut parts);
    assert!(check(&parts.assemble()).unwrap_err().to_string().contains("expected"));
}
