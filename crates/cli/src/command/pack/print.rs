//! What `runnel pack` tells: bars meanwhile, and a report at the end.

use std::sync::Mutex;

use ::pack::{Phase, Progress, Report};
use indicatif::ProgressBar;

use crate::progress;

/// The report for people.
pub fn print(report: &Report) -> anyhow::Result<()> {
    let rate = report.source.bytes as f64 / 1e6 / report.seconds.max(1e-9);
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    // Of a tree that is smaller than an image without files, a ratio says nothing.
    let ratio = match report.source.bytes > report.bytes_out {
        true => format!(
            " ({:.1} %, ratio {:.3})",
            share(report.bytes_out, report.source.bytes),
            report.source.bytes as f64 / report.bytes_out.max(1) as f64
        ),
        false => String::new(),
    };
    outln!(
        "{}, {} -> {}{ratio}, {} of {} chunks unique, {}, {:.1} s, {rate:.0} MB/s",
        progress::counted(report.source.files, "file"),
        progress::human(report.source.bytes),
        progress::human(report.bytes_out),
        report.chunks.unique,
        report.chunks.count,
        progress::counted(report.blocks, "block"),
        report.seconds,
    );
    outln!(
        "metadata {} ({:.2} %), blocks per file {:.2}, hot {} of data in {} ({} blocks)",
        progress::human(report.bytes_metadata),
        share(report.bytes_metadata, report.bytes_out),
        report.spread.cold,
        progress::human(report.hot.bytes),
        progress::human(report.hot.stored_bytes),
        report.hot.blocks,
    );
    if let Some(base) = &report.base {
        outln!(
            "{} of {} of the base reused ({}), {} new ({}), {} dead ({:.2} % of data)",
            base.reused_blocks,
            progress::counted(base.base_blocks, "block"),
            progress::human(base.reused_bytes),
            base.new_blocks,
            progress::human(base.new_bytes),
            progress::human(base.dead_bytes),
            share(base.dead_bytes, base.dead_bytes + report.chunks.unique_bytes),
        );
    }
    if report.deflate.files > 0 {
        outln!(
            "{} .gz files kept as text: {} are {} as text and {} in the image",
            report.deflate.files,
            progress::human(report.deflate.bytes),
            progress::human(report.deflate.expanded_bytes),
            progress::human(report.deflate.stored_bytes),
        );
    }
    let Some(stages) = &report.stages else { return Ok(()) };
    outln!("{:20} {:>14} {:>10} {:>16}", "stage", "blocks, bytes", "saved", "blocks per file");
    let mut before = None;
    for stage in stages {
        let saved = before.map_or(String::new(), |before: u64| {
            format!("{:.2} %", 100.0 * (before as f64 - stage.bytes as f64) / before.max(1) as f64)
        });
        outln!("{:20} {:>14} {:>10} {:>16.2}", stage.stage, stage.bytes, saved, stage.blocks_per_file);
        before = Some(stage.bytes);
    }
    Ok(())
}

/// Draws a bar per phase.
pub struct Bars(pub Mutex<ProgressBar>);

impl Progress for Bars {
    fn phase(&self, phase: Phase, total: u64) {
        let what = match phase {
            Phase::Scan => "listing",
            Phase::Survey => "reading",
            Phase::Expand => "expanding",
            Phase::Sort => "sorting",
            Phase::Learn => "learning",
            Phase::Pack => "packing",
            Phase::Explain(stage) => stage,
            Phase::Finish => "finishing",
            Phase::Extract => "extracting",
        };
        let mut bar = self.0.lock().expect("no bar panics");
        bar.finish_and_clear();
        *bar = progress::bytes(total, what);
    }

    fn advance(&self, amount: u64) {
        self.0.lock().expect("no bar panics").inc(amount);
    }
}
