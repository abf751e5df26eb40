//! `runnel-bench stream`: how long programs take to start from an image that lies behind a network.
//!
//! For each workload: the native tree and a mounted image file, both warm, turn by turn; then over
//! each link our client without learning, with learning as in the paper, with push, and the peers.
//! Every cold start has a fresh mount and emptied caches; what the servers hold stays in the page
//! cache, because a server is another machine.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use report::row::{Metric, Row, Sample, Series};
use report::table::table;

use crate::history::append_history;
use crate::interrupt;
use crate::link::Link;
use crate::options::{Options, Plan};
use crate::peer::{Peer, available};
use crate::product::{Product, Server, Store, learn};
use crate::site::{Local, Site, Starter, drop_caches};
use crate::workload::{Database, Workload};

/// Name of this bench in rows.
const BENCH: &str = "stream";

/// Warm starts measured for each cold one: they are short, and a difference of two percent is
/// looked for.
const WARM_FACTOR: usize = 3;

/// Runs the bench: tables (or with `json` rows) on `out`, what is going on on standard error. An
/// error if a case failed; the others are measured all the same.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let plan = options.plan()?;
    interrupt::listen()?;
    let temporary =
        tempfile::Builder::new().prefix("runnel-bench-").tempdir().context("cannot make a folder for the bench")?;
    let folder = options.work.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the work folder {}", folder.display()))?;
    let folder = std::fs::canonicalize(&folder)?;
    let scratch = temporary.path().join("scratch");
    std::fs::create_dir_all(&scratch)?;

    let (peers, skipped) = if options.peers { available() } else { Default::default() };
    skipped.iter().for_each(|reason| say(&format!("skipped: {reason}")));
    let product = Product { runnel: plan.runnel.clone() };
    let starter = Starter { runnel: plan.runnel.clone(), scratch };
    let cold = !options.keep_caches && drop_caches(&[]);
    let mut bench = Bench {
        json: options.json,
        cold,
        plan,
        product,
        starter,
        folder,
        peers,
        lines: Vec::new(),
        failures: Vec::new(),
    };
    bench.introduce();
    let database = Database::read()?;
    for workload in bench.plan.cases.clone() {
        if let Some(package) = workload.tree.missing(&database) {
            say(&format!("skipped: {}: the Debian package {package} is not installed", workload.name));
            continue;
        }
        let done = bench.case(&workload, &database, out);
        bench.note_failure(workload.name, done)?;
    }
    if let Some(history) = &options.history {
        append_history(history, &bench.lines)?;
    }
    anyhow::ensure!(bench.failures.is_empty(), "not everything could be measured: {}", bench.failures.join("; "));
    Ok(())
}

/// Tells what is going on.
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

struct Bench {
    plan: Plan,
    product: Product,
    starter: Starter,
    folder: PathBuf,
    peers: Vec<Box<dyn Peer>>,
    /// Caches are dropped before a cold start.
    cold: bool,
    json: bool,
    lines: Vec<String>,
    failures: Vec<String>,
}

/// What the measurements of one workload share.
struct Case<'a> {
    workload: &'a Workload,
    root: &'a Path,
    image: &'a Path,
}

impl Bench {
    fn introduce(&self) {
        let plan = &self.plan;
        say(&format!(
            "{} runs of each mode, {} learning runs, source revision {}",
            plan.runs, plan.learning_runs, plan.commit
        ));
        say(
            "the link is a proxy above TCP: rate, delay and queue are modelled, a lost segment delays its connection by one",
        );
        say("round trip, slow start is not modelled; server-side files stay in the page cache for every system");
        if !drop_caches(&[]) {
            say(
                "caches are not dropped (it needs root): cold starts rely on fresh mounts, native cold starts are left out",
            );
        }
    }

    /// Keeps a failure for the end; an interrupt ends everything.
    fn note_failure(&mut self, name: &str, done: anyhow::Result<()>) -> anyhow::Result<()> {
        interrupt::check()?;
        if let Err(error) = done {
            say(&format!("failed: {name}: {error:#}"));
            self.failures.push(name.to_string());
        }
        Ok(())
    }

    fn case(&mut self, workload: &Workload, database: &Database, out: &mut dyn Write) -> anyhow::Result<()> {
        say(&format!("{}: building the tree and the image", workload.name));
        let (root, size) = workload.tree.build(database, &self.folder)?;
        let image = self.folder.join(format!("{}.rnl", workload.tree.name()));
        let packed_in = self.product.pack(&root, &image)?;
        let packed = std::fs::metadata(&image)?.len();
        let (megabytes, seconds) = (size.bytes as f64 / 1e6, packed_in.as_secs_f64());
        say(&format!(
            "{}: {} files, {megabytes:.1} MB, packed {:.1} MB in {seconds:.1} s",
            workload.name,
            size.files,
            packed as f64 / 1e6
        ));
        let case = Case { workload, root: &root, image: &image };

        let local = self.local(&case)?;
        let warm = local.iter().find(|series| series.mode == "warm").and_then(|series| series.summary(Metric::Wall));
        let warm = warm.map(|wall| wall.median);
        self.emit(&local, out)?;
        self.show(&format!("{} local", workload.name), &local.iter().collect::<Vec<_>>(), warm, out)?;
        for link in self.plan.links.clone() {
            let mut series = Vec::new();
            let done = self.remote(&case, &link, &mut series);
            self.note_failure(&format!("{} over {link}", workload.name), done)?;
            for index in 0..self.peers.len() {
                let done = self.peer(index, &case, &link, &mut series);
                self.note_failure(&format!("{} on {} over {link}", workload.name, self.peers[index].name()), done)?;
            }
            self.emit(&series, out)?;
            let native = local.iter().filter(|series| series.peer == "native");
            self.show(&format!("{} {link}", workload.name), &native.chain(&series).collect::<Vec<_>>(), warm, out)?;
            show_profit(&series, self.json, out)?;
        }
        Ok(())
    }

    fn emit(&mut self, series: &[Series], out: &mut dyn Write) -> anyhow::Result<()> {
        for row in series.iter().flat_map(|series| series.rows(BENCH, &self.plan.commit)) {
            let line = Row::to_json(&row)?;
            if self.json {
                writeln!(out, "{line}")?;
            }
            self.lines.push(line);
        }
        Ok(())
    }

    fn show(&self, title: &str, series: &[&Series], warm: Option<f64>, out: &mut dyn Write) -> anyhow::Result<()> {
        if !self.json {
            writeln!(out, "\n{}", table(title, series, warm))?;
        }
        Ok(out.flush()?)
    }

    fn series(&self, case: &Case<'_>, peer: &str, mode: &str, link: &str, samples: Vec<Sample>) -> Series {
        let name = case.workload.name.to_string();
        Series { case: name, peer: peer.to_string(), mode: mode.to_string(), link: link.to_string(), samples }
    }

    /// The native tree cold and warm, and the mounted image file warm.
    fn local(&self, case: &Case<'_>) -> anyhow::Result<Vec<Series>> {
        let native = Local(case.root.to_path_buf());
        let start = |site: &dyn Site| self.starter.measure(site, case.workload, None);
        let mut cold = Vec::new();
        for _ in 0..self.plan.runs {
            if self.chill(std::slice::from_ref(&self.plan.runnel)) {
                cold.push(start(&native)?);
            }
        }
        let folder = self.run_folder("file")?;
        let mounted = self.product.mount_file(case.image, &self.plan.mount_options, &folder)?;
        let (mut warm, mut file) = (Vec::new(), Vec::new());
        // The first start of each fills the page cache and is not counted.
        start(&native)?;
        let first = self.starter.measure_first(&mounted, case.workload, None)?;
        for _ in 0..self.plan.runs * WARM_FACTOR {
            warm.push(start(&native)?);
            file.push(start(&mounted)?);
        }
        mounted.close()?;
        let mut series = vec![
            self.series(case, "native", "warm", "local", warm),
            self.series(case, "runnel", "file-warm", "local", file),
            self.series(case, "runnel", "file-first", "local", vec![first]),
        ];
        if !cold.is_empty() {
            series.insert(0, self.series(case, "native", "cold", "local", cold));
        }
        Ok(series)
    }

    /// Our client over `link`, unlearned and learned; adds to `series` as it goes, so that a
    /// failure loses little. Each mode has a server of its own: what is measured is what was saved.
    fn remote(&self, case: &Case<'_>, link: &Link, series: &mut Vec<Series>) -> anyhow::Result<()> {
        let name = case.workload.name;
        let folder = self.run_folder("runnel")?;
        let store = self.product.fresh_store(case.image, folder.join("store"))?;
        let serve = |options: &[&str]| self.product.serve(&store, link, self.plan.seed, options, &folder);
        say(&format!("{name} over {link}: without learning"));
        let server = serve(&["--no-learn"])?;
        let (cold, _) = self.starts(case, &server, link, false, &folder)?;
        server.stop()?;
        series.push(self.series(case, "runnel", "none", link.name(), cold));

        say(&format!("{name} over {link}: learning"));
        let mut server = serve(&[])?;
        self.teach(case, &mut server, &store, link, &folder)?;
        server.stop()?;

        say(&format!("{name} over {link}: learned, push"));
        let server = serve(&[])?;
        let (push, warm) = self.starts(case, &server, link, true, &folder)?;
        server.stop()?;
        say(&format!("{name} over {link}: learned, one segment per round trip"));
        let server = serve(&["--push-window", "0"])?;
        let (paper, _) = self.starts(case, &server, link, false, &folder)?;
        series.push(self.series(case, "runnel", "paper", link.name(), paper));
        series.push(self.series(case, "runnel", "push", link.name(), push));
        series.push(self.series(case, "runnel", "push-warm", link.name(), warm));
        server.stop()
    }

    fn teach(
        &self,
        case: &Case<'_>,
        server: &mut Server,
        store: &Store,
        link: &Link,
        folder: &Path,
    ) -> anyhow::Result<()> {
        for run in 1..=self.plan.learning_runs {
            let changed = learn(server, store, |server| {
                let mounted = self.product.mount_remote(server, &self.plan.mount_options, folder)?;
                self.starter.measure(&mounted, case.workload, Some(link))?;
                mounted.close()
            })?;
            let outcome = if changed { "saved" } else { "nothing new was saved" };
            say(&format!("  start {run}: {outcome}, {} bytes of learned actions", store.learned_bytes()));
        }
        Ok(())
    }

    /// Cold starts, each in a fresh mount, and if `warm` a second start in each.
    fn starts(
        &self,
        case: &Case<'_>,
        server: &Server,
        link: &Link,
        warm: bool,
        folder: &Path,
    ) -> anyhow::Result<(Vec<Sample>, Vec<Sample>)> {
        let (mut cold, mut again) = (Vec::new(), Vec::new());
        for _ in 0..self.plan.runs {
            self.chill(&[self.plan.runnel.clone(), case.image.to_path_buf()]);
            let mounted = self.product.mount_remote(server, &self.plan.mount_options, folder)?;
            cold.push(self.starter.measure_first(&mounted, case.workload, Some(link))?);
            if warm {
                again.push(self.starter.measure(&mounted, case.workload, Some(link))?);
            }
            mounted.close()?;
        }
        Ok((cold, again))
    }

    fn peer(&mut self, index: usize, case: &Case<'_>, link: &Link, series: &mut Vec<Series>) -> anyhow::Result<()> {
        let name = self.peers[index].name();
        say(&format!("{} over {link}: {name}", case.workload.name));
        self.peers[index].prepare(case.root, &self.folder)?;
        let peer = &self.peers[index];
        let mut files = peer.warm_files();
        files.push(self.plan.runnel.clone());
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for run in 0..self.plan.runs {
            let folder = self.run_folder(name)?;
            self.chill(&files);
            let site = peer.mount(link, self.plan.seed + run as u64, &folder)?;
            cold.push(self.starter.measure_first(site.as_ref(), case.workload, Some(link))?);
            warm.push(self.starter.measure(site.as_ref(), case.workload, Some(link))?);
        }
        series.push(self.series(case, name, "cold", link.name(), cold));
        series.push(self.series(case, name, "warm", link.name(), warm));
        Ok(())
    }

    /// Empties the page cache but for `warm`; false if that is not possible or not wanted.
    fn chill(&self, warm: &[PathBuf]) -> bool {
        self.cold && drop_caches(warm)
    }

    /// An empty folder for sockets, logs and mount points; what an earlier run left is removed if
    /// nothing is mounted.
    fn run_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        fresh_folder(&self.folder.join(format!("run-{name}")))
    }
}

/// Makes `folder` empty. Refuses while something is mounted in it: removing would reach into the
/// mount.
pub(crate) fn fresh_folder(folder: &Path) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        anyhow::ensure!(!crate::site::is_mounted(&path), "{} is still mounted; umount -l {0}", path.display());
    }
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.to_path_buf())
}

/// How much of the demand learning removed, and what it cost.
fn show_profit(series: &[Series], json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let median = |mode: &str, metric: Metric| {
        let found = series.iter().find(|series| series.peer == "runnel" && series.mode == mode)?;
        found.summary(metric).map(|summary| summary.median)
    };
    let demanded = median("none", Metric::PagesDemanded).zip(median("push", Metric::PagesDemanded));
    if let Some((none, push)) = demanded.filter(|(none, _)| !json && *none > 0.0) {
        writeln!(out, "  learning removed {:.1} % of the pages that were waited for", 100.0 * (1.0 - push / none))?;
    }
    let wasted = median("push", Metric::PagesPushed).zip(median("push", Metric::PagesWasted));
    if let Some((pushed, wasted)) = wasted.filter(|(pushed, _)| !json && *pushed > 0.0) {
        writeln!(out, "  {:.1} % of the pushed pages were wasted", 100.0 * wasted / pushed)?;
    }
    Ok(())
}
