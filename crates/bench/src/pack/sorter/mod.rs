//! Ways to sort chunks, in images that differ in nothing else: the order of the tree, our greedy
//! sorter, and the two ways of Huang et al. (FAST '26), [`gear`] and [`metis`].
//!
//! An image is made by our packer in a child process ([`Work`]), which takes the cost of sorting
//! between the packer's phases: CPU time, and how far resident memory rises.

pub mod gear;
pub mod metis;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use pack::{Method, Options, Phase, Progress, Source, Stages};
use report::table::aligned;
use rustix::time::{ClockId, clock_gettime};

use super::measure;
use super::packer::{Codec, Packed};
use super::result::Results;
use super::row::{Row, size};
use crate::process::find_program;

/// A way to sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The order of the tree.
    Path,
    /// Ours.
    Greedy,
    /// Chunks with equal features after one another.
    Gear,
    /// Parts of a graph of chunks.
    Metis,
    /// The same with edges between neighbours in a file, as our own sorter has.
    MetisNear,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 5] = [Way::Path, Way::Greedy, Way::Gear, Way::Metis, Way::MetisNear];

    /// Its name as an argument.
    pub fn name(self) -> &'static str {
        ["path", "greedy", "gear", "metis", "metis-near"][self as usize]
    }

    /// What is special about its row.
    pub fn variant(self) -> String {
        format!("{VARIANT}{}", self.name())
    }

    /// Whether it can run here, or what to install.
    ///
    /// # Errors
    /// The text for the user.
    pub fn check(self) -> Result<(), String> {
        let missing = matches!(self, Way::Metis | Way::MetisNear) && find_program(metis::PROGRAM).is_none();
        if missing { Err(format!("{} is missing; apt-get install metis", metis::PROGRAM)) } else { Ok(()) }
    }
}

/// Start of the variant of rows that compare ways to sort.
const VARIANT: &str = "sort ";

/// An image to make, in a process of its own.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Work {
    /// The way
    #[arg(long)]
    way: Way,
    /// The codec, zstd or lz4, each with the level that is compared
    #[arg(long)]
    codec: String,
    /// Decoded bytes of a block
    #[arg(long)]
    block: u32,
    /// What to pack
    tree: PathBuf,
    /// The image
    image: PathBuf,
}

impl Work {
    /// Makes the image in a child process.
    ///
    /// # Errors
    /// What went wrong there.
    pub fn run(way: Way, codec: Codec, block: u64, tree: &Path, image: &Path) -> anyhow::Result<Packed> {
        let codec = if codec == Codec::Lz4 { "lz4" } else { "zstd" };
        let mut command = Command::new(std::env::current_exe().context("this program has no path")?);
        command.args(["pack-sorted", "--way", way.name(), "--codec", codec, "--block", &block.to_string()]);
        let done = measure::run(command.arg(tree).arg(image))?;
        let report: BTreeMap<String, f64> = serde_json::from_slice(&done.output).context("the report of a child")?;
        let bytes = std::fs::metadata(image).with_context(|| format!("no image {}", image.display()))?.len();
        Ok(Packed { bytes, cost: done.cost, report })
    }

    /// Makes the image, and gives what is known of it by name.
    ///
    /// # Errors
    /// The packer or METIS fails.
    pub fn pack(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let graph = Arc::new(metis::Metis::new(self.way == Way::MetisNear));
        let (codec, level) = match image::Codec::from_name(&self.codec) {
            Some(codec @ image::Codec::Zstd) => (codec, 19),
            Some(codec @ image::Codec::Lz4) => (codec, 12),
            _ => bail!("no such codec here: {}", self.codec),
        };
        let sort = if self.way == Way::Path { Method::None } else { Method::Greedy };
        let options = Options {
            codec,
            level: Some(level),
            block_bytes: self.block,
            stages: Stages { sort, dictionary: false, ..Stages::SMALL },
            sorter: match self.way {
                Way::Path | Way::Greedy => None,
                Way::Gear => Some(Arc::new(gear::Gear::default())),
                Way::Metis | Way::MetisNear => Some(graph.clone()),
            },
            ..Options::default()
        };
        let meter = Meter::default();
        let report = pack::pack(Source::detect(&self.tree)?, &self.image, &options, &meter)?;
        let child = graph.cost()?;
        let marks = meter.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok([
            ("survey_cpu", marks.sort - marks.survey),
            ("sort_cpu", marks.pack - marks.sort + child.cpu),
            ("sort_seconds", report.times.sort.as_secs_f64()),
            ("sort_memory", marks.risen + child.peak as f64),
            ("blocks_per_file", report.spread.cold),
            ("bytes_metadata", report.bytes_metadata as f64),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into())
    }
}

/// Takes what the phases of the packer cost.
#[derive(Default)]
struct Meter(Mutex<Marks>);

/// CPU time of the process at the starts of phases, seconds; and by how many bytes its memory rose
/// during the sort.
#[derive(Default)]
struct Marks {
    survey: f64,
    sort: f64,
    pack: f64,
    before: f64,
    risen: f64,
}

impl Progress for Meter {
    fn phase(&self, phase: Phase, _total: u64) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match phase {
            Phase::Survey => marks.survey = cpu(),
            Phase::Sort => {
                // Sets the peak back to what is resident now; else the rise is too large.
                let _ = std::fs::write("/proc/self/clear_refs", "5");
                (marks.sort, marks.before) = (cpu(), status("VmRSS:"));
            }
            Phase::Pack => (marks.pack, marks.risen) = (cpu(), status("VmHWM:") - marks.before),
            _ => {}
        }
    }

    fn advance(&self, _amount: u64) {}
}

/// CPU time of this process, seconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A size that the kernel tells of this process, in bytes; 0 if it does not.
fn status(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .map_or(0.0, |kilobytes: f64| kilobytes * 1024.0)
}

/// The ways beside each other, a line for each tree, codec, block and way.
pub fn table(results: &Results) -> String {
    let head = [
        "tree",
        "codec",
        "block",
        "sorted by",
        "MB",
        "to greedy",
        "blocks a file",
        "survey CPU s",
        "sort CPU s",
        "sort MB",
    ];
    let mut lines = vec![head.map(str::to_string).to_vec()];
    for row in results.rows.iter().filter(|row| row.is_measured()) {
        let Some(way) = row.variant.strip_prefix(VARIANT) else { continue };
        let ours = Row { variant: Way::Greedy.variant(), ..row.clone() };
        let ours = results.row(&row.tree, &ours.name()).map_or(f64::NAN, |ours| ours.bytes as f64);
        let value = |name: &str| row.report.get(name).copied().unwrap_or(f64::NAN);
        lines.push(vec![
            row.tree.clone(),
            row.codec.clone(),
            row.block.map(size).unwrap_or_default(),
            way.to_string(),
            format!("{:.2}", row.bytes as f64 / 1e6),
            format!("{:+.1} %", (row.bytes as f64 / ours - 1.0) * 100.0),
            format!("{:.2}", value("blocks_per_file")),
            format!("{:.1}", value("survey_cpu")),
            format!("{:.1}", value("sort_cpu")),
            format!("{:.0}", value("sort_memory") / 1e6),
        ]);
    }
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::layout::Opened;
    use crate::pack::row::tests::row;
    use pack::compare::{CompareOptions, compare};
    use pack::{ExtractOptions, FileImage, Silent, extract};
    use units::{Rng, SplitMix64};

    /// 64 files of noise, 64 that are nearly the same.
    fn write_twins(folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut rng = SplitMix64(1);
        for file in 0..64 {
            let mut bytes: Vec<u8> = (0..4096).map(|_| rng.next_u64() as u8).collect();
            std::fs::write(folder.join(format!("a{file:02}")), &bytes)?;
            bytes[2000..2008].fill(0);
            std::fs::write(folder.join(format!("b{file:02}")), &bytes)?;
        }
        Ok(())
    }

    #[test]
    fn every_way_makes_an_image_of_the_tree_and_those_that_sort_make_it_smaller() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (tree, image, out) = (folder.path().join("tree"), folder.path().join("image"), folder.path().join("out"));
        write_twins(&tree)?;
        let mut sizes = BTreeMap::new();
        for way in Way::ALL {
            if let Err(missing) = way.check() {
                println!("skipped {}: {missing}", way.name());
                continue;
            }
            let work = Work { way, codec: "lz4".into(), block: 65536, tree: tree.clone(), image: image.clone() };
            let report = work.pack()?;
            assert!(report["sort_cpu"] >= 0.0 && report["sort_memory"] >= 0.0 && report["blocks_per_file"] >= 1.0);
            let opened = Opened::open(&image)?;
            assert!(opened.blocks_per_file(&[]) == report["blocks_per_file"]);
            extract(opened.metadata(), &FileImage::open(&image)?, &out, &ExtractOptions::default(), &Silent)?;
            assert!(compare(&tree, &out, &CompareOptions::default())?.differences.is_empty());
            std::fs::remove_dir_all(&out)?;
            sizes.insert(way.name(), std::fs::metadata(&image)?.len());
        }
        for (way, bytes) in sizes.iter().filter(|(way, _)| **way != "path") {
            assert!(bytes * 10 < sizes["path"] * 6, "{way}: {sizes:?}");
        }
        Ok(())
    }

    #[test]
    fn an_unknown_codec_is_refused() {
        let work = Work { way: Way::Gear, codec: "xz".into(), block: 65536, tree: "/t".into(), image: "/i".into() };
        assert!(work.pack().is_err_and(|error| error.to_string().contains("xz")));
    }

    #[test]
    fn rows_are_compared_with_ours() {
        let rows = [("sort greedy", 100), ("sort metis", 103), ("", 1)];
        let rows = rows.map(|(variant, bytes)| row("runnel", "zstd-19", 65536, variant, bytes)).to_vec();
        let text = table(&Results { rows, ..Results::default() });
        assert!(text.contains("+3.0 %") && text.lines().count() == 3, "{text}");
    }
}
