//! What a version is made of, each part with its hash: so what a device that has another lacks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use image::{Limits, Superblock};
use pack::FileImage;

use crate::pack::measure;

/// The parts of a version by hash or name, with their bytes as they are stored.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Blocks or chunks.
    data: BTreeMap<Vec<u8>, u64>,
    /// Superblock and sections, or the index.
    metadata: BTreeMap<Vec<u8>, u64>,
}

impl Parts {
    /// Those of an image.
    pub(super) fn of_image(path: &Path) -> anyhow::Result<Parts> {
        let image = FileImage::open(path)?;
        let read = || -> anyhow::Result<Parts> {
            let superblock = Superblock::read(&image, &Limits::ACCEPTED)?;
            let blocks = superblock.block_places(&image)?;
            let data = blocks.iter().map(|block| (block.hash.to_vec(), block.stored_bytes.into())).collect();
            let sections = superblock.sections.iter().filter(|section| !section.derived && section.stored_bytes > 0);
            let sections = sections.map(|section| (section.hash.to_vec(), section.stored_bytes));
            let own = (superblock.id.0.to_vec(), image::format::SUPERBLOCK_BYTES as u64);
            Ok(Parts { data, metadata: sections.chain([own]).collect() })
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    /// Those of a store and an index that `casync` makes at `folder` from a tree.
    pub(super) fn of_casync(casync: &Path, tree: &Path, folder: &Path) -> anyhow::Result<Parts> {
        let (store, index) = (folder.with_extension("castr"), folder.with_extension("caidx"));
        let mut command = Command::new(casync);
        measure::run(command.arg("make").arg(format!("--store={}", store.display())).arg(&index).arg(tree))?;
        let mut data = BTreeMap::new();
        chunks(&store, &mut data).with_context(|| format!("cannot read the store {}", store.display()))?;
        let bytes = fs::metadata(&index).with_context(|| format!("no index {}", index.display()))?.len();
        // It is fetched whole, whatever the device has.
        Ok(Parts { data, metadata: [(folder.as_os_str().as_encoded_bytes().to_vec(), bytes)].into() })
    }

    /// All of them.
    pub(super) fn bytes(&self) -> u64 {
        self.data.values().sum::<u64>() + self.metadata_bytes()
    }

    /// Those that are no data.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.metadata.values().sum()
    }

    /// Those that `have` has not.
    pub(super) fn lacking(&self, have: &Parts) -> Parts {
        let lacking = |parts: &BTreeMap<Vec<u8>, u64>, have: &BTreeMap<Vec<u8>, u64>| {
            let lacking = parts.iter().filter(|(hash, _)| !have.contains_key(*hash));
            lacking.map(|(hash, bytes)| (hash.clone(), *bytes)).collect()
        };
        Parts { data: lacking(&self.data, &have.data), metadata: lacking(&self.metadata, &have.metadata) }
    }
}

/// The chunks of a store: files named by their hash, in folders.
fn chunks(folder: &Path, found: &mut BTreeMap<Vec<u8>, u64>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            chunks(&entry.path(), found)?;
        } else {
            found.insert(entry.file_name().into_encoded_bytes(), entry.metadata()?.len());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_lacks_the_blocks_and_sections_that_changed() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let tree = folder.path().join("tree");
        fs::create_dir(&tree)?;
        for index in 0..40u32 {
            let text: String = (0..3000).map(|line| format!("{} of {index}\n", line * index)).collect();
            fs::write(tree.join(format!("{index}")), text)?;
        }
        let image = |name: &str, base: Option<&Path>| -> anyhow::Result<Parts> {
            let path = folder.path().join(name);
            let options = pack::Options { base: base.map(Path::to_path_buf), ..Default::default() };
            pack::pack(pack::Source::detect(&tree)?, &path, &options, &pack::Silent)?;
            let parts = Parts::of_image(&path)?;
            assert_eq!(parts.bytes(), fs::metadata(&path)?.len());
            Ok(parts)
        };
        let old = image("old", None)?;
        assert_eq!(old.lacking(&old).bytes(), 0);
        assert_eq!(old.lacking(&Parts::default()).bytes(), old.bytes());
        fs::write(tree.join("7"), "another text")?;
        let new = image("new", Some(&folder.path().join("old")))?;
        let lacking = new.lacking(&old);
        assert!(lacking.data.len() == 1 && lacking.metadata_bytes() >= 4096, "{lacking:?}");
        assert!(lacking.bytes() < new.bytes() / 2);
        Ok(())
    }
}
