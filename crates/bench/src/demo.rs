//! `runnel-bench demo`: the main job once, told step by step, with a small table at the end.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use report::row::{Metric, Sample};
use report::table::aligned;

use crate::interrupt;
use crate::link::Link;
use crate::options::{beside, binary};
use crate::product::{Product, Server, learn};
use crate::site::{Local, Starter, drop_caches};
use crate::stream::fresh_folder;
use crate::workload::{Database, Workload};

/// Stream a real Python program over a slow link, step by step
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The link: lan, wifi, thin, 20ms-25mbit, or RTT-RATE[-LOSS]
    #[arg(long, value_name = "LINK", default_value = "20ms-25mbit")]
    pub link: String,
    /// Keep the tree and the image in this folder for the next demo
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Show this runnel instead of the one beside this program
    #[arg(long = "binary", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub runnel: PathBuf,
    /// The device runs this runnel instead, such as one made by scripts/dist.sh
    #[arg(long, value_name = "FILE")]
    pub device: Option<PathBuf>,
}

/// Starts from which the server learns.
const LEARNING_RUNS: usize = 3;

/// The program that is started.
const CASE: &str = "python-200";

/// Runs the demo; everything is told on `out`.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let link: Link = options.link.parse()?;
    let runnel = binary(&options.runnel)?;
    let device = options.device.as_deref().map_or_else(|| Ok(runnel.clone()), binary)?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "the demo mounts file systems and empties the page cache, which needs root; run it with sudo"
    );
    let workload = Workload::named(CASE).context("the demo's workload")?;
    let database = Database::read()?;
    if let Some(package) = workload.tree.missing(&database) {
        anyhow::bail!(
            "the demo starts Debian's python3, but the package {package} is not installed; apt-get install {package}"
        );
    }
    interrupt::listen()?;
    let temporary =
        tempfile::Builder::new().prefix("runnel-demo-").tempdir().context("cannot make a folder for the demo")?;
    let folder = options.work.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the work folder {}", folder.display()))?;
    let folder = std::fs::canonicalize(&folder)?;
    let scratch = temporary.path().join("scratch");
    std::fs::create_dir_all(&scratch)?;

    let (root, size) = workload.tree.build(&database, &folder)?;
    writeln!(
        out,
        "The software: Debian's python3 with its libraries, {} files, {:.1} MB.",
        size.files,
        size.bytes as f64 / 1e6
    )?;
    let product = Product { runnel: runnel.clone() };
    let device = Product { runnel: device };
    let image = folder.join("python.rnl");
    let packed_in = product.pack(&root, &image)?;
    let packed = std::fs::metadata(&image)?.len() as f64 / 1e6;
    writeln!(out, "Packed into one image: {packed:.1} MB, in {:.1} s.", packed_in.as_secs_f64())?;
    let starter = Starter { runnel, scratch };
    let stage =
        Stage { product, device, starter, workload, link, image, folder: fresh_folder(&folder.join("run-demo"))? };
    let results = stage.play(&root, out)?;
    finish(&results, &stage.link, out)
}

struct Stage {
    product: Product,
    device: Product,
    starter: Starter,
    workload: Workload,
    link: Link,
    image: PathBuf,
    folder: PathBuf,
}

/// A line of the final table.
type Outcome = (&'static str, Sample);

impl Stage {
    fn play(&self, root: &Path, out: &mut dyn Write) -> anyhow::Result<Vec<Outcome>> {
        let native = Local(root.to_path_buf());
        self.starter.measure(&native, &self.workload, None)?;
        let local = self.starter.measure(&native, &self.workload, None)?;

        let link = &self.link;
        let (rtt, rate) = (link.rtt.as_secs_f64() * 1e3, link.rate as f64 / 1e6);
        let store = self.product.fresh_store(&self.image, self.folder.join("store"))?;
        let mut server = self.product.serve(&store, link, 1, &[], &self.folder)?;
        writeln!(
            out,
            "A server publishes it; a device mounts it over a link of {rtt} ms round trip and {rate} Mbit/s."
        )?;
        writeln!(out, "\nFirst start: the device has nothing but the list of files; the server knows nothing yet.")?;
        let mut first = None;
        for run in 1..=LEARNING_RUNS {
            if run == 2 {
                writeln!(
                    out,
                    "\nMore starts, each on an empty device: the server learns which pages are always needed."
                )?;
            }
            let changed = learn(&mut server, &store, |server| {
                first.get_or_insert(self.start(server, false, out)?.0);
                Ok(())
            })?;
            let saved = if changed { "the server saved what it learned" } else { "nothing new" };
            writeln!(out, "  {saved}: {} bytes", store.learned_bytes())?;
        }

        writeln!(
            out,
            "\nA start with what was learned: after a few pages the server recognises it and sends the rest unasked."
        )?;
        let (learned, warm) = self.start(&server, true, out)?;
        server.stop()?;
        let rows = [
            ("cold, nothing learned", first),
            ("cold, learned", Some(learned)),
            ("warm", warm),
            ("local files, warm", Some(local)),
        ];
        Ok(rows.into_iter().filter_map(|(name, sample)| Some((name, sample?))).collect())
    }

    /// A cold start in a fresh mount, and if `warm` one more in the same.
    fn start(&self, server: &Server, warm: bool, out: &mut dyn Write) -> anyhow::Result<(Sample, Option<Sample>)> {
        let device = &self.device;
        drop_caches(&[self.product.runnel.clone(), device.runnel.clone(), self.image.clone()]);
        let mounted = device.mount_remote(server, &[], &self.folder)?;
        let cold = self.starter.measure_first(&mounted, &self.workload, Some(&self.link))?;
        let (mount, wall) = (cold[&Metric::Mount], cold[&Metric::Wall]);
        writeln!(out, "  mounted in {mount:.2} s, program done in {wall:.2} s")?;
        out.flush()?;
        let mut again = None;
        if warm {
            let sample = self.starter.measure(&mounted, &self.workload, Some(&self.link))?;
            writeln!(out, "  once more in the same mount, all in the page cache: {:.2} s", sample[&Metric::Wall])?;
            again = Some(sample);
        }
        mounted.close()?;
        Ok((cold, again))
    }
}

fn finish(results: &[Outcome], link: &Link, out: &mut dyn Write) -> anyhow::Result<()> {
    let headings = ["", "seconds", "requests", "MB received", "pages pushed", "of them wasted"];
    let mut lines = vec![headings.map(str::to_string).to_vec()];
    for (name, sample) in results {
        let count = |metric: Metric| sample.get(&metric).map_or("-".to_string(), |value| format!("{value:.0}"));
        lines.push(vec![
            name.to_string(),
            sample.get(&Metric::Wall).map_or("-".to_string(), |wall| format!("{wall:.2}")),
            count(Metric::Requests),
            sample.get(&Metric::Bytes).map_or("-".to_string(), |bytes| format!("{:.2}", bytes / 1e6)),
            count(Metric::PagesPushed),
            count(Metric::PagesWasted),
        ]);
    }
    writeln!(out, "\nStarting a python program that loads 200 modules ({link}):\n\n{}", aligned(&lines))?;
    writeln!(
        out,
        "A page is 4 KiB of a file. `./x bench stream --peers` measures this with repeats and against other systems."
    )?;
    Ok(out.flush()?)
}
