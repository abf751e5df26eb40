//! Start-up reads of a tree: sets of pages, the images they are read from, and what each stage of
//! the packer gains.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::layout::Opened;
use super::options::Size;
use super::packer::Stage;
use super::peer::{self, SORTED};
use super::plan::{self, Job};
use super::read_set::{self, HOT_SHARES, PROGRAMS, Page, Ranks, ReadSet};
use super::result::{Heat, ReadRow, Spread};
use super::row::{Row, size};
use super::run::Bench;
use super::tree::Tree;
use super::{device, extent};
use crate::interrupt;
use crate::stream::say;

/// The set that stands for a start: all recorded programs together.
pub const START: &str = "start";

/// Parts of an image in a map of hot chunks.
const HEAT_CELLS: usize = 216;

/// The block size of the study's tables of reads.
pub const BLOCK: u64 = 128 << 10;

/// Measures start-up reads of `tree`.
///
/// # Errors
/// The bench is interrupted or the cache cannot be used; what cannot be measured becomes a note.
pub fn run(bench: &mut Bench, tree: &Tree) -> anyhow::Result<()> {
    let Some(base_path) = bench.image_of(tree, "runnel zstd-19 128K") else {
        bench.note(format!("{}: start-up reads need the row 'runnel zstd-19 128K'", tree.name));
        return Ok(());
    };
    let base = Opened::open(&base_path)?;
    let id = base.metadata().id().to_string();
    let folder = bench.cache.join("reads").join(&id[..id.len().min(16)]);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let sets = sets(bench, tree, &base, &base_path, &folder)?;
    let blocks: &[u64] = if bench.options.size() == Size::Full { &plan::BLOCKS } else { &[BLOCK] };
    for block in blocks {
        for set in &sets {
            bench.row(tree, &plan::traced(*block, &set.name, set.trace.clone()))?;
        }
    }
    let images: Vec<Row> = bench.results.of_tree(&tree.name).filter(|row| row.image.is_some()).cloned().collect();
    for row in images {
        let mut known = Known::of(bench, tree, &row)?;
        for set in &sets {
            interrupt::check()?;
            if let Some(reads) = reads_of(bench, tree, &row, set, &base, &mut known)? {
                bench.results.reads.push(reads);
            }
        }
    }
    files_and_heat(bench, tree, &sets)?;
    stages(bench, tree, sets.iter().find(|set| set.name == START))
}

/// Recorded sets, all of them together, and chosen ones.
fn sets(bench: &mut Bench, tree: &Tree, base: &Opened, image: &Path, folder: &Path) -> anyhow::Result<Vec<ReadSet>> {
    let mut sets: Vec<ReadSet> = Vec::new();
    for (name, title, program) in PROGRAMS {
        let known = ReadSet::load(name, base, folder)?;
        let recorded = match known {
            Some(set) => Ok(set),
            None => {
                say(&format!("pack: {}: recording {title} ...", tree.name));
                read_set::record(&bench.packer, name, program, image, base, folder)
            }
        };
        match recorded {
            Ok(set) => sets.push(set),
            Err(error) => {
                interrupt::check()?;
                bench.note(format!("{}: no trace of {title}: {error:#}", tree.name));
            }
        }
    }
    if sets.len() == PROGRAMS.len() {
        let all: Vec<&ReadSet> = sets.iter().collect();
        sets.push(ReadSet::union(START, &all, base, folder)?);
    }
    if bench.options.size() > Size::Quick {
        for share in HOT_SHARES {
            sets.push(read_set::chosen(share, base, folder)?);
        }
    }
    for set in &sets {
        say(&format!(
            "pack: {}: set {}: {} pages, {:.2} MB",
            tree.name,
            set.name,
            set.pages.len(),
            set.bytes(base) as f64 / 1e6
        ));
    }
    Ok(sets)
}

/// What holds for all sets that are read from an image.
struct Known {
    /// CPU seconds per decoded byte of its codec.
    rate: Option<f64>,
    /// The order of its files, if it is not that of their paths.
    ranks: Option<Ranks>,
    extents: extent::Erofs,
}

impl Known {
    fn of(bench: &Bench, tree: &Tree, row: &Row) -> anyhow::Result<Known> {
        let rate = if matches!(row.system.as_str(), "erofs" | "squashfs") { rate(bench, tree, row)? } else { None };
        let ranks = (row.variant == SORTED).then(|| peer::read_sort_list(&bench.sort_list_path(tree))).transpose()?;
        Ok(Known { rate, ranks, extents: extent::Erofs::default() })
    }
}

/// What `set` costs on the image of `row`; none if the image says nothing about reads, or was
/// grouped by another set that is not the one to be held out.
fn reads_of(
    bench: &Bench,
    tree: &Tree,
    row: &Row,
    set: &ReadSet,
    base: &Opened,
    known: &mut Known,
) -> anyhow::Result<Option<ReadRow>> {
    let Some(image) = &row.image else { return Ok(None) };
    let grouped_by = row.variant.strip_prefix("traced ").unwrap_or_default().to_string();
    let mut found = ReadRow {
        tree: tree.name.clone(),
        set: set.name.clone(),
        grouped_by: grouped_by.clone(),
        image: row.name(),
        ..ReadRow::default()
    };
    match row.system.as_str() {
        "runnel" => {
            let plain = row.variant.is_empty() || row.variant == plan::DICTIONARY;
            let held_out = grouped_by == "python" && set.name == "shell";
            if !(plain || grouped_by == set.name || held_out) {
                return Ok(None);
            }
            let opened = Opened::open(image)?;
            found.how = "metadata".into();
            found.reads = opened.reads(&set.pages)?;
            found.decode = Some(found.reads.decode);
            let region = opened.metadata().metadata_region();
            found.metadata = region.end - region.start;
        }
        "erofs" => {
            found.how = "extents".into();
            match extent::erofs(image, &mut known.extents, &set.pages) {
                Ok(reads) => found.reads = reads,
                Err(error) => {
                    interrupt::check()?;
                    say(&format!("pack: {}: {error:#}", row.name()));
                    return Ok(None);
                }
            }
            found.decode = known.rate.map(|rate| rate * found.reads.decoded as f64);
            mounted(bench, image, "erofs", &set.in_order_of(None), &mut found)?;
        }
        "squashfs" => {
            found.how = "model".into();
            found.reads.wanted = set.bytes(base);
            found.reads.decoded = extent::squashfs_decoded(base, &set.pages, row.block.unwrap_or(BLOCK));
            found.decode = known.rate.map(|rate| rate * found.reads.decoded as f64);
            mounted(bench, image, "squashfs", &set.in_order_of(known.ranks.as_ref()), &mut found)?;
        }
        _ => return Ok(None),
    }
    Ok(Some(found))
}

/// CPU seconds per decoded byte of a codec, measured on our own image with the block size nearest
/// to that of `row`.
fn rate(bench: &Bench, tree: &Tree, row: &Row) -> anyhow::Result<Option<f64>> {
    let ours = bench.results.of_tree(&tree.name).filter(|ours| {
        ours.system == "runnel" && ours.variant.is_empty() && ours.codec == row.codec && ours.image.is_some()
    });
    let distance = |ours: &&Row| ours.block.unwrap_or(0).abs_diff(row.block.unwrap_or(0));
    let Some(image) = ours.min_by_key(distance).and_then(|ours| ours.image.clone()) else { return Ok(None) };
    Opened::open(&image)?.decode_rate().map(Some)
}

/// Reads `pages` from a loop device without and with read-ahead.
fn mounted(bench: &Bench, image: &Path, kind: &str, pages: &[Page], found: &mut ReadRow) -> anyhow::Result<()> {
    let folder = bench.cache.join("mounted");
    for read_ahead in [false, true] {
        match device::count(image, kind, pages, read_ahead, &folder) {
            Ok(counted) if read_ahead => found.ahead = Some(counted),
            Ok(counted) => found.counted = Some(counted),
            Err(error) => {
                interrupt::check()?;
                say(&format!("pack: {} on a loop device: {error:#}", found.image));
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Blocks per cold file, and maps of hot chunks before and after grouping.
fn files_and_heat(bench: &mut Bench, tree: &Tree, sets: &[ReadSet]) -> anyhow::Result<()> {
    let start = sets.iter().find(|set| set.name == START);
    let images: Vec<(String, PathBuf)> = bench
        .results
        .of_tree(&tree.name)
        .filter(|row| row.system == "runnel" && row.codec == "zstd-19")
        .filter(|row| row.variant.is_empty() || row.variant == format!("traced {START}"))
        .filter_map(|row| Some((row.name(), row.image.clone()?)))
        .collect();
    for (name, path) in images {
        let opened = Opened::open(&path)?;
        let hot = start.map_or(&[][..], |set| &set.pages);
        let blocks = opened.blocks_per_file(hot);
        bench.results.spread.push(Spread { tree: tree.name.clone(), image: name.clone(), blocks });
        if name.contains(&format!(" {}", size(BLOCK))) && start.is_some() {
            bench
                .results
                .heat
                .push(Heat { image: format!("{} {name}", tree.name), cells: opened.heat(hot, HEAT_CELLS) });
        }
    }
    Ok(())
}

/// The stages one after another, then hotness, then deflate streams.
fn stages(bench: &mut Bench, tree: &Tree, start: Option<&ReadSet>) -> anyhow::Result<()> {
    let (_, most) = plan::STEPS[plan::STEPS.len() - 1];
    for block in plan::ablation_blocks(bench.options.size()) {
        let mut jobs: Vec<Job> =
            plan::STEPS.iter().map(|(name, stages)| plan::step(name, stages, *block, &[])).collect();
        jobs.extend(start.map(|set| plan::step("+ hot", most, *block, std::slice::from_ref(&set.trace))));
        let all: Vec<Stage> = most.iter().copied().chain([Stage::Recompress]).collect();
        jobs.push(plan::step("+ recompress, not hot", &all, *block, &[]));
        for job in jobs {
            bench.row(tree, &job)?;
        }
    }
    Ok(())
}
