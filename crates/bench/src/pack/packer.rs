//! Our packer, driven as a user would: `runnel pack` as a child process.
//!
//! Which options there are is read from `pack --help`, so that binaries of before and after an
//! option can be measured with the same bench. A setting that needs an option the binary lacks is
//! not run, and the row says which.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use pack::compare::{Attribute, CompareOptions, compare};
use serde_json::Value;

use super::measure::{self, Cost};
use super::row::size;
use super::tree::Tree;
use crate::process::tool;
use crate::stage::{Fingerprint, remove};

/// A codec with the level that is compared across systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Codec {
    /// zstd, level 19.
    Zstd,
    /// LZMA in an xz container, the highest level.
    Xz,
    /// LZ4, the high-compression encoder.
    Lz4,
}

impl Codec {
    /// All of them.
    pub const ALL: [Codec; 3] = [Codec::Zstd, Codec::Xz, Codec::Lz4];

    /// Name with the level.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Zstd => "zstd-19",
            Codec::Xz => "xz",
            Codec::Lz4 => "lz4hc",
        }
    }
}

/// A stage of the packer that has a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Groups by kind of data; a page of an ELF file counts as what most of it is.
    Group,
    /// Similarity order.
    Sort,
    /// Branch filters.
    Filter,
    /// A dictionary per group.
    Dictionary,
    /// Deflate streams encoded again.
    Recompress,
}

/// How an image is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The codec.
    pub codec: Codec,
    /// Decoded bytes of a block.
    pub block: u64,
    /// The stages that are on; `None` leaves all to the packer's own choice.
    pub stages: Option<Vec<Stage>>,
    /// One stage more than the packer chooses by itself.
    pub plus: Option<Stage>,
    /// Stages fewer than the packer chooses by itself.
    pub minus: Option<Stage>,
    /// Traces, for the hotness grouper.
    pub traces: Vec<PathBuf>,
    /// Threads; all if `None`.
    pub threads: Option<usize>,
}

impl Setting {
    /// The packer's own choice of stages.
    pub fn plain(codec: Codec, block: u64) -> Setting {
        Setting { codec, block, stages: None, plus: None, minus: None, traces: Vec::new(), threads: None }
    }
}

/// What became of a setting.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Bytes of the image.
    pub bytes: u64,
    /// What it cost.
    pub cost: Cost,
    /// The numbers of its report.
    pub report: BTreeMap<String, f64>,
}

/// The binary that is measured.
#[derive(Clone, Debug)]
pub struct Packer {
    /// Its path.
    pub runnel: PathBuf,
    help: String,
    /// Tells this binary from others.
    pub identity: String,
}

impl Packer {
    /// Asks the binary what it can.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn open(runnel: &Path) -> anyhow::Result<Packer> {
        let help = tool(Command::new(runnel).args(["pack", "--help"]))?;
        let identity = Fingerprint::EMPTY.and_file(runnel)?.to_string();
        Ok(Packer { runnel: runnel.to_path_buf(), help: String::from_utf8_lossy(&help).into_owned(), identity })
    }

    /// Whether `pack` has this option.
    pub fn has(&self, option: &str) -> bool {
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '-';
        self.help.split(|character: char| !is_name(character)).any(|word| word == option)
    }

    /// Whether the binary has a `record` command.
    pub fn records(&self) -> bool {
        tool(Command::new(&self.runnel).args(["record", "--help"])).is_ok()
    }

    fn need(&self, option: &str) -> Result<String, String> {
        if self.has(option) { Ok(option.to_string()) } else { Err(format!("this packer has no {option}")) }
    }

    /// The arguments for a setting, or which option is missing.
    ///
    /// # Errors
    /// The option that the binary lacks.
    pub fn arguments(&self, setting: &Setting) -> Result<Vec<OsString>, String> {
        let mut words: Vec<String> = Vec::new();
        if self.has("--small") {
            words.push("--small".into());
        }
        if self.has("--block-size") {
            words.extend(["--block-size".into(), size(setting.block).to_lowercase()]);
        } else {
            words.extend([self.need("--block-bytes")?, setting.block.to_string()]);
        }
        let (codec, level) = match setting.codec {
            Codec::Zstd => ("zstd", Some("19")),
            Codec::Xz => ("xz", Some("19")),
            // Without levels there is no high-compression encoder to ask for.
            Codec::Lz4 => ("lz4", self.lz4_has_levels().then_some("12")),
        };
        words.extend(["--codec".into(), codec.into()]);
        words.extend(level.into_iter().flat_map(|level| ["--level".into(), level.to_string()]));
        if let Some(stages) = &setting.stages {
            for stage in [Stage::Group, Stage::Sort, Stage::Filter, Stage::Dictionary, Stage::Recompress] {
                words.extend(self.switch(stage, stages.contains(&stage))?);
            }
        }
        words.extend(setting.plus.map(|stage| self.switch(stage, true)).transpose()?.unwrap_or_default());
        words.extend(setting.minus.map(|stage| self.switch(stage, false)).transpose()?.unwrap_or_default());
        words.extend(setting.threads.iter().flat_map(|threads| ["--threads".to_string(), threads.to_string()]));
        let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        for trace in &setting.traces {
            words.extend([self.need("--trace")?.into(), trace.into()]);
        }
        Ok(words)
    }

    /// Whether LZ4 has its high-compression encoder, which its levels choose.
    pub fn lz4_has_levels(&self) -> bool {
        let after = self.help.split("--level <").nth(1).unwrap_or_default();
        let about = after.split("\n      --").next().unwrap_or_default();
        about.to_ascii_lowercase().contains("lz4")
    }

    /// The words that switch a stage. Off is fine where there is no such stage; on needs one.
    fn switch(&self, stage: Stage, on: bool) -> Result<Vec<String>, String> {
        let (yes, no) = match stage {
            Stage::Group => ("--group", "--no-group"),
            Stage::Sort => ("--sort", "--no-sort"),
            Stage::Filter => ("--filter", "--no-filter"),
            Stage::Dictionary => ("--dictionary", "--no-dictionary"),
            Stage::Recompress => ("--recompress", "--no-recompress"),
        };
        let words = |words: &[&str]| Ok(words.iter().map(|word| word.to_string()).collect());
        match (stage, on) {
            (Stage::Sort, _) if self.has("--sort") => words(&["--sort", if on { "greedy" } else { "none" }]),
            (_, true) if self.has(yes) => words(&[yes]),
            // A stage that can only be switched off is on.
            (_, true) if self.has(no) => words(&[]),
            (_, true) => Err(format!("this packer has no {yes}")),
            (_, false) if self.has(no) => words(&[no]),
            (_, false) => words(&[]),
        }
    }

    /// Packs `tree` into `image`.
    ///
    /// # Errors
    /// The packer fails; the message is its own.
    pub fn pack(&self, tree: &Path, image: &Path, arguments: &[OsString]) -> anyhow::Result<Packed> {
        let mut command = Command::new(&self.runnel);
        command.arg("pack").arg(tree).arg("-o").arg(image).args(arguments).arg("--json");
        let done = measure::run(&mut command)?;
        let text = String::from_utf8_lossy(&done.output);
        let value: Value = serde_json::from_str(text.trim()).with_context(|| format!("pack --json printed {text}"))?;
        let fields = value.as_object().context("pack --json printed no object")?;
        let report = fields.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
        let bytes = std::fs::metadata(image).with_context(|| format!("no image {}", image.display()))?.len();
        Ok(Packed { bytes, cost: done.cost, report })
    }

    /// Decodes `image` into `folder`, compares it with `tree` and removes it.
    ///
    /// # Errors
    /// The image does not decode, or it differs from the tree; the message holds the first
    /// differences.
    pub fn verify(&self, tree: &Tree, image: &Path, folder: &Path) -> anyhow::Result<()> {
        remove(folder)?;
        measure::run(Command::new(&self.runnel).arg("extract").arg(image).arg("-C").arg(folder))?;
        let mut options = CompareOptions { differences_max: 5, ..CompareOptions::default() };
        if !rustix::process::geteuid().is_root() {
            // Only root can give files away, make devices or set the attributes of the system.
            options.ignored.extend([Attribute::Owner, Attribute::Device, Attribute::Xattrs]);
        }
        let found = compare(&tree.folder, folder, &options).context("cannot compare the extracted image")?;
        remove(folder)?;
        if !found.differences.is_empty() {
            let lines: Vec<String> = found.differences.iter().map(ToString::to_string).collect();
            bail!("{} DIFFERS from {}: {}", image.display(), tree.folder.display(), lines.join("; "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packer(help: &str) -> Packer {
        Packer { runnel: "/bin/false".into(), help: help.into(), identity: String::new() }
    }

    fn words(packer: &Packer, setting: &Setting) -> Result<String, String> {
        let words = packer.arguments(setting)?;
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn arguments_follow_what_the_packer_has() {
        let old = packer("  --block-bytes <N>\n      --level <N>  (zstd 1 to 22)\n\n      --threads\n");
        let new = packer(
            "  --block-size <S>, --level <N>\n  zstd 1 to 22, lz4 1 to 12\n\n      --sort <HOW>\n --no-group --no-filter --dictionary --trace <FILE> --recompress",
        );
        let plain = Setting::plain(Codec::Zstd, 1 << 20);
        assert_eq!(words(&old, &plain).as_deref(), Ok("--block-bytes 1048576 --codec zstd --level 19"));
        assert_eq!(words(&new, &plain).as_deref(), Ok("--block-size 1m --codec zstd --level 19"));
        let lz4 = Setting::plain(Codec::Lz4, 65536);
        assert_eq!(words(&old, &lz4).as_deref(), Ok("--block-bytes 65536 --codec lz4"));
        assert_eq!(words(&new, &lz4).as_deref(), Ok("--block-size 64k --codec lz4 --level 12"));
        let none = Setting { stages: Some(vec![]), ..plain.clone() };
        assert_eq!(words(&old, &none).as_deref(), Ok("--block-bytes 1048576 --codec zstd --level 19"));
        let expected = "--block-size 1m --codec zstd --level 19 --no-group --sort none --no-filter";
        assert_eq!(words(&new, &none).as_deref(), Ok(expected));
        let most = Setting { stages: Some(vec![Stage::Group, Stage::Sort, Stage::Dictionary]), ..plain.clone() };
        assert!(words(&new, &most).expect("all there").ends_with("--sort greedy --no-filter --dictionary"));
        assert_eq!(words(&old, &most), Err("this packer has no --group".into()));
        let traced = Setting { traces: vec!["/t".into()], threads: Some(1), ..plain };
        assert!(words(&new, &traced).expect("all there").ends_with("--threads 1 --trace /t"));
        assert_eq!(words(&old, &traced), Err("this packer has no --trace".into()));
    }

    #[test]
    fn an_option_is_not_found_inside_another() {
        let packer = packer("--no-dictionary  --trace-more");
        assert!(packer.has("--no-dictionary") && !packer.has("--dictionary") && !packer.has("--trace"));
    }
}
