//! `.gz` files kept as their text: against gzip and python's zlib, with everything that must stay
//! as it is.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use image::{Filter, Metadata, ReadAt};
use units::BlockId;

use super::build::*;
use crate::compare::{CompareOptions, assert_equal};
use crate::{FileImage, Options, Report, Stages, cat};

/// Everything on, small blocks.
fn options() -> Options {
    Options { stages: Stages::ALL, block_bytes: 64 << 10, level: Some(19), derive_hashes: true, ..Options::default() }
}

/// Lines of words, most of them the same for all seeds: texts of one kind, which help each other.
fn text(seed: u64, lines: u64) -> String {
    let word = |number: u64| format!("word{} ", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50);
    let line = |line: u64| (0..8).map(|at| word(8 * line + at)).collect::<String>();
    (0..lines).map(|at| line((at * (seed + 1)) % 1000) + &word(seed + 9 * at) + "\n").collect()
}

/// Runs a tool on standard input; nothing if it is not there.
fn filter(command: &str, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    use std::io::Write;
    let (input_end, output_end) = (Stdio::piped(), Stdio::piped());
    let mut child = Command::new(command).args(arguments).stdin(input_end).stdout(output_end).spawn().ok()?;
    let mut stdin = child.stdin.take()?;
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?.ok()?;
    output.status.success().then_some(output.stdout)
}

/// GNU gzip's; nothing if it is not there.
pub(super) fn gzip(level: u32, input: &[u8]) -> Option<Vec<u8>> {
    let found = filter("gzip", &["-n", &format!("-{level}")], input);
    if found.is_none() {
        eprintln!("skipped: no gzip here");
    }
    found
}

fn python_gzip(level: u32, input: &[u8]) -> Option<Vec<u8>> {
    let script = "import gzip, sys; i, o = sys.stdin.buffer, sys.stdout.buffer
g = gzip.GzipFile('a name', 'wb', int(sys.argv[1]), o, mtime=7); g.write(i.read()); g.close()";
    let found = filter("python3", &["-c", script, &level.to_string()], input);
    if found.is_none() {
        eprintln!("skipped: no python3 here");
    }
    found
}

/// Compresses at a level.
type Tool = fn(u32, &[u8]) -> Option<Vec<u8>>;

/// Writes the tree; how many of its files must be kept as their text, and their bytes.
fn tree(base: &Path) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    let mut add = |name: String, content: Vec<u8>, is_text: bool| {
        if is_text {
            files += 1;
            bytes += content.len() as u64;
        }
        write(&base.join(name), content);
    };
    let tools: [(&str, Tool); 2] = [("gzip", gzip), ("zlib", python_gzip)];
    for ((tool, made), level) in tools.into_iter().flat_map(|tool| [1, 6, 9].map(|level| (tool, level))) {
        // Of each its own text: files that share chunks with others stay as they are.
        let mut seed = u64::from(level) * 10 + tool.len() as u64 + u64::from(tool.as_bytes()[0]);
        let mut next = || {
            seed += 1;
            made(level, text(seed, 900).as_bytes())
        };
        let Some(content) = next() else { continue };
        add(format!("{tool}-{level}.gz"), content, true);
        let Some(content) = next() else { continue };
        add(format!("{tool}-{level}-more.gz"), [&content[..], b"bytes behind it"].concat(), true);
        let Some(content) = next() else { continue };
        add(format!("{tool}-{level}-trailer.gz"), [&content[..content.len() - 8], &[7; 8]].concat(), true);
        let Some(mut content) = next() else { continue };
        content.truncate(content.len() - 100);
        add(format!("{tool}-{level}-cut.gz"), content.clone(), false);
        content[9000] ^= 4;
        add(format!("{tool}-{level}-damaged.gz"), content, false);
    }
    if let Some(content) = gzip(9, &[text(5, 700).as_bytes(), &noise(5, 3000)].concat()) {
        add("mixed.gz".into(), content, true);
    }
    // A text 30 times as large as its stream, one that does not fit in a block, and small ones.
    add("zeros.gz".into(), gzip(9, &[0; 300_000]).unwrap_or_default(), false);
    add("large.gz".into(), gzip(9, &noise(6, 200_000)).unwrap_or_default(), false);
    add("empty.gz".into(), gzip(9, b"").unwrap_or_default(), false);
    add("tiny.gz".into(), gzip(9, b"hello\n").unwrap_or_default(), false);
    add("header.gz".into(), b"\x1f\x8b\x08\xff\0\0\0\0\x02\x03".repeat(9), false);
    add("noise.gz".into(), [&b"\x1f\x8b\x08\0\0\0\0\0\x02\x03"[..], &noise(7, 9000)].concat(), false);
    for index in 0..30 {
        add(format!("doc/text-{index}"), text(index + 50, 60).into_bytes(), false);
    }
    (files, bytes)
}

fn pack_tree(source: &Path, out: &Path, options: &Options) -> (Report, Metadata) {
    let report = packed(directory(source), out, options);
    (report, Metadata::open(&FileImage::open(out).unwrap(), &Default::default()).unwrap())
}

#[test]
fn gzip_files_are_kept_as_text_and_come_back() {
    let scratch = scratch();
    let (source, out) = (scratch.path().join("source"), scratch.path().join("out.rnl"));
    let (files, bytes) = tree(&source);
    let (ordinary, _) = pack_tree(&source, &out, &Options { stages: Stages::SMALL, ..options() });
    for block_bytes in [64 << 10, 1 << 20] {
        for stages in [Stages::ALL, Stages { recompress: true, ..Stages::STREAM }] {
            let (report, metadata) = pack_tree(&source, &out, &Options { stages, block_bytes, ..options() });
            // A rest that gains nothing in a block of its own is stored as ever; so not all of them
            // need be there.
            assert!(2 * report.deflate.files >= files && 2 * report.deflate.bytes >= bytes, "{report:?}");
            assert!(report.deflate.stored_bytes < report.deflate.bytes * 9 / 10 || files == 0, "{report:?}");
            let blocks = (0..metadata.block_count()).filter_map(|id| metadata.block(BlockId(id)));
            let deflate = blocks.filter(|block| block.filter == Filter::Deflate);
            assert_eq!(deflate.map(|block| u64::from(block.raw_bytes)).sum::<u64>(), report.deflate.bytes);
            if stages == Stages::ALL && files > 0 {
                assert!(report.bytes_out < ordinary.bytes_out, "{} {}", report.bytes_out, ordinary.bytes_out);
            }
            let target = scratch.path().join("target");
            let _ = fs::remove_dir_all(&target);
            unpack(&out, &target).unwrap();
            assert_equal(&source, &target, &CompareOptions::default());
        }
    }
    let (image, mut read) = (FileImage::open(&out).unwrap(), Vec::new());
    cat(&Metadata::open(&image, &Default::default()).unwrap(), &image, b"/mixed.gz", &mut read).unwrap();
    assert_eq!(read, fs::read(source.join("mixed.gz")).unwrap());
}

#[test]
fn what_is_kept_as_text_does_not_depend_on_threads() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    tree(&source);
    let image = |threads, name: &str| {
        let out = scratch.path().join(name);
        packed(directory(&source), &out, &Options { threads, ..options() });
        fs::read(out).unwrap()
    };
    assert!(image(1, "one") == image(2, "two"));
}

#[test]
fn what_is_hot_is_not_kept_as_text() {
    let scratch = scratch();
    let (source, out) = (scratch.path().join("source"), scratch.path().join("out.rnl"));
    let Some(content) = gzip(9, text(1, 900).as_bytes()) else { return };
    write(&source.join("hot.gz"), &content);
    let file = profile::HotFile { path: b"hot.gz".to_vec(), size: content.len() as u64, pages: vec![1] };
    let hot = profile::Hot { files: vec![file], ..Default::default() };
    assert_eq!(pack_tree(&source, &out, &options()).0.deflate.files, 1);
    assert_eq!(pack_tree(&source, &out, &Options { hot, ..options() }).0.deflate.files, 0);
}

/// A block of an evil author, whose hash is right: any change of its stored bytes, and of the
/// expansion in it.
#[test]
fn fuzz_damaged_blocks_are_errors() {
    let scratch = scratch();
    let (source, out) = (scratch.path().join("source"), scratch.path().join("out.rnl"));
    if tree(&source).0 == 0 {
        return;
    }
    let (_, metadata) = pack_tree(&source, &out, &options());
    let mut ids = (0..metadata.block_count()).map(BlockId);
    let id = ids.find(|&id| metadata.block(id).is_some_and(|block| block.filter == Filter::Deflate)).unwrap();
    let block = metadata.block(id).unwrap();
    let mut stored = vec![0; block.stored_bytes as usize];
    FileImage::open(&out).unwrap().read_exact_at(block.file_offset, &mut stored).unwrap();
    let (mut right, mut raw) = (Vec::new(), Vec::new());
    metadata.decode_block(id, &stored, &mut right).unwrap();
    let (mut failed, mut random) = (0, units::SplitMix64(3));
    for _ in 0..100 {
        let mut damaged = stored.clone();
        let at = units::Rng::below(&mut random, stored.len() as u64) as usize;
        damaged[at] ^= 1 << units::Rng::below(&mut random, 8);
        assert!(metadata.decode_block(id, &damaged, &mut raw).is_err(), "the hash notices");
        match metadata.decode_verified(id, &damaged, &mut raw) {
            Ok(()) => assert!(raw.len() == right.len()),
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0);
    let mut expansion = Vec::new();
    codec::decode(block.codec, &stored, block.expansion_bytes as usize, &mut expansion).unwrap();
    for _ in 0..100 {
        let mut damaged = expansion.clone();
        for _ in 0..3 {
            let at = units::Rng::below(&mut random, 400.min(expansion.len() as u64)) as usize;
            damaged[at] = units::Rng::next_u64(&mut random) as u8;
        }
        if codec::deflate::contract(&damaged, right.len(), &mut raw).is_ok() {
            assert_eq!(raw.len(), right.len());
        }
    }
}
