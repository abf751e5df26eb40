//! `runnel-bench predict`: the predictors compared on the same first-touch orders, over a modelled
//! link.
//!
//! The orders come from trace files, or are recorded: each workload is started several times, every
//! time with a server that knows nothing, so that what the server wrote down of a start is the
//! order of that start alone. All predictors then see the orders of one workload one after the
//! other, each on a cold client; the first ones are their training and are not counted. The model
//! is that of the crate `predict`; a page takes the link 1500 bytes, what pages of programs
//! compress to.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use predict::{
    ActionPredictor, Config, CostModel, Evaluation, FlowConfig, FlowPredictor, LinuxReadahead, MajorityTrend, Mode,
    Predictor, Visible, evaluate,
};
use profile::Order;
use report::row::{Metric, Row, Sample, Series};
use report::table::table;
use units::{ImageId, InodeId, Moment, Token};

use crate::history::append_history;
use crate::interrupt;
use crate::link::Link;
use crate::options::{Options, Plan};
use crate::product::{Product, learn};
use crate::site::Starter;
use crate::stream::{fresh_folder, say};
use crate::workload::{Database, Workload};

/// Name of this bench in rows.
const BENCH: &str = "predict";

/// Bytes that a page takes on the link: pages of programs compress to about this.
const PAGE_LINK_BYTES: u64 = 1500;

/// Files that the flow graphs may be of: more than a large program opens.
const GRAPHS_MAX: usize = 65_536;

/// The orders of the starts of one workload, or of one trace file.
struct Recorded {
    case: String,
    orders: Vec<Order>,
    /// How many orders at the beginning are training.
    training: usize,
}

/// Runs the bench on `traces`, or if there are none on starts recorded now. Output as in
/// [`crate::stream::run`].
pub fn run(options: &Options, traces: &[PathBuf], out: &mut dyn Write) -> anyhow::Result<()> {
    let plan = options.plan()?;
    interrupt::listen()?;
    let recorded = if traces.is_empty() { record(options, &plan)? } else { read(traces, plan.learning_runs)? };
    let mut lines = Vec::new();
    for recorded in &recorded {
        for link in &plan.links {
            let series = compare(recorded, link);
            for row in series.iter().flat_map(|series| series.rows(BENCH, &plan.commit)) {
                let line = Row::to_json(&row)?;
                if options.json {
                    writeln!(out, "{line}")?;
                }
                lines.push(line);
            }
            if !options.json {
                let title = format!("{} {link}", recorded.case);
                writeln!(out, "\n{}", table(&title, &series.iter().collect::<Vec<_>>(), None))?;
            }
            out.flush()?;
        }
    }
    options.history.as_deref().map_or(Ok(()), |history| append_history(history, &lines))
}

/// The orders of trace files, each a case of its own.
fn read(traces: &[PathBuf], training: usize) -> anyhow::Result<Vec<Recorded>> {
    let read_one = |path: &PathBuf| {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
        let trace = trace::read(&bytes, &trace::Limits::default());
        let trace = trace.with_context(|| format!("{} is no trace that can be used", path.display()))?;
        let orders: Vec<Order> = profile::orders(&trace).into_iter().filter(|order| !order.pages.is_empty()).collect();
        ensure!(
            orders.len() > training,
            "{} has {} runs; more than the {training} for training are needed",
            path.display(),
            orders.len()
        );
        let case = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Recorded { case, orders, training })
    };
    traces.iter().map(read_one).collect()
}

/// Starts each workload with servers that know nothing and keeps what they wrote down.
fn record(options: &Options, plan: &Plan) -> anyhow::Result<Vec<Recorded>> {
    let temporary =
        tempfile::Builder::new().prefix("runnel-bench-").tempdir().context("cannot make a folder for the bench")?;
    let folder = options.work.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the work folder {}", folder.display()))?;
    let folder = std::fs::canonicalize(&folder)?;
    let scratch = temporary.path().join("scratch");
    std::fs::create_dir_all(&scratch)?;
    let starter = Starter { runnel: plan.runnel.clone(), scratch };
    let product = Product { runnel: plan.runnel.clone() };
    let database = Database::read()?;
    let mut all = Vec::new();
    for workload in &plan.cases {
        if let Some(package) = workload.tree.missing(&database) {
            say(&format!("skipped: {}: the Debian package {package} is not installed", workload.name));
            continue;
        }
        let starts = plan.learning_runs + plan.runs;
        say(&format!("{}: recording {starts} starts", workload.name));
        let (root, _) = workload.tree.build(&database, &folder)?;
        let image = folder.join(format!("{}.rnl", workload.tree.name()));
        product.pack(&root, &image)?;
        let mut orders = Vec::new();
        let mut training = 0;
        for start in 0..starts {
            if start == plan.learning_runs {
                training = orders.len();
            }
            let found =
                record_start(&product, &starter, workload, &image, &fresh_folder(&folder.join("run-predict"))?)?;
            orders.extend(number(found, orders.len()));
        }
        all.push(Recorded { case: workload.name.to_string(), orders, training });
    }
    Ok(all)
}

/// The orders of one start, one for each process that it made.
fn record_start(
    product: &Product,
    starter: &Starter,
    workload: &Workload,
    image: &Path,
    folder: &Path,
) -> anyhow::Result<Vec<Order>> {
    // A link without delay: the order does not depend on it, the time of recording does.
    let link: Link = "lan".parse()?;
    let store = product.fresh_store(image, folder.join("store"))?;
    let mut server = product.serve(&store, &link, 1, &[], folder)?;
    learn(&mut server, &store, |server| {
        let mounted = product.mount_remote(server, &[], folder)?;
        starter.measure(&mounted, workload, Some(&link))?;
        mounted.close()
    })?;
    server.stop()?;
    let mut orders = Vec::new();
    for path in store.learned_files() {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let set = profile::decode(&bytes, &profile::Limits::default());
        let set = set.with_context(|| format!("{} is no actions file", path.display()))?;
        orders.extend(set.iter().map(|action| order(action.pages.clone())));
    }
    ensure!(!orders.is_empty(), "the server learned nothing from a start of {}", workload.name);
    Ok(orders)
}

fn order(pages: Vec<units::PageId>) -> Order {
    Order { token: Token(0), name: Vec::new(), began: Moment(0), ended: None, pages, exact: true }
}

/// Gives each order a token of its own, from `first` on.
fn number(orders: Vec<Order>, first: usize) -> impl Iterator<Item = Order> {
    orders
        .into_iter()
        .enumerate()
        .map(move |(index, order)| Order { token: Token((first + index) as u128 + 1), ..order })
}

/// One series for each predictor.
fn compare(recorded: &Recorded, link: &Link) -> Vec<Series> {
    let image = ImageId([0; 32]);
    let actions = |mode: Mode| ActionPredictor::new(image, Config { mode, ..Config::default() });
    // Graphs of every file, learned from nothing but the touches.
    let graphs = FlowConfig { learned_max: GRAPHS_MAX, ..FlowConfig::default() };
    let predictors: [(&str, Visible, Box<dyn Predictor>); 5] = [
        ("action-stream", Visible::SegmentStarts, Box::new(actions(Mode::Streaming))),
        ("action-paper", Visible::All, Box::new(actions(Mode::Paper))),
        ("flow-graph", Visible::All, Box::new(FlowPredictor::new(graphs))),
        ("linux-readahead", Visible::All, Box::new(LinuxReadahead::new(file_pages(&recorded.orders)))),
        ("majority-trend", Visible::All, Box::new(MajorityTrend::new())),
    ];
    let mut series = Vec::new();
    for (name, visible, mut predictor) in predictors {
        let page_time = link.line_time(PAGE_LINK_BYTES);
        let model = CostModel { round_trip: link.rtt, page_time, visible, ..CostModel::default() };
        let evaluations = evaluate(predictor.as_mut(), &recorded.orders, &model);
        let samples = evaluations.iter().skip(recorded.training).map(sample).collect();
        let (case, link) = (recorded.case.clone(), link.name().to_string());
        series.push(Series { case, peer: name.to_string(), mode: "model".to_string(), link, samples });
    }
    series
}

fn sample(evaluation: &Evaluation) -> Sample {
    let count = |number: u64| number as f64;
    Sample::from([
        (Metric::Wall, evaluation.wall.as_secs_f64()),
        (Metric::Bytes, count((evaluation.demanded + evaluation.pushed) * PAGE_LINK_BYTES)),
        (Metric::PagesDemanded, count(evaluation.demanded)),
        (Metric::PagesPushed, count(evaluation.pushed)),
        (Metric::PagesWasted, count(evaluation.wasted)),
        (Metric::Stall, evaluation.stalled.as_secs_f64()),
    ])
}

/// Sizes of files as far as the orders tell: up to the last page that any start touched. Readahead
/// past that, which the kernel would do, is waste that this spares the baseline.
fn file_pages(orders: &[Order]) -> impl Fn(InodeId) -> u32 + Send + Sync + 'static {
    let mut sizes: HashMap<InodeId, u32> = HashMap::new();
    for page in orders.iter().flat_map(|order| &order.pages) {
        let size = sizes.entry(page.inode).or_default();
        *size = (*size).max(page.index.saturating_add(1));
    }
    move |inode| sizes.get(&inode).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use units::PageId;

    use super::*;

    /// A program that touches pages of two files in an order that is no sequence.
    fn recorded(starts: usize) -> Recorded {
        let page = |step: u32| PageId::new(InodeId(2 + step % 2), (step * 37) % 211);
        let orders = (0..starts).map(|_| order((0..200).map(page).collect()));
        Recorded { case: "made".into(), orders: number(orders.collect(), 0).collect(), training: 2 }
    }

    #[test]
    fn learned_orders_beat_the_baselines_on_a_jumping_program() -> anyhow::Result<()> {
        let link: Link = "20ms-25mbit".parse()?;
        let series = compare(&recorded(7), &link);
        let median = |name: &str, metric: Metric| {
            let found = series.iter().find(|series| series.peer == name).and_then(|series| series.summary(metric));
            found.map(|summary| (summary.median, summary.count)).unwrap_or_default()
        };
        let (stream, count) = median("action-stream", Metric::Wall);
        assert_eq!(count, 5, "training is not counted");
        for baseline in ["linux-readahead", "majority-trend"] {
            assert!(stream > 0.0 && stream < median(baseline, Metric::Wall).0 / 2.0, "{baseline}: {stream}");
        }
        assert!(median("action-paper", Metric::PagesDemanded).0 < median("linux-readahead", Metric::PagesDemanded).0);
        Ok(())
    }

    #[test]
    fn trace_files_that_cannot_be_used_are_refused_by_name() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("made.trace");
        std::fs::write(&path, "no trace")?;
        let missing = folder.path().join("none.trace");
        for (path, expected) in [(path, "is no trace"), (missing, "cannot read the trace")] {
            let error = format!("{:#}", read(std::slice::from_ref(&path), 1).err().context("it must be refused")?);
            assert!(error.contains(expected) && error.contains(&path.display().to_string()), "{error}");
        }
        Ok(())
    }
}
