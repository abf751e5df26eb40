//! The stages of packing, alone and together: each gives the same files, and does what it is for.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use image::{Codec, Filter, Metadata};
use profile::{ActionSet, Hot, HotFile, HotRun, MergeConfig, Names};
use units::{BlockId, ImageId, InodeId, PageId};

use super::build::*;
use crate::compare::{CompareOptions, assert_equal};
use crate::{FileImage, Method, Options, PackError, Phase, Progress, Report, Stages, pack};

const NONE: Stages = Stages {
    deduplicate: false,
    group: false,
    sort: Method::None,
    filter: false,
    filter_hot: false,
    dictionary: false,
    hot: false,
    recompress: false,
};

/// Everything on.
fn small() -> Options {
    Options { stages: Stages::ALL, derive_hashes: true, ..quick() }
}

/// A tree with machine code (this program's own), text, equal files, dense data and a sparse file.
fn tree(base: &Path) {
    let program = fs::read("/proc/self/exe").unwrap();
    write(&base.join("bin/program"), &program[..program.len().min(3 << 20)]);
    write(&base.join("bin/same"), &program[..program.len().min(3 << 20)]);
    write(&base.join("bin/shifted"), [&[0x90; 4096][..], &program[..program.len().min(1 << 20)]].concat());
    for index in 0..40u64 {
        let text: String = (0..800).map(|line| format!("line {} of file {index}: {}\n", line, line * index)).collect();
        write(&base.join(format!("doc/text-{index}")), text);
        write(&base.join(format!("doc/dense-{index}")), noise(index, 5000));
    }
    let file = fs::File::create(base.join("sparse")).unwrap();
    file.write_all_at(b"in the middle", 5 << 20).unwrap();
    file.set_len(9 << 20).unwrap();
}

/// Packs, checks every chunk, extracts and compares; returns the report and the image's metadata.
#[track_caller]
fn there_and_back(source: &Path, options: &Options) -> (Report, Metadata) {
    let scratch = scratch();
    let out = scratch.path().join("out.rnl");
    let report = packed(directory(source), &out, options);
    let target = scratch.path().join("target");
    unpack(&out, &target).unwrap();
    assert_equal(source, &target, &CompareOptions::default());
    (report, Metadata::open(&FileImage::open(&out).unwrap(), &Default::default()).unwrap())
}

#[test]
fn every_stage_alone_and_all_together_give_the_same_files() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let stages = [
        NONE,
        Stages { deduplicate: true, ..NONE },
        Stages { group: true, ..NONE },
        Stages { sort: Method::Greedy, ..NONE },
        Stages { sort: Method::Files, ..NONE },
        Stages { filter: true, ..NONE },
        Stages { dictionary: true, group: true, ..NONE },
        Stages::ALL,
    ];
    for stages in stages {
        for (codec, block_bytes) in [(Codec::Zstd, 64 << 10), (Codec::Lz4, 16 << 10), (Codec::Xz, 256 << 10)] {
            let options = Options { stages, codec, block_bytes, level: Some(3), hot: Hot::default(), ..small() };
            let (report, metadata) = there_and_back(&source, &options);
            assert_eq!(metadata.chunk_bytes() as u32, (block_bytes / 16).min(4096));
            assert!(report.bytes_out < report.source.bytes, "{stages:?} {codec}");
        }
    }
}

#[test]
fn machine_code_is_filtered_and_dense_data_stored() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let (_, metadata) = there_and_back(&source, &Options { level: Some(3), ..small() });
    let blocks: Vec<_> = (0..metadata.block_count()).filter_map(|id| metadata.block(BlockId(id))).collect();
    let filtered: u32 = blocks.iter().filter(|block| block.filter != Filter::None).map(|block| block.raw_bytes).sum();
    let stored: u32 = blocks.iter().filter(|block| block.codec == Codec::Stored).map(|block| block.raw_bytes).sum();
    assert!(!cfg!(target_arch = "x86_64") || filtered > 256 << 10, "{filtered} bytes of code");
    assert!((190_000..300_000).contains(&stored), "{stored} of 200,000 dense bytes");
}

fn hot_file(source: &Path, path: &str, pages: &[u32]) -> HotFile {
    let size = fs::metadata(source.join(path)).unwrap().len();
    HotFile { path: path.into(), size, pages: pages.to_vec() }
}

#[test]
fn hot_chunks_lie_in_the_first_blocks_and_nothing_else_does() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let pages: Vec<u32> = (0..100).map(|index| index * 3).collect();
    let files = vec![hot_file(&source, "bin/program", &pages), hot_file(&source, "doc/text-7", &[0, 2])];
    let hot = Hot { files, ..Hot::default() };
    let (report, metadata) = there_and_back(&source, &Options { hot: hot.clone(), level: Some(3), ..small() });
    assert_eq!(u64::from(metadata.hot_blocks()), report.hot.blocks);
    // Equal pages of other files are the same chunk.
    assert!(report.hot.blocks > 0 && report.hot.bytes <= 102 * 4096);
    for file in &hot.files {
        let inode = metadata.resolve(&file.path).unwrap();
        for page in 0..metadata.page_count(inode) {
            let chunks = metadata.page_chunks(units::PageId::new(inode, page)).unwrap();
            let is_hot = chunks.chunks().all(|chunk| metadata.chunk(chunk).unwrap().block.0 < metadata.hot_blocks());
            assert!(is_hot || !file.pages.contains(&page), "page {page}");
        }
    }
    let off = Options { hot, stages: Stages { hot: false, ..Stages::ALL }, level: Some(3), ..small() };
    assert_eq!(there_and_back(&source, &off).1.hot_blocks(), 0);
}

#[test]
fn hot_blocks_have_a_size_of_their_own_and_their_code_no_filter_unless_asked() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let mut file = hot_file(&source, "bin/program", &[]);
    // All of it: where the code of this very program lies in it depends on how it was built.
    file.pages = (0..file.size.div_ceil(4096) as u32).collect();
    let hot = Hot { files: vec![file], ..Hot::default() };
    let with = |hot_block_bytes, filter_hot| {
        let stages = Stages { filter_hot, ..Stages::ALL };
        let options = Options { hot: hot.clone(), level: Some(3), hot_block_bytes, stages, ..small() };
        let (report, metadata) = there_and_back(&source, &options);
        let blocks: Vec<_> = (0..metadata.block_count()).filter_map(|id| metadata.block(units::BlockId(id))).collect();
        let (hot, cold) = blocks.split_at(report.hot.blocks as usize);
        let largest = |blocks: &[image::BlockEntry]| blocks.iter().map(|block| block.raw_bytes).max().unwrap();
        let filtered = hot.iter().any(|block| block.filter != image::Filter::None);
        (largest(hot), largest(cold), filtered)
    };
    let block = small().block_bytes;
    let (hot, cold, filtered) = with(None, true);
    assert!(hot <= block && cold <= block && filtered == cfg!(target_arch = "x86_64"));
    let (hot, cold, filtered) = with(Some(4 * block), false);
    assert!(hot > 2 * block && hot <= 4 * block && cold <= block && !filtered, "{hot} {cold} {filtered}");
    for wrong in [block - 4096, block + 1, 2 << 20] {
        let options = Options { hot_block_bytes: Some(wrong), ..small() };
        assert!(matches!(options.validate(), Err(PackError::Option { name: "size of hot blocks", .. })));
    }
}

#[test]
fn a_trace_of_another_tree_is_refused_and_a_stale_one_noted() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let out = scratch.path().join("out.rnl");
    let mut files = vec![hot_file(&source, "doc/text-1", &[0]), hot_file(&source, "doc/text-2", &[0])];
    files.push(HotFile { path: b"doc/gone".to_vec(), size: 10, pages: vec![0] });
    let options = |files| Options { hot: Hot { files, ..Hot::default() }, ..quick() };
    let report = pack(directory(&source), &out, &options(files.clone()), &crate::Silent).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("3 files, 2 of them")), "{:?}", report.notes);
    files[0].size += 1;
    let error = pack(directory(&source), &out, &options(files), &crate::Silent).unwrap_err();
    assert!(matches!(error, PackError::ForeignTrace { missing: 2, files: 3 }), "{error}");
}

/// Changes a file when the second pass begins, in place and with its old modification time.
struct Meddler(PathBuf);

impl Progress for Meddler {
    fn phase(&self, phase: Phase, _total: u64) {
        if phase == Phase::Pack {
            let file = fs::File::options().write(true).open(&self.0).unwrap();
            let before = file.metadata().unwrap().modified().unwrap();
            file.write_all_at(b"changed", 100).unwrap();
            file.set_modified(before).unwrap();
        }
    }

    fn advance(&self, _amount: u64) {}
}

#[test]
fn a_file_that_changes_between_the_passes_is_named() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let (changed, out) = (source.join("doc/text-3"), scratch.path().join("out.rnl"));
    let error = pack(directory(&source), &out, &quick(), &Meddler(changed.clone())).unwrap_err();
    assert!(matches!(&error, PackError::Changed { path } if *path == changed), "{error}");
    assert!(!out.exists());
}

#[test]
fn explaining_lists_the_stages_and_changes_nothing() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let (plain, _) = there_and_back(&source, &Options { level: Some(3), ..small() });
    let (report, _) = there_and_back(&source, &Options { level: Some(3), explain: true, ..small() });
    assert_eq!(plain.id, report.id);
    let stages = report.stages.unwrap();
    assert_eq!(stages.first().unwrap().stage, "file order");
    let last = stages.last().unwrap();
    let blocks = report.bytes_out - report.bytes_metadata - 4096;
    assert!((blocks..=blocks + report.bytes_dictionaries).contains(&last.bytes));
    assert!(last.bytes < stages[0].bytes);
}

#[test]
fn the_programs_of_traces_travel_with_the_image_on_its_own_inodes() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let size = |path: &str| fs::metadata(source.join(path)).unwrap().len();
    let file = |inode: InodeId| {
        let path = if inode.0 == 1 { "bin/program" } else { "doc/text-7" };
        Some((path.into(), size(path)))
    };
    let image = ImageId([1; 32]);
    let mut traced = ActionSet::new(image);
    let pages = [(1, 0), (2, 1), (1, 5), (2, 0)].map(|(inode, index)| PageId::new(InodeId(inode), index));
    traced.learn(&pages, &MergeConfig::default());
    let runs = HotRun::from_actions(&traced, Names { image, file: &file }).unwrap();
    let hot = Hot { programs: runs.clone(), ..Hot::merge(&runs, 1) };
    let options = Options { hot, level: Some(3), ..quick() };
    let out = scratch.path().join("out.rnl");
    let report = packed(directory(&source), &out, &options);
    assert_eq!(report.id, packed(directory(&source), &out, &options).id, "the same input gives the same image");
    let opened = FileImage::open(&out).unwrap();
    let metadata = Metadata::open(&opened, &Default::default()).unwrap();
    let section = metadata.optional_section(&opened, image::format::SECTION_PROFILE).unwrap().unwrap();
    let actions = profile::decode(&section, &profile::Limits::default()).unwrap();
    let paths = |page: &PageId| (metadata.path(page.inode).unwrap(), page.index);
    let found: Vec<_> = actions.iter().flat_map(|action| action.pages.iter().map(paths)).collect();
    let expected = pages.map(|page| (file(page.inode).unwrap().0, page.index));
    assert_eq!(found, expected.map(|(path, index): (Vec<u8>, u32)| ([b"/", &path[..]].concat(), index)));
}
