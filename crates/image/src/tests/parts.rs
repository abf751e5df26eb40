//! Takes an image apart into decoded sections, and puts it together again with all hashes, sizes
//! and offsets right: so that a changed field is judged by its own rule and not by a hash.

use crate::format::{SECTION_DERIVED, Section, Superblock};
use crate::superblock::check_hash;
use crate::{Codec, Limits, Metadata, section};
use zerocopy::{FromBytes, IntoBytes};

/// An image in parts.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) superblock: Superblock,
    /// What lies between the superblock and the metadata region.
    pub(super) blocks: Vec<u8>,
    /// Kind, flags and raw bytes of each section.
    pub(super) sections: Vec<(u32, u8, Vec<u8>)>,
}

impl Parts {
    pub(super) fn of(image: &[u8]) -> Parts {
        let metadata = Metadata::open(&image, &Limits::default()).unwrap();
        let sections = metadata.section_report().iter().map(|report| {
            if report.derived {
                metadata.derive_chunk_hashes(&image).unwrap();
                return (report.kind, SECTION_DERIVED, metadata.chunk_hash_bytes().unwrap().to_vec());
            }
            let start = report.offset as usize;
            let stored = &image[start..start + report.stored_bytes as usize];
            let raw = section::decode(report, stored).unwrap().into_vec();
            (report.kind, u8::from(report.optional), raw)
        });
        Parts {
            superblock: Superblock::read_from_bytes(&image[..4096]).unwrap(),
            blocks: image[4096..metadata.superblock().metadata_offset as usize].to_vec(),
            sections: sections.collect(),
        }
    }

    /// The raw bytes of a section.
    pub(super) fn section(&mut self, kind: u32) -> &mut Vec<u8> {
        &mut self.sections.iter_mut().find(|section| section.0 == kind).unwrap().2
    }

    /// Overwrites a little-endian u32 of a section.
    pub(super) fn set(&mut self, kind: u32, at: usize, value: u32) {
        self.section(kind)[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Overwrites a little-endian u64 of a section.
    pub(super) fn set_u64(&mut self, kind: u32, at: usize, value: u64) {
        self.section(kind)[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Reads a little-endian u32 of a section.
    pub(super) fn get(&mut self, kind: u32, at: usize) -> u32 {
        let bytes = &self.section(kind)[at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// The image again. Record counts, the section table, lengths and hashes follow from the parts.
    pub(super) fn assemble(&self) -> Vec<u8> {
        let mut superblock = self.superblock;
        let mut image = vec![0; 4096];
        image.extend_from_slice(&self.blocks);
        superblock.metadata_offset.set(image.len() as u64);
        for (i, (kind, flags, raw)) in self.sections.iter().enumerate() {
            superblock.sections[i] = Section {
                kind: (*kind).into(),
                codec: Codec::Stored.to_u8(),
                flags: *flags,
                filter: crate::format::FILTER_NONE,
                reserved: 0,
                offset: (image.len() as u64).into(),
                stored_bytes: (raw.len() as u64).into(),
                raw_bytes: (raw.len() as u64).into(),
                hash: *blake3::hash(raw).as_bytes(),
            };
            if flags & SECTION_DERIVED == 0 {
                image.extend_from_slice(raw);
            }
        }
        let derived = superblock.sections.iter_mut().filter(|section| section.flags & SECTION_DERIVED != 0);
        derived.for_each(|section| section.offset = (image.len() as u64).into());
        superblock.section_count.set(self.sections.len() as u32);
        superblock.file_bytes.set(image.len() as u64);
        superblock.metadata_bytes.set(image.len() as u64 - superblock.metadata_offset.get());
        image[..4096].copy_from_slice(superblock.as_bytes());
        seal(&mut image);
        image
    }
}

/// Makes the superblock's own hash right.
pub(super) fn seal(image: &mut [u8]) {
    let mut superblock = Superblock::read_from_bytes(&image[..4096]).unwrap();
    superblock.check = check_hash(&superblock);
    image[..4096].copy_from_slice(superblock.as_bytes());
}
