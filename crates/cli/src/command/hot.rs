//! `runnel hot`.

use std::path::PathBuf;
use std::process::ExitCode;

use profile::Hot;

use crate::{hot, progress};

/// Show which pages of which files traces and learned actions call hot
#[derive(clap::Args)]
pub struct Args {
    /// Traces of `runnel record`, or `learned/ID.actions` of a server's store
    #[arg(required = true)]
    files: Vec<PathBuf>,

    /// The image they were recorded on, for those that do not name their files (learned actions)
    #[arg(long, value_name = "IMAGE")]
    trace_image: Option<PathBuf>,

    /// Leave out pages that fewer runs touched
    #[arg(long, value_name = "RUNS", default_value_t = 1)]
    min_runs: u32,

    /// Print all pages in order, as JSON
    #[arg(long)]
    json: bool,
}

/// One line a file, in the order of their first hot pages.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let hot = hot::load(&args.files, args.trace_image.as_deref(), args.min_runs)?;
    if args.json {
        outln!("{}", json(&hot));
        return Ok(ExitCode::SUCCESS);
    }
    for file in &hot.files {
        outln!("{:>7} of {:>7} pages  {}", file.pages.len(), file.size.div_ceil(4096), file.path.escape_ascii());
    }
    let (files, pages) = (hot.files.len(), hot.order.len());
    let runs = if hot.runs == 1 { "1 run".to_string() } else { format!("{} runs", hot.runs) };
    outln!("{files} files, {pages} pages, {} over {runs}", progress::human(hot.bytes()));
    if hot.rare > 0 {
        outln!("{} pages of fewer than {} runs left out", hot.rare, args.min_runs);
    }
    Ok(ExitCode::SUCCESS)
}

fn json(hot: &Hot) -> serde_json::Value {
    let files = hot.files.iter().map(|file| {
        serde_json::json!({ "path": file.path.escape_ascii().to_string(), "size": file.size, "pages": file.pages })
    });
    let order = hot.order.iter().map(|page| [page.file, page.page, page.runs]);
    serde_json::json!({
        "files": files.collect::<Vec<_>>(), "order": order.collect::<Vec<_>>(), "runs": hot.runs, "rare": hot.rare,
        "bytes": hot.bytes(),
    })
}
