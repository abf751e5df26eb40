//! A run: trees, images side by side, start-up reads, checks; then the report.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rustix::fs::{FlockOperation, flock, statvfs};

use super::options::{Options, Size};
use super::packer::Packer;
use super::plan::{self, Job};
use super::result::{Check, Results, TreeFacts};
use super::row::{Kept, Origin, Row};
use super::startup;
use super::tree::{self, Tree};
use super::{peer, reference, report, sorter, text_report};
use crate::history::append_history;
use crate::interrupt;
use crate::lab::report::About;
use crate::options::binary;
use crate::stage::{Fingerprint, Stages, remove, unfinished};
use crate::stream::say;

/// What the parts of a run share.
pub struct Bench {
    /// Our packer.
    pub packer: Packer,
    /// The cache folder.
    pub cache: PathBuf,
    /// Rows of this and earlier runs.
    pub kept: Kept,
    /// See [`Options`].
    pub options: Options,
    /// What was found so far.
    pub results: Results,
}

/// Runs the bench; tables or rows go to `out`.
///
/// # Errors
/// Nothing could be set up, the bench was interrupted, or rows failed; the report is written before
/// the last.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    options.check()?;
    interrupt::listen()?;
    let cache = options.cache()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make the cache folder {}", cache.display()))?;
    let cache = fs::canonicalize(&cache)?;
    let lock = fs::File::create(cache.join("lock")).context("cannot write to the cache folder")?;
    let alone = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    alone.map_err(|_| anyhow::anyhow!("another bench uses {}; wait for it or give --work DIR", cache.display()))?;
    if options.fresh {
        remove(&cache.join("rows.jsonl"))?;
    }
    let runnel = binary(&options.runnel)?;
    let kept = Kept::open(&cache.join("rows.jsonl"))?;
    let mut bench =
        Bench { packer: Packer::open(&runnel)?, cache, kept, options: options.clone(), results: Results::default() };
    if !bench.packer.lz4_has_levels() {
        bench.note("this packer has no levels for LZ4: its rows called lz4hc are of the fast encoder".into());
    }
    bench.trees()?;
    let about = About::here(fs::metadata(&runnel).map(|found| found.len()).unwrap_or(0), bench.results.notes.clone());
    bench.finish(&about, out)
}

impl Bench {
    fn trees(&mut self) -> anyhow::Result<()> {
        let stages = Stages::titled("pack", self.cache.join("stamps"))?;
        for recipe in self.options.recipes()? {
            match tree::prepare(recipe, &self.cache, &stages) {
                Ok(tree) => self.tree(&tree)?,
                Err(error) => {
                    interrupt::check()?;
                    self.note(format!("tree {} not packed: {error:#}", recipe.name));
                }
            }
        }
        for folder in self.options.folders.clone() {
            let tree = tree::of_user(&folder, &self.cache, &stages)?;
            self.tree(&tree)?;
        }
        if let (Some(only), true) = (&self.options.only, self.results.rows.is_empty()) {
            self.results.notes.push(format!("no row contains '{only}'"));
        }
        ensure!(!self.results.rows.is_empty(), "nothing was packed: {}", self.results.notes.join("; "));
        if self.options.size() == Size::Full {
            self.all_together()?;
        }
        Ok(())
    }

    /// Says it and keeps it for the report.
    pub fn note(&mut self, text: String) {
        say(&format!("pack: {text}"));
        self.results.notes.push(text);
    }

    fn tree(&mut self, tree: &Tree) -> anyhow::Result<()> {
        say(&format!("pack: {}: {} files, {:.1} MB", tree.name, tree.files, tree.data_bytes as f64 / 1e6));
        self.results.trees.push(TreeFacts::of(tree));
        if self.options.sorters {
            return plan::sorted().iter().try_for_each(|job| self.row(tree, job));
        }
        let ours = plan::ours(self.options.size());
        for job in &ours {
            self.row(tree, job)?;
        }
        let list = self.sort_list(tree)?;
        for job in plan::peers(self.options.size(), list) {
            self.row(tree, &job)?;
        }
        let references = reference::rows(&tree.name, &self.results.rows);
        // What could not be run gives way to its reference.
        let replaced = |row: &Row| !row.has_bytes() && references.iter().any(|other| other.name() == row.name());
        self.results.rows.retain(|row| row.tree != tree.name || !replaced(row));
        self.results.rows.extend(references);
        if tree.name == tree::FIRST || !self.options.folders.is_empty() {
            startup::run(self, tree)?;
            self.same_bytes(tree)?;
        }
        Ok(())
    }

    /// The list for SquashFS, from the order of the files in our image with blocks of 128 KiB.
    fn sort_list(&mut self, tree: &Tree) -> anyhow::Result<Option<PathBuf>> {
        let Some(image) = self.image_of(tree, "runnel zstd-19 128K") else { return Ok(None) };
        let path = self.sort_list_path(tree);
        fs::create_dir_all(self.cache.join("lists")).context("cannot make the folder of lists")?;
        let opened = super::layout::Opened::open(&image)?;
        peer::write_sort_list(&opened.files_in_order(), &path)?;
        Ok(Some(path))
    }

    /// Where the list of [`Bench::sort_list`] is.
    pub fn sort_list_path(&self, tree: &Tree) -> PathBuf {
        self.cache.join("lists").join(format!("{}.sort", tree.name))
    }

    /// The image of a row of this run.
    pub fn image_of(&self, tree: &Tree, name: &str) -> Option<PathBuf> {
        let row = self.results.rows.iter().find(|row| row.tree == tree.name && row.name() == name)?;
        row.image.clone().filter(|_| row.is_measured())
    }

    /// Measures a row unless it was, and adds it to the results.
    ///
    /// # Errors
    /// The bench is interrupted, or the cache cannot be written. A tool that fails makes a failed
    /// row.
    pub fn row(&mut self, tree: &Tree, job: &Job) -> anyhow::Result<()> {
        interrupt::check()?;
        let (mut row, tool) = self.prepared(tree, job);
        if self.options.only.as_ref().is_some_and(|only| !row.name().contains(only)) {
            return Ok(());
        }
        let tool = match tool {
            Ok(tool) => tool,
            Err(reason) => {
                say(&format!("pack: {} {}: not run: {reason}", tree.name, row.name()));
                self.results.rows.push(Row { origin: Origin::NotRun(reason), ..row });
                return Ok(());
            }
        };
        let key = format!("{} {tool}", tree.fingerprint);
        if let Some(known) = self.kept.get(&key) {
            let known = Row { tree: tree.name.clone(), variant: row.variant, ..known.clone() };
            say(&format!("pack: {} {}: {:.2} MB, known", tree.name, known.name(), known.bytes as f64 / 1e6));
            self.results.rows.push(known);
            return Ok(());
        }
        let name = row.name();
        let image = self.cache.join("images").join(format!("{}.image", Fingerprint::EMPTY.and(key.as_bytes())));
        fs::create_dir_all(self.cache.join("images")).context("cannot make the folder of images")?;
        match self.make(tree, job, &image, &mut row) {
            Ok(()) => {
                row.image = Some(image);
                self.kept.put(&key, &row)?;
                let cost = row.cost.unwrap_or_default();
                let (size, peak) = (row.bytes as f64 / 1e6, cost.peak as f64 / 1e6);
                say(&format!(
                    "pack: {} {name}: {size:.2} MB, {:.1} CPU s, {:.1} s, {peak:.0} MB of memory",
                    tree.name, cost.cpu, cost.wall
                ));
            }
            Err(error) => {
                // What is left of it would take the room of the next.
                unfinished(&image)?;
                remove(&image)?;
                remove(&self.cache.join("extracted"))?;
                interrupt::check()?;
                say(&format!("pack: {} {name}: FAILED: {error:#}", tree.name));
                row.origin = Origin::Failed(format!("{error:#}"));
            }
        }
        self.results.rows.push(row);
        Ok(())
    }

    /// The row to be, and what tells its tool and arguments from others, or why it cannot be.
    fn prepared(&self, tree: &Tree, job: &Job) -> (Row, Result<String, String>) {
        let mut row = Row {
            tree: tree.name.clone(),
            system: "runnel".into(),
            codec: String::new(),
            block: None,
            variant: String::new(),
            origin: Origin::Measured,
            bytes: 0,
            cost: None,
            verified: false,
            report: Default::default(),
            image: None,
        };
        match job {
            Job::Ours(setting, variant) => {
                (row.codec, row.block) = (setting.codec.name().into(), Some(setting.block));
                row.variant.clone_from(variant);
                let tool = self.packer.arguments(setting).map(|arguments| {
                    let traces = setting.traces.iter().map(|path| content_of(path)).collect::<Vec<_>>().join(" ");
                    let arguments: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
                    format!("runnel {} {} {traces}", self.packer.identity, arguments.join(" "))
                });
                (row, tool)
            }
            Job::Peer(peer) => {
                (row.system, row.codec) = (peer.system().into(), peer.codec().name().into());
                (row.block, row.variant) = (peer.block(), peer.variant().into());
                let list = match peer {
                    peer::Peer::Squashfs { sorted: Some(list), .. } => content_of(list),
                    _ => String::new(),
                };
                let arguments = peer.arguments(tree.x86).join(" ");
                let tool = peer
                    .find()
                    .map(|program| format!("{} {} {arguments} {list}", program.display(), content_of(&program)));
                (row, tool)
            }
            Job::Sorted(way, codec, block) => {
                (row.codec, row.block) = (codec.name().into(), Some(*block));
                row.variant = way.variant();
                let program = std::env::current_exe().map(|program| content_of(&program)).unwrap_or_default();
                let tool = way.check().map(|()| format!("{program} {job:?}"));
                (row, tool)
            }
        }
    }

    fn make(&self, tree: &Tree, job: &Job, image: &Path, row: &mut Row) -> anyhow::Result<()> {
        // An image, and the tree again as it is extracted.
        let needed = 2 * tree.data_bytes;
        let found = statvfs(&self.cache).context("cannot ask for the room on the disk")?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let megabytes = |bytes: u64| bytes / 1_000_000;
        ensure!(
            free >= needed,
            "{} has room for {} MB, this row needs up to {}; make room or give --work DIR",
            self.cache.display(),
            megabytes(free),
            megabytes(needed)
        );
        remove(image)?;
        match job {
            Job::Ours(setting, _) => {
                let arguments = self.packer.arguments(setting).map_err(|missing| anyhow::anyhow!(missing))?;
                let packed = self.packer.pack(&tree.folder, image, &arguments)?;
                (row.bytes, row.cost, row.report) = (packed.bytes, Some(packed.cost), packed.report);
                self.packer.verify(tree, image, &self.cache.join("extracted"))?;
                row.verified = true;
            }
            Job::Sorted(way, codec, block) => {
                let packed = sorter::Work::run(*way, *codec, *block, &tree.folder, image)?;
                (row.bytes, row.cost, row.report) = (packed.bytes, Some(packed.cost), packed.report);
                self.packer.verify(tree, image, &self.cache.join("extracted"))?;
                row.verified = true;
            }
            Job::Peer(peer) => {
                let program = peer.find().map_err(|missing| anyhow::anyhow!(missing))?;
                row.cost = Some(peer.make(&program, tree, image)?);
                row.bytes = fs::metadata(image).with_context(|| format!("no image {}", image.display()))?.len();
            }
        }
        Ok(())
    }

    /// Whether one thread and two make the same image.
    fn same_bytes(&mut self, tree: &Tree) -> anyhow::Result<()> {
        let mut images = Vec::new();
        for threads in [1, 2] {
            let Job::Ours(setting, _) =
                plan::without_dictionary(super::packer::Setting::plain(super::packer::Codec::Lz4, 128 << 10))
            else {
                continue;
            };
            let setting = super::packer::Setting { threads: Some(threads), ..setting };
            let job = Job::Ours(setting, format!("{threads} threads"));
            self.row(tree, &job)?;
            images.extend(self.image_of(tree, &format!("runnel lz4hc 128K, {threads} threads")));
        }
        if let [one, two] = &images[..] {
            let same = content_of(one) == content_of(two);
            let name = format!("{}: one thread and two make the same bytes", tree.name);
            self.results.checks.push(Check { name, value: f64::from(u8::from(same)) });
        }
        Ok(())
    }

    /// Memory for a large tree: all trees of the cache packed as one.
    fn all_together(&mut self) -> anyhow::Result<()> {
        let folder = self.cache.join("trees");
        let image = self.cache.join("images").join("together.image");
        say("pack: all trees as one, for memory ...");
        remove(&image)?;
        // The level costs time and hardly any memory; sorting costs both.
        let small = self.packer.has("--small").then_some("--small");
        let arguments = small.into_iter().chain(["--codec", "zstd", "--level", "3"]);
        let arguments: Vec<_> = arguments.map(std::ffi::OsString::from).collect();
        match self.packer.pack(&folder, &image, &arguments) {
            Ok(packed) => {
                let bytes = packed.report.get("bytes_in").copied().unwrap_or(0.0);
                self.results.together = Some((bytes as u64, packed.cost));
            }
            Err(error) => {
                interrupt::check()?;
                self.note(format!("all trees as one: {error:#}"));
            }
        }
        remove(&image)
    }

    fn finish(self, about: &About, out: &mut dyn Write) -> anyhow::Result<()> {
        let path = self.options.report.clone().unwrap_or_else(|| self.cache.join("report.html"));
        let page = report::page(&self.results, about);
        fs::write(&path, page).with_context(|| format!("cannot write the report {}", path.display()))?;
        say(&format!("pack: report in {}", path.display()));
        if let Some(history) = &self.options.history {
            append_history(history, &[super::result::history_line(&self.results, about)?])?;
        }
        if self.options.json {
            for line in self.results.json_lines(&about.commit)? {
                writeln!(out, "{line}").context("standard output")?;
            }
        } else if self.options.sorters {
            write!(out, "{}", sorter::table(&self.results)).context("standard output")?;
        } else {
            write!(out, "{}", text_report::tables(&self.results)).context("standard output")?;
        }
        let failed: Vec<String> = self.results.failures().collect();
        ensure!(failed.is_empty(), "{} row(s) failed: {}", failed.len(), failed.join("; "));
        Ok(())
    }
}

/// What tells the content of a file from others; empty if it cannot be read.
fn content_of(path: &Path) -> String {
    Fingerprint::EMPTY.and_file(path).map(|print| print.to_string()).unwrap_or_default()
}
