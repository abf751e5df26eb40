//! Measures what sorting gains on a tree: payload bytes after compression, blocks per file, and CPU
//! seconds.
//!
//! `cargo run --release -p runnel-pack --example sort_gain -- TREE [--block 64k,128k] [--level 19]
//! [--method all] [--locality 0,100] [--codec zstd] [--filter] [--cut] [--merge eh+rela,sym+str]
//! [--list]`; `--features metis` adds the baseline.
//!
//! Reads the tree in path order, cuts it into chunks of 4 KiB, keeps each distinct one once,
//! classifies them simply, sorts, fills blocks, and compresses every block. Nothing is written.

#[allow(dead_code, reason = "the tool calls a part of it")]
#[path = "../src/sort/mod.rs"]
mod sort;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use sort::{Config, Features, Item, Method};

const CHUNK_BYTES: usize = 4096;

fn main() {
    let options = Options::parse();
    let tree = Tree::read(&options);
    let bytes: u64 = tree.items.iter().map(|item| u64::from(item.bytes)).sum();
    println!("{} files, {} chunks, {} distinct, {:.2} MB", tree.files, tree.uses.len(), tree.items.len(), mb(bytes));
    if options.list {
        tree.groups();
    }
    let start = cpu();
    let features = tree.features(sort::sampling(bytes));
    println!("shingles {:.2} CPU s", cpu() - start);
    for &method in &options.methods {
        for &block_bytes in &options.blocks {
            for &locality in &options.localities {
                tree.measure(
                    &features,
                    &Config { method, block_bytes, hot_block_bytes: block_bytes, locality, seed: 1 },
                    &options,
                );
            }
        }
    }
}

struct Options {
    tree: PathBuf,
    blocks: Vec<u32>,
    level: i32,
    codec: image::Codec,
    methods: Vec<Method>,
    localities: Vec<u32>,
    /// Merges kinds of content into one group.
    merge: HashMap<u8, u8>,
    /// Cuts pages of ELF files at section borders.
    cut: bool,
    list: bool,
    /// Filters x86-64 code.
    filter: bool,
}

impl Options {
    fn parse() -> Options {
        let mut arguments = std::env::args().skip(1);
        let tree = arguments.next().expect("usage: sort_gain TREE [options]");
        let mut options = Options {
            tree: tree.into(),
            blocks: vec![128 << 10],
            level: 19,
            codec: image::Codec::Zstd,
            methods: vec![Method::Greedy],
            localities: vec![sort::LOCALITY_DEFAULT],
            merge: HashMap::new(),
            cut: false,
            list: false,
            filter: false,
        };
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{flag} needs a value"));
            match flag.as_str() {
                "--block" => options.blocks = value().split(',').map(size).collect(),
                "--level" => options.level = value().parse().expect("a number"),
                "--codec" => options.codec = image::Codec::from_name(&value()).expect("a codec"),
                "--locality" => {
                    options.localities = value().split(',').map(|one| one.parse().expect("a number")).collect();
                }
                "--method" => options.methods = value().split(',').flat_map(methods).collect(),
                "--merge" => value().split(',').for_each(|set| options.merge(set)),
                "--filter" => options.filter = true,
                "--cut" => options.cut = true,
                "--list" => options.list = true,
                _ => panic!("unknown flag {flag}"),
            }
        }
        options
    }

    fn merge(&mut self, set: &str) {
        let kinds: Vec<u8> =
            set.split('+').map(|name| Kind::ALL.iter().position(|k| k.1 == name).expect(name) as u8).collect();
        for kind in &kinds {
            self.merge.insert(*kind, kinds[0]);
        }
    }
}

fn size(text: &str) -> u32 {
    let (digits, shift) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('m').map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<u32>().expect("a size") << shift
}

fn methods(name: &str) -> Vec<Method> {
    match name {
        "none" => vec![Method::None],
        "files" => vec![Method::Files],
        #[cfg(feature = "metis")]
        "metis" => vec![Method::Metis],
        "greedy" => vec![Method::Greedy],
        "all" => ["none", "files", "metis", "greedy"].into_iter().flat_map(methods).collect(),
        _ => Vec::new(),
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Kinds of content, by number, with their names.
struct Kind;

impl Kind {
    const ALL: [(u8, &str); 11] = [
        (0, "code"),
        (1, "rodata"),
        (2, "eh"),
        (3, "rela"),
        (4, "sym"),
        (5, "str"),
        (6, "data"),
        (7, "binary"),
        (8, "text"),
        (9, "packed"),
        (10, "pyc"),
    ];
}

/// The distinct chunks of a tree, and the uses of them.
struct Tree {
    files: usize,
    items: Vec<Item>,
    contents: Vec<Vec<u8>>,
    /// File and item of each use.
    uses: Vec<(u32, u32)>,
}

impl Tree {
    fn read(options: &Options) -> Tree {
        let mut paths = Vec::new();
        walk(&options.tree, &mut HashSet::new(), &mut paths);
        let mut tree = Tree { files: paths.len(), items: Vec::new(), contents: Vec::new(), uses: Vec::new() };
        let mut known = HashMap::new();
        for (file, path) in paths.iter().enumerate() {
            let bytes = fs::read(path).expect("readable");
            for (position, (range, kind)) in pieces(&bytes, options.cut).into_iter().enumerate() {
                let start = range.start as u64;
                let chunk = &bytes[range];
                if chunk.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let item = *known.entry(*blake3::hash(chunk).as_bytes()).or_insert_with(|| {
                    let group = u16::from(*options.merge.get(&kind).unwrap_or(&kind));
                    let (file, position, bytes) = (file as u32, position as u32, chunk.len() as u32);
                    tree.items.push(Item { group, file, position, bytes });
                    let mut content = chunk.to_vec();
                    if options.filter && kind == 0 {
                        codec::filter::encode(codec::filter::Filter::X86_64, start, &mut content);
                    }
                    tree.contents.push(content);
                    tree.items.len() as u32 - 1
                });
                tree.uses.push((file as u32, item));
            }
        }
        tree
    }

    fn groups(&self) {
        for (kind, name) in Kind::ALL {
            let bytes =
                self.items.iter().filter(|item| item.group == kind.into()).map(|item| u64::from(item.bytes)).sum();
            println!("{name:8} {:8.2} MB", mb(bytes));
        }
    }

    fn features(&self, sampling: u32) -> Features {
        let of = |bytes: &Vec<u8>| {
            let mut out = Vec::new();
            sort::shingles(bytes, sampling, &mut out);
            out
        };
        let mut features = Features::default();
        self.contents.par_iter().map(of).collect::<Vec<_>>().iter().for_each(|list| features.push(list));
        features
    }

    fn measure(&self, features: &Features, config: &Config, options: &Options) {
        let start = cpu();
        let blocks = sort::blocks(&self.items, features, config, &|_| {});
        let sort_cpu = cpu() - start;
        let (per_file, per_page) = self.spread(&blocks);
        let start = cpu();
        let (codec, level) = (options.codec, options.level);
        let sizes: Vec<(u16, u64)> = blocks
            .par_iter()
            .map(|block| {
                let raw: Vec<u8> = block.iter().flat_map(|item| &self.contents[*item as usize]).copied().collect();
                let mut out = Vec::new();
                codec::encode(codec, level, &raw, &mut out).expect("encodes");
                (self.items[block[0] as usize].group, out.len().min(raw.len()) as u64)
            })
            .collect();
        let payload: u64 = sizes.iter().map(|size| size.1).sum();
        println!(
            "{:?} {:4}k locality {:4}  {:7.3} MB  {per_file:.3} blocks/file  {per_page:.4} /4k  {} blocks  sort {sort_cpu:.2}  compress {:.1} CPU s",
            config.method,
            config.block_bytes >> 10,
            config.locality,
            mb(payload),
            blocks.len(),
            cpu() - start
        );
        if options.list {
            for (kind, name) in Kind::ALL {
                let bytes = sizes.iter().filter(|size| size.0 == kind.into()).map(|size| size.1).sum();
                println!("    {name:8} {:8.3} MB", mb(bytes));
            }
        }
    }

    /// Mean number of blocks that hold a file's chunks, and the same for each chunk of the files.
    fn spread(&self, blocks: &[Vec<u32>]) -> (f64, f64) {
        let mut block_of = vec![0; self.items.len()];
        for (number, block) in blocks.iter().enumerate() {
            block.iter().for_each(|item| block_of[*item as usize] = number);
        }
        let mut opened = 0;
        let mut files = 0;
        for uses in self.uses.chunk_by(|a, b| a.0 == b.0) {
            opened += uses.iter().map(|(_, item)| block_of[*item as usize]).collect::<HashSet<_>>().len();
            files += 1;
        }
        (opened as f64 / f64::from(files), opened as f64 / self.uses.len() as f64)
    }
}

/// Regular files in path order, each inode once.
fn walk(directory: &Path, seen: &mut HashSet<(u64, u64)>, paths: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(directory).expect("readable").map(|entry| entry.expect("entry")).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let data = entry.metadata().expect("metadata");
        if data.is_dir() {
            walk(&entry.path(), seen, paths);
        } else if data.is_file() && seen.insert((data.dev(), data.ino())) {
            paths.push(entry.path());
        }
    }
}

/// The chunks of a file with their kinds. Pages of ELF files have the kind of the section that
/// covers most of them; with `cut`, they are cut where the kind changes.
fn pieces(bytes: &[u8], cut: bool) -> Vec<(std::ops::Range<usize>, u8)> {
    let pages = (0..bytes.len()).step_by(CHUNK_BYTES).map(|start| start..bytes.len().min(start + CHUNK_BYTES));
    let Some(sections) = sections(bytes) else {
        let kind = plain_kind(bytes);
        return pages.map(|page| (page, kind)).collect();
    };
    let mut pieces = Vec::new();
    for page in pages {
        let mut parts: Vec<(std::ops::Range<usize>, u8)> = Vec::new();
        let first = sections.partition_point(|section| section.0.end <= page.start);
        for (range, kind) in &sections[first..] {
            if range.start >= page.end {
                break;
            }
            let start = range.start.max(page.start);
            match parts.last_mut() {
                Some(last) if last.1 == *kind => last.0.end = range.end.min(page.end),
                Some(last) => {
                    last.0.end = start;
                    parts.push((start..range.end.min(page.end), *kind));
                }
                None => parts.push((page.start..range.end.min(page.end), *kind)),
            }
        }
        match parts.last_mut() {
            Some(last) => last.0.end = page.end,
            None => parts.push((page.clone(), 6)),
        }
        if cut {
            pieces.extend(parts);
        } else {
            let mut held = [0; Kind::ALL.len()];
            parts.iter().for_each(|(range, kind)| held[*kind as usize] += range.len());
            let most = (0..held.len()).max_by_key(|kind| held[*kind]).expect("kinds");
            pieces.push((page, most as u8));
        }
    }
    pieces
}

/// Sections of a 64-bit little-endian ELF file in the order of their offsets, or `None` for other
/// files.
fn sections(bytes: &[u8]) -> Option<Vec<(std::ops::Range<usize>, u8)>> {
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let table = usize::try_from(u64_at(0x28)?).ok()?;
    let (count, names) = (u16_at(0x3c)?, u16_at(0x3e)?);
    let header = |number: usize| table.checked_add(64 * number);
    let names = usize::try_from(u64_at(header(names)? + 0x18)?).ok()?;
    let mut sections = Vec::new();
    for number in 1..count {
        let at = header(number)?;
        let (name, kind, flags) = (u32_at(at)? as usize, u32_at(at + 4)?, u64_at(at + 8)?);
        let (offset, size) = (u64_at(at + 0x18)? as usize, u64_at(at + 0x20)? as usize);
        if kind == 8 || size == 0 {
            continue;
        }
        let end = offset.checked_add(size)?.min(bytes.len());
        let name = bytes.get(names.checked_add(name)?..)?;
        let name = &name[..name.iter().position(|byte| *byte == 0)?];
        let kind = match (kind, name) {
            (_, b".eh_frame" | b".eh_frame_hdr" | b".gcc_except_table") => 2,
            (4 | 9 | 19, _) => 3,
            (2 | 11 | 5 | 0x6fff_fff6 | 0x6fff_ffff | 0x6fff_fffe | 0x6fff_fffd, _) => 4,
            (3, _) => 5,
            _ if flags & 4 != 0 => 0,
            _ if flags & 1 != 0 => 6,
            _ => 1,
        };
        sections.push((offset..end, kind));
    }
    sections.sort_by_key(|(range, _)| (range.start, range.end));
    Some(sections)
}

fn plain_kind(bytes: &[u8]) -> u8 {
    let start = &bytes[..bytes.len().min(64 << 10)];
    let odd = start.iter().filter(|byte| **byte < 7 || **byte == 127).count();
    if bytes.len() > 16 && bytes[2..4] == [0x0d, 0x0a] {
        return 10;
    }
    if start.len() > 256 {
        let mut out = Vec::new();
        codec::encode(image::Codec::Zstd, 1, start, &mut out).expect("encodes");
        if out.len() * 100 > start.len() * 95 {
            return 9;
        }
    }
    let magic = [&b"\x1f\x8b"[..], b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x89PNG"];
    match () {
        () if magic.iter().any(|magic| bytes.starts_with(magic)) => 9,
        () if odd == 0 => 8,
        () => 7,
    }
}
