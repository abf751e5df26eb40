//! The bars of the project for the packer, each with what was measured against it.
//!
//! A bar over several trees or codecs is met only if every case it names was measured here and
//! holds; references count for nothing. Some cases measured and all of those holding is "partly
//! measured", never "met".

use serde_json::json;

use super::packer::Codec;
use super::peer::{DECODED, SORTED};
use super::plan::{BLOCKS, DICTIONARY, RECOMPRESS};
use super::result::{ReadRow, Results};
use super::row::{Row, size};
use super::startup::START;
use super::tree::{FIRST, RECIPES, REQUIRED};

/// Seconds that a page of the slow device takes (the figure).
pub const DEVICE_PAGE_SECONDS: f64 = 75e-6;

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Bytes, shown as megabytes.
    Megabytes,
    /// Bytes, shown as mebibytes.
    Mebibytes,
    /// A quotient.
    Times,
    /// A share.
    Percent,
    /// A number.
    Number,
    /// 1 for yes.
    Yes,
}

impl Form {
    /// A value as people read it.
    pub fn show(self, value: f64) -> String {
        match self {
            Form::Megabytes => format!("{:.2} MB", value / 1e6),
            Form::Mebibytes => format!("{:.0} MiB", value / f64::from(1 << 20)),
            Form::Times => format!("{value:.2}x"),
            Form::Percent => format!("{:.1} %", value * 100.0),
            Form::Number => format!("{value:.2}"),
            Form::Yes => if value > 0.5 { "yes" } else { "NO" }.to_string(),
        }
    }
}

/// What became of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every case was measured and holds.
    Met,
    /// A measured case does not hold.
    Missed,
    /// What was measured holds, but not all was.
    Partly,
    /// No case was measured.
    NotMeasured,
}

impl Verdict {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Partly => "partly measured",
            Verdict::NotMeasured => "not measured",
        }
    }
}

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is about.
    pub name: String,
    /// The value to reach.
    pub demand: f64,
    /// Whether smaller is better.
    pub at_most: bool,
    /// What values count.
    pub form: Form,
    /// Whether one case that holds is enough.
    pub any: bool,
    /// Cases by name; without a value where they were not measured.
    pub cases: Vec<(String, Option<f64>)>,
}

impl Bar {
    fn new(name: &str, form: Form, at_most: bool, demand: f64, cases: Vec<(String, Option<f64>)>) -> Bar {
        Bar { name: name.into(), demand, at_most, form, any: false, cases }
    }

    fn holds(&self, value: f64) -> bool {
        if self.at_most { value <= self.demand } else { value >= self.demand }
    }

    /// See [`Verdict`].
    pub fn verdict(&self) -> Verdict {
        let measured = self.cases.iter().filter_map(|(_, value)| *value);
        let holds: Vec<bool> = measured.map(|value| self.holds(value)).collect();
        let complete = holds.len() == self.cases.len();
        match self.any {
            _ if holds.is_empty() => Verdict::NotMeasured,
            true if holds.contains(&true) => Verdict::Met,
            true if complete => Verdict::Missed,
            false if holds.contains(&false) => Verdict::Missed,
            false if complete => Verdict::Met,
            _ => Verdict::Partly,
        }
    }

    /// The demand as people read it.
    pub fn demanded(&self) -> String {
        let sign = if self.at_most { "at most" } else { "at least" };
        if self.form == Form::Yes { "yes".into() } else { format!("{sign} {}", self.form.show(self.demand)) }
    }

    /// The measured case that decides: the worst, or the best where one is enough.
    pub fn deciding(&self) -> Option<(&str, f64)> {
        let smaller = self.at_most == self.any;
        let measured = self.cases.iter().filter_map(|(name, value)| Some((name.as_str(), (*value)?)));
        let order = |a: &(&str, f64), b: &(&str, f64)| if smaller { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) };
        measured.min_by(order)
    }

    /// How many cases were measured, and how many there are.
    pub fn coverage(&self) -> (usize, usize) {
        (self.cases.iter().filter(|(_, value)| value.is_some()).count(), self.cases.len())
    }

    /// For machines.
    pub fn to_json(&self) -> serde_json::Value {
        let cases: serde_json::Map<_, _> =
            self.cases.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({"name": self.name, "demand": self.demand, "at_most": self.at_most, "verdict": self.verdict().word(),
               "cases": cases})
    }
}

/// All bars.
pub fn all(results: &Results) -> Vec<Bar> {
    let mut bars = sizes(results);
    bars.extend(against_peers(results));
    bars.extend(reads(results));
    bars.extend(building(results));
    bars
}

fn sizes(results: &Results) -> Vec<Bar> {
    let stated: [(&str, u64, &str, f64); 8] = [
        ("zstd-19", 64 << 10, "", 47.9),
        ("zstd-19", 64 << 10, DICTIONARY, 46.3),
        ("zstd-19", 128 << 10, "", 46.4),
        ("zstd-19", 128 << 10, DICTIONARY, 45.4),
        ("zstd-19", 1 << 20, "", 43.7),
        ("xz", 1 << 20, "", 41.2),
        ("lz4hc", 128 << 10, "", 58.6),
        ("zstd-19", 1 << 20, RECOMPRESS, 40.0),
    ];
    let bar = |(codec, block, variant, megabytes): (&str, u64, &str, f64)| {
        let variant = if variant.is_empty() { String::new() } else { format!(", {variant}") };
        let name = format!("runnel {codec} {}{variant}", size(block));
        let row = results.row(FIRST, &name).filter(|row| row.is_measured() && row.verified);
        let stretch = if name.ends_with(RECOMPRESS) { " (stretch)" } else { "" };
        let cases = vec![(FIRST.to_string(), row.map(|row| row.bytes as f64))];
        Bar::new(&format!("first tree, {name}{stretch}"), Form::Megabytes, true, megabytes * 1e6, cases)
    };
    stated.map(bar).into()
}

/// Measured bytes of a row.
fn bytes(results: &Results, tree: &str, name: &str) -> Option<f64> {
    results.row(tree, name).filter(|row| row.is_measured()).map(|row| row.bytes as f64)
}

fn against_peers(results: &Results) -> Vec<Bar> {
    // Trees that the bars ask for count whether they were packed in this run or not, others if they
    // were.
    let counts = |(index, name): &(usize, &str)| *index < REQUIRED || results.tar_bytes(name).is_some();
    let names = RECIPES.iter().map(|recipe| recipe.name).enumerate();
    let trees: Vec<&str> = names.filter(counts).map(|(_, name)| name).collect();
    let (mut squashfs, mut erofs) = (Vec::new(), Vec::new());
    for (tree, codec) in trees.iter().flat_map(|tree| [Codec::Zstd, Codec::Lz4].map(|codec| (*tree, codec.name()))) {
        let ours = bytes(results, tree, &format!("runnel {codec} 64K"));
        let ratio = |name: String| Some(bytes(results, tree, &name)? / ours?);
        squashfs.push((format!("{tree} {codec}"), ratio(format!("squashfs {codec} 128K, {SORTED}"))));
        erofs.push((format!("{tree} {codec}"), ratio(format!("erofs {codec} 64K"))));
    }
    let gains = gains(results);
    let gain = |tree: &str, codec: &str, block: u64| {
        let found = gains.iter().find(|gain| gain.tree == tree && gain.codec == codec && gain.block == block);
        (format!("{tree} {codec} {}", size(block)), found.map(|gain| gain.gain))
    };
    let blocks = |tree, codec: Codec| BLOCKS.map(|block| gain(tree, codec.name(), block));
    let all: Vec<(String, Option<f64>)> =
        trees.iter().flat_map(|tree| Codec::ALL.map(|codec| blocks(tree, codec))).flatten().collect();
    let best = Bar::new("best gain over EROFS and SquashFS, same block", Form::Percent, false, 0.426, all.clone());
    vec![
        Bar::new("SquashFS 128K with our sort list / ours 64K", Form::Times, false, 1.18, squashfs),
        Bar::new("EROFS 64K / ours 64K", Form::Times, false, 1.4, erofs),
        Bar { any: true, ..best },
        Bar::new("worst gain over EROFS and SquashFS, same block", Form::Percent, false, 0.15, all),
    ]
}

/// What our image saves against the smaller of SquashFS (sorted or not) and EROFS with blocks of
/// the same decoded size.
#[derive(Clone, Debug, PartialEq)]
pub struct Gain {
    /// The tree.
    pub tree: String,
    /// The codec.
    pub codec: String,
    /// Decoded bytes of a block.
    pub block: u64,
    /// Name of the smaller peer.
    pub peer: String,
    /// Bytes of the peer by ours, less one: how much higher our ratio is.
    pub gain: f64,
}

/// All gains that can be told: those where SquashFS or EROFS was measured with the same codec.
pub fn gains(results: &Results) -> Vec<Gain> {
    let mut gains = Vec::new();
    for tree in &results.trees {
        for (codec, block) in Codec::ALL.iter().flat_map(|codec| BLOCKS.map(|block| (codec.name(), block))) {
            let Some(ours) = bytes(results, &tree.name, &format!("runnel {codec} {}", size(block))) else { continue };
            let is_peer = |row: &&Row| {
                let decoded = row.system == "squashfs" || (row.system == "erofs" && row.variant == DECODED);
                decoded && row.is_measured() && row.codec == codec && row.block == Some(block)
            };
            let smallest = results.of_tree(&tree.name).filter(is_peer).min_by_key(|row| row.bytes);
            if let Some(peer) = smallest {
                let gain = peer.bytes as f64 / ours - 1.0;
                let (tree, codec, peer) = (tree.name.clone(), codec.to_string(), peer.name());
                gains.push(Gain { tree, codec, block, peer, gain });
            }
        }
    }
    gains
}

/// The reads of a set from an image.
fn read<'a>(results: &'a Results, image: &str, set: &str) -> Option<&'a ReadRow> {
    results.reads.iter().find(|reads| reads.tree == FIRST && reads.image == image && reads.set == set)
}

fn reads(results: &Results) -> Vec<Bar> {
    let traced = |set: &str| format!("runnel zstd-19 128K, traced {set}");
    let erofs = ["erofs lz4hc 64K".to_string(), "erofs zstd-19 64K".to_string()];
    let stored = |image: &str, set: &str| read(results, image, set).map(|reads| reads.reads.stored as f64);
    let fewer = |share: u64| {
        let set = format!("hot-{share}");
        let against = |peer: &String| Some(1.0 - stored(&traced(&set), &set)? / stored(peer, &set)?);
        let cases = erofs.iter().map(|peer| (peer.clone(), against(peer))).collect();
        Bar::new(&format!("fewer start-up bytes than EROFS, {share} % hot"), Form::Percent, false, 0.707, cases)
    };
    let squashfs = "squashfs zstd-19 128K";
    let counted = |set: &str| Some(read(results, squashfs, set)?.counted?.bytes as f64);
    let held_out = stored(&traced("python"), "shell").zip(counted("shell")).map(|(ours, theirs)| ours / theirs);
    let cold_blocks = results
        .spread
        .iter()
        .find(|spread| spread.tree == FIRST && spread.image == traced(START))
        .map(|spread| spread.blocks);
    let ours = read(results, &traced(START), START).and_then(cold_start);
    let faster = |peer: &str| {
        let theirs = read(results, peer, START).and_then(cold_start);
        (peer.to_string(), theirs.zip(ours).map(|(theirs, ours)| theirs / ours))
    };
    vec![
        fewer(12),
        fewer(40),
        Bar::new(
            "hot read of the first tree, 128K",
            Form::Megabytes,
            true,
            5.5e6,
            vec![(START.into(), stored(&traced(START), START))],
        ),
        Bar::new(
            "held out: grouped on python, shell read / SquashFS",
            Form::Times,
            true,
            1.0,
            vec![(squashfs.into(), held_out)],
        ),
        Bar::new("blocks per cold file", Form::Number, true, 2.5, vec![(traced(START), cold_blocks)]),
        Bar::new(
            "cold start (model) against EROFS",
            Form::Times,
            false,
            2.4,
            erofs.iter().map(|peer| faster(peer)).collect(),
        ),
        Bar::new("cold start (model) against SquashFS", Form::Times, false, 2.9, vec![faster(squashfs)]),
    ]
}

/// The model of a cold start: every page of the device that is read takes [`DEVICE_PAGE_SECONDS`],
/// then blocks are decoded. Ours reads all of its metadata; the others what a loop device counted
/// without read-ahead, mounting included.
pub fn cold_start(reads: &ReadRow) -> Option<f64> {
    let pages = |bytes: u64| bytes.div_ceil(super::read_set::DEVICE_PAGE_BYTES) as f64;
    let device = match (reads.how.as_str(), reads.counted) {
        ("metadata", _) => reads.reads.device_pages as f64 + pages(reads.metadata),
        (_, Some(counted)) => pages(counted.bytes + counted.mount_bytes),
        _ => return None,
    };
    Some(device * DEVICE_PAGE_SECONDS + reads.decode?)
}

fn building(results: &Results) -> Vec<Bar> {
    let cost = |name: &str| results.row(FIRST, name).filter(|row| row.is_measured()).and_then(|row| row.cost);
    let step = |name: &str| cost(&format!("runnel zstd-19 128K, stages: {name}"));
    let sort = step("+ group").zip(step("+ sort")).map(|(before, after)| (after.cpu - before.cpu) / before.cpu);
    let wall =
        cost("runnel zstd-19 128K").zip(cost("squashfs zstd-19 128K")).map(|(ours, theirs)| ours.wall / theirs.wall);
    // A smaller tree would say nothing about one of a gigabyte.
    let memory = results.together.filter(|(bytes, _)| *bytes >= 1_000_000_000).map(|(_, cost)| cost.peak as f64);
    let same = results.checks.iter().find(|check| check.name.starts_with(FIRST)).map(|check| check.value);
    vec![
        Bar::new("CPU of sorting by that of the rest", Form::Percent, true, 0.10, vec![("128K".into(), sort)]),
        Bar::new("wall time by that of mksquashfs", Form::Times, true, 1.5, vec![("zstd-19 128K".into(), wall)]),
        Bar::new(
            "memory for a tree of 1 GB",
            Form::Mebibytes,
            true,
            f64::from(1 << 30),
            vec![("all trees".into(), memory)],
        ),
        Bar::new("same bytes with one thread and two", Form::Yes, false, 1.0, vec![(FIRST.into(), same)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::row::Origin;
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn partial_coverage_is_never_met() {
        let bar = |cases: &[Option<f64>]| {
            let cases = cases.iter().map(|value| ("case".to_string(), *value)).collect();
            Bar::new("bar", Form::Times, false, 1.5, cases).verdict()
        };
        assert_eq!(bar(&[Some(1.6), Some(1.5)]), Verdict::Met);
        assert_eq!(bar(&[Some(1.6), None]), Verdict::Partly);
        assert_eq!(bar(&[Some(1.4), None]), Verdict::Missed);
        assert_eq!([bar(&[None]), bar(&[])], [Verdict::NotMeasured; 2]);
        let any = |cases: &[Option<f64>]| {
            let cases = cases.iter().map(|value| ("case".to_string(), *value)).collect();
            let bar = Bar { any: true, ..Bar::new("bar", Form::Times, false, 1.5, cases) };
            (bar.verdict(), bar.deciding().map(|(_, value)| value))
        };
        assert_eq!(any(&[Some(1.6), None, Some(1.2)]), (Verdict::Met, Some(1.6)));
        assert_eq!(any(&[Some(1.4), None]), (Verdict::Partly, Some(1.4)));
        assert_eq!(any(&[Some(1.4), Some(1.3)]), (Verdict::Missed, Some(1.4)));
    }

    #[test]
    fn references_and_images_that_were_not_decoded_meet_nothing() {
        let find = |results: &Results| all(results)[0].verdict();
        let good = row("runnel", "zstd-19", 64 << 10, "", 47_000_000);
        let results = |row: Row| Results { rows: vec![row], ..Results::default() };
        assert_eq!(find(&results(good.clone())), Verdict::Met);
        assert_eq!(find(&results(Row { bytes: 48_000_000, ..good.clone() })), Verdict::Missed);
        assert_eq!(find(&results(Row { verified: false, ..good.clone() })), Verdict::NotMeasured);
        assert_eq!(find(&results(Row { origin: Origin::Reference, ..good })), Verdict::NotMeasured);
        assert!(all(&Results::default()).iter().all(|bar| bar.verdict() == Verdict::NotMeasured));
    }

    #[test]
    fn a_cold_start_is_pages_and_decoding() {
        let mut reads = ReadRow { how: "metadata".into(), metadata: 4097, decode: Some(0.5), ..ReadRow::default() };
        reads.reads.device_pages = 98;
        assert!((cold_start(&reads).expect("all known") - (100.0 * 75e-6 + 0.5)).abs() < 1e-9);
        assert_eq!(cold_start(&ReadRow { how: "extents".into(), ..reads }), None);
    }
}
