//! What was measured of one way to store one tree, and the file in which rows are kept between
//! runs.
//!
//! A row is kept under a key that says everything its figures depend on: the content of the tree,
//! the tool with its version (of ours: the bytes of the binary), its arguments and all files given
//! to it. So a bench that was interrupted goes on where it was, and nothing old passes for new.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::measure::Cost;

/// Where a row comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Measured on this machine.
    Measured,
    /// A fixed figure of the study, for the tree as it was then; not run here.
    Reference,
    /// Could not be run; why, and what to do.
    NotRun(String),
    /// Was run and failed, or made an image that differs from the tree.
    Failed(String),
}

/// One way to store one tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the tree.
    pub tree: String,
    /// `runnel`, `squashfs`, `erofs`, `dwarfs` or `tar`.
    pub system: String,
    /// Codec with its level, for example `zstd-19`.
    pub codec: String,
    /// Decoded bytes of a block; none where the whole tree is one stream.
    pub block: Option<u64>,
    /// What is special about it, for example `sort list`; empty for the plain form.
    pub variant: String,
    /// See [`Origin`].
    pub origin: Origin,
    /// Bytes of the image with all its metadata.
    pub bytes: u64,
    /// What making it cost.
    pub cost: Option<Cost>,
    /// Whether the image was decoded and compared with the tree. Images of other tools are trusted.
    pub verified: bool,
    /// What our packer reports, as far as it does.
    #[serde(default)]
    pub report: BTreeMap<String, f64>,
    /// The image, as long as it is kept.
    #[serde(default)]
    pub image: Option<PathBuf>,
}

impl Row {
    /// The row without its tree: what it is called everywhere.
    pub fn name(&self) -> String {
        let block = self.block.map(|bytes| format!(" {}", size(bytes))).unwrap_or_default();
        let variant = if self.variant.is_empty() { String::new() } else { format!(", {}", self.variant) };
        format!("{} {}{block}{variant}", self.system, self.codec)
    }

    /// Whether it has figures.
    pub fn has_bytes(&self) -> bool {
        matches!(self.origin, Origin::Measured | Origin::Reference)
    }

    /// Whether it was measured here.
    pub fn is_measured(&self) -> bool {
        self.origin == Origin::Measured
    }
}

/// A block size as options take it: `64K`, `1M`.
pub fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{}M", bytes >> 20),
        bytes => format!("{}K", bytes >> 10),
    }
}

/// Rows by key, in a file.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    rows: BTreeMap<String, Row>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    row: Row,
}

impl Kept {
    /// The rows in the file `path`, which need not be there. Lines that cannot be read are from
    /// another version and are left out: their rows are measured again.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn open(path: &Path) -> anyhow::Result<Kept> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        Ok(Kept { path: path.to_path_buf(), rows: lines.map(|line| (line.key, line.row)).collect() })
    }

    /// The row with this key, if its image is still there.
    pub fn get(&self, key: &str) -> Option<&Row> {
        self.rows.get(key).filter(|row| row.image.as_ref().is_none_or(|image| image.exists()))
    }

    /// Keeps a row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&mut self, key: &str, row: &Row) -> anyhow::Result<()> {
        let line = Line { key: key.to_string(), row: row.clone() };
        let mut text = serde_json::to_string(&line).context("cannot write a row")?;
        text.push('\n');
        let file = fs::OpenOptions::new().create(true).append(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot add to {}", self.path.display()))?;
        self.rows.insert(line.key, line.row);
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A measured row of the first tree.
    pub fn row(system: &str, codec: &str, block: u64, variant: &str, bytes: u64) -> Row {
        Row {
            tree: super::super::tree::FIRST.into(),
            system: system.into(),
            codec: codec.into(),
            block: Some(block),
            variant: variant.into(),
            origin: Origin::Measured,
            bytes,
            cost: Some(Cost { cpu: 1.0, wall: 2.0, peak: 3 }),
            verified: system == "runnel",
            report: BTreeMap::new(),
            image: None,
        }
    }

    #[test]
    fn names_say_what_a_row_is() {
        assert_eq!(row("squashfs", "xz", 1 << 20, "sort list", 1).name(), "squashfs xz 1M, sort list");
        assert_eq!(Row { block: None, ..row("tar", "zstd-19", 0, "", 1) }.name(), "tar zstd-19");
        assert_eq!([4096, 131072, 1 << 21].map(size), ["4K", "128K", "2M"]);
    }

    #[test]
    fn rows_are_kept_until_their_image_is_gone_and_broken_lines_are_left_out() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (path, image) = (folder.path().join("rows.jsonl"), folder.path().join("image"));
        fs::write(&image, "image")?;
        let mut kept = Kept::open(&path)?;
        let found = Row { image: Some(image.clone()), ..row("runnel", "zstd-19", 65536, "", 47_000_000) };
        kept.put("key", &found)?;
        fs::OpenOptions::new().append(true).open(&path)?.write_all(b"{\"key\":\"half\"\n")?;
        assert_eq!(Kept::open(&path)?.get("key"), Some(&found));
        fs::remove_file(&image)?;
        assert_eq!(Kept::open(&path)?.get("key"), None);
        Ok(())
    }
}
