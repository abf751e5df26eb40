//! The page list of a program, and how a page is touched through a memory map.
//!
//! A list has a line `PAGE PATH` per page, in the order in which a start touches them first. This
//! is the one place of the benches with unsafe code: a memory map is only sound while nobody
//! shortens the file, and the trees are read-only.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use memmap2::{Advice, Mmap, MmapOptions};

use super::system::CONTENT;
use crate::lab::program::Program;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Index in the file.
    pub index: usize,
    /// Absolute path in the tree.
    pub path: PathBuf,
}

/// The list of `program`.
pub fn list_of(program: &Program) -> anyhow::Result<Vec<Page>> {
    let path = Path::new(CONTENT).join("pages").join(program.name);
    let text = fs::read_to_string(&path).with_context(|| format!("no list of pages {}", path.display()))?;
    let pages = parse(&text).with_context(|| format!("cannot understand {}", path.display()))?;
    ensure!(!pages.is_empty(), "{} holds no pages", path.display());
    Ok(pages)
}

/// The file of which `program` touches a page first.
pub fn first_file(program: &Program) -> anyhow::Result<PathBuf> {
    let first = list_of(program)?.into_iter().next();
    first.map(|page| page.path).context("the program touches no page")
}

fn parse(text: &str) -> anyhow::Result<Vec<Page>> {
    let page = |line: &str| {
        let (index, path) = line.split_once(' ').with_context(|| format!("'{line}' is not PAGE PATH"))?;
        let index = index.parse().with_context(|| format!("'{index}' in '{line}' is no index of a page"))?;
        Ok(Page { index, path: PathBuf::from(path) })
    };
    text.lines().map(page).collect()
}

/// The files of a list, each once, in the order of their first touch.
pub fn files_of(pages: &[Page]) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for page in pages {
        if !files.contains(&page.path) {
            files.push(page.path.clone());
        }
    }
    files
}

/// The absolute path of a file of the tree, below the folder where the tree is mounted. No link may
/// be on the way.
pub fn below(folder: &Path, path: &Path) -> PathBuf {
    folder.join(path.strip_prefix("/").unwrap_or(path))
}

/// A part of a file in memory.
#[derive(Debug)]
pub struct MappedPages {
    map: Mmap,
}

impl MappedPages {
    /// Maps the whole file, with the kernel's usual readahead.
    pub fn whole(path: &Path) -> anyhow::Result<MappedPages> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata().with_context(|| path.display().to_string())?.len() as usize;
        MappedPages::part(&file, 0, bytes).with_context(|| format!("cannot map {}", path.display()))
    }

    /// Maps one page and asks the kernel to read no other.
    pub fn single(file: &File, index: usize) -> anyhow::Result<MappedPages> {
        let pages = MappedPages::part(file, (index * PAGE_BYTES) as u64, PAGE_BYTES)?;
        pages.map.advise(Advice::Random).context("cannot switch readahead off")?;
        Ok(pages)
    }

    fn part(file: &File, offset: u64, bytes: usize) -> anyhow::Result<MappedPages> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(bytes);
        // SAFETY: the file lies in a tree that is mounted read-only and that nobody writes while
        // the lab runs, so that what is mapped neither changes nor ends early.
        #[allow(unsafe_code)]
        let map = unsafe { options.map(file) }.context("cannot map a file")?;
        Ok(MappedPages { map })
    }

    /// Reads one byte of a page, which brings the page in; false if the map has no such page.
    pub fn touch(&self, index: usize) -> bool {
        let Some(byte) = self.map.get(index * PAGE_BYTES) else { return false };
        std::hint::black_box(*byte);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_in_order() -> anyhow::Result<()> {
        let pages = parse("3 /usr/bin/perl\n0 /usr/lib/a b.so\n4 /usr/bin/perl\n")?;
        assert_eq!(pages[1], Page { index: 0, path: "/usr/lib/a b.so".into() });
        assert_eq!(files_of(&pages), [Path::new("/usr/bin/perl"), Path::new("/usr/lib/a b.so")]);
        assert_eq!(below(Path::new("/mnt/app"), &pages[0].path), Path::new("/mnt/app/usr/bin/perl"));
        for bad in ["x /usr", "3"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        Ok(())
    }

    #[test]
    fn pages_are_touched_and_the_end_is_known() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        fs::write(&path, vec![7; PAGE_BYTES + 1])?;
        let whole = MappedPages::whole(&path)?;
        assert!(whole.touch(0) && whole.touch(1) && !whole.touch(2));
        assert!(MappedPages::single(&File::open(&path)?, 0)?.touch(0));
        Ok(())
    }
}
