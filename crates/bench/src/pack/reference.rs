//! Fixed figures for the first tree from the project's study of compressed read-only images: tools
//! that Debian 12 does not have. Always shown as references, never as something this bench ran, and
//! never enough for a bar to be met.
//!
//! The tree was the same recipe with the package versions of 2026-11 (tar 167,024,640 bytes);
//! erofs-utils 1.9.3, DwarFS 0.15.3. A row measured here replaces the reference of the same name.

use super::peer::PACKED;
use super::row::{Origin, Row};
use super::tree::FIRST;

/// System, codec, block, variant, bytes.
const FIGURES: &[(&str, &str, Option<u64>, &str, u64)] = &[
    ("erofs", "zstd-19", Some(64 << 10), "", 70_017_024),
    ("erofs", "zstd-19", Some(1 << 20), PACKED, 49_913_856),
    ("erofs", "xz", Some(64 << 10), PACKED, 52_928_512),
    ("erofs", "xz", Some(1 << 20), PACKED, 44_814_336),
    ("erofs", "lz4hc", Some(64 << 10), PACKED, 73_498_624),
    ("erofs", "lz4hc", Some(1 << 20), PACKED, 71_585_792),
    ("dwarfs", "zstd-19", Some(64 << 10), "", 59_635_721),
    ("dwarfs", "zstd-19", Some(128 << 10), "", 56_313_282),
    ("dwarfs", "zstd-19", Some(1 << 20), "", 49_272_798),
    ("dwarfs", "xz", Some(1 << 20), "", 46_214_065),
    ("dwarfs", "zstd-22", Some(16 << 20), "level 7", 45_306_494),
    ("dwarfs", "xz", Some(64 << 20), "level 9", 41_180_368),
];

/// The references for `tree` that no row of `measured` replaces.
pub fn rows(tree: &str, measured: &[Row]) -> Vec<Row> {
    if tree != FIRST {
        return Vec::new();
    }
    let row = |(system, codec, block, variant, bytes): &(&str, &str, Option<u64>, &str, u64)| Row {
        tree: tree.to_string(),
        system: system.to_string(),
        codec: codec.to_string(),
        block: *block,
        variant: variant.to_string(),
        origin: Origin::Reference,
        bytes: *bytes,
        cost: None,
        verified: false,
        report: Default::default(),
        image: None,
    };
    let is_new = |row: &Row| !measured.iter().any(|other| other.is_measured() && other.name() == row.name());
    FIGURES.iter().map(row).filter(is_new).collect()
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn what_was_measured_replaces_a_reference() {
        assert!(rows("jdk", &[]).is_empty());
        let all = rows(FIRST, &[]);
        assert!(all.iter().all(|row| row.origin == Origin::Reference));
        let fewer = rows(FIRST, &[row("dwarfs", "zstd-19", 64 << 10, "", 1)]);
        assert_eq!(fewer.len(), all.len() - 1);
    }
}
