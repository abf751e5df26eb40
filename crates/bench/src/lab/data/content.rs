//! What the files hold: random bytes, real text, a sorted table, a game.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::case::{PROGRAM_FILE, RANDOM_FILE, SCENES_FILE, TABLE_FILE, TEXT_FILE};
use super::game;
use super::pattern::{FILE_BYTES, KEY_BYTES, RECORD_BYTES, RECORDS, random_bytes};

const RANDOM_SEED: u64 = 0x5150_0007;
const KEY_SEED: u64 = 0x5150_0008;
const VALUE_SEED: u64 = 0x5150_0009;
const SCENES_SEED: u64 = 0x5150_000a;

/// Folders of a Debian system whose files make the text, and the ends of their names: licences,
/// Perl's own modules, and what packages say about their authors.
const TEXTS: [(&str, &str); 4] = [
    ("usr/share/common-licenses", ""),
    ("usr/lib/x86_64-linux-gnu/perl-base", ".pm"),
    ("usr/share/perl5", ".pm"),
    ("usr/share/doc", "copyright"),
];

/// A program with enough machine code.
const CODE: &str = "usr/bin/bash";

/// Every file by its name. Text and machine code are those of the Debian system `root`.
pub fn files(root: &Path) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
    let code = fs::read(root.join(CODE)).with_context(|| format!("{} has no {CODE}", root.display()))?;
    Ok(vec![
        (RANDOM_FILE, random_bytes(RANDOM_SEED, FILE_BYTES)),
        (TEXT_FILE, text(root)?),
        (TABLE_FILE, table()),
        (PROGRAM_FILE, game::program(machine_code(&code).with_context(|| format!("{CODE} is no program"))?)?),
        (SCENES_FILE, random_bytes(SCENES_SEED, game::SCENES * game::SCENE_BLOCKS * game::PAGE_BYTES)),
    ])
}

/// Records sorted by key; keys and values are random.
pub fn table() -> Vec<u8> {
    let keys = random_bytes(KEY_SEED, RECORDS * KEY_BYTES);
    let mut keys: Vec<&[u8]> = keys.chunks(KEY_BYTES).collect();
    keys.sort_unstable();
    let values = random_bytes(VALUE_SEED, RECORDS * (RECORD_BYTES - KEY_BYTES));
    let records = keys.into_iter().zip(values.chunks(RECORD_BYTES - KEY_BYTES));
    records.flat_map(|(key, value)| [key, value].concat()).collect()
}

/// Text of the size of the other files.
fn text(root: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(FILE_BYTES);
    for (folder, end) in TEXTS {
        let mut paths = Vec::new();
        files_below(&root.join(folder), end, &mut paths)?;
        paths.sort();
        for path in paths {
            text.extend(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
            if text.len() >= FILE_BYTES {
                text.truncate(FILE_BYTES);
                return Ok(text);
            }
        }
    }
    anyhow::bail!("{} has {} bytes of text, not {FILE_BYTES}", root.display(), text.len())
}

/// Regular files whose names end with `end`, links left out.
fn files_below(folder: &Path, end: &str, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files_below(&entry.path(), end, found)?;
        } else if kind.is_file() && entry.file_name().to_string_lossy().ends_with(end) {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// The executable segment of a 64-bit little-endian ELF file.
fn machine_code(file: &[u8]) -> anyhow::Result<&[u8]> {
    let number = |at: usize, bytes: usize| {
        let field = file.get(at..at + bytes).context("it ends in its headers")?;
        Ok::<u64, anyhow::Error>(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    ensure!(file.starts_with(b"\x7fELF\x02\x01"), "it is no 64-bit ELF file");
    let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    for index in 0..count {
        let head = table.saturating_add(index * size);
        ensure!(head < file.len(), "its headers lie outside");
        let (kind, flags) = (number(head, 4)?, number(head + 4, 4)?);
        if kind == 1 && flags & 1 != 0 {
            let (start, bytes) = (number(head + 8, 8)? as usize, number(head + 32, 8)? as usize);
            return file.get(start..start.saturating_add(bytes)).context("its code lies outside");
        }
    }
    anyhow::bail!("it has no executable segment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_full() {
        let table = table();
        assert_eq!(table.len(), FILE_BYTES);
        let keys: Vec<&[u8]> = table.chunks(RECORD_BYTES).map(|record| &record[..KEY_BYTES]).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "every key is there once");
    }

    #[test]
    fn code_is_found_in_programs_only() -> anyhow::Result<()> {
        let own = fs::read("/proc/self/exe")?;
        assert!(machine_code(&own)?.len() > 1000);
        for bad in [&own[..60], b"", b"\x7fELF\x01\x01", &[&own[..32], &[0xff; 40][..]].concat()] {
            assert!(machine_code(bad).is_err());
        }
        Ok(())
    }
}
