//! `runnel profile show`.

use std::path::PathBuf;

use profile::flow::{FlowGraph, Share, Stage, Updates, picture};

use crate::progress;

/// Items of the order that are printed for people.
const SHOWN_MAX: usize = 100;

#[derive(clap::Args)]
pub struct Args {
    /// The flow graph
    file: PathBuf,

    /// As JSON, with the whole order
    #[arg(long, group = "form")]
    json: bool,

    /// A picture as DOT text, for Graphviz
    #[arg(long, group = "form")]
    dot: bool,

    /// A picture as SVG
    #[arg(long, group = "form")]
    svg: bool,

    /// Nodes that a picture has at most; runs of blocks are one node
    #[arg(long, value_name = "NODES", default_value_t = picture::NODES_MAX as u32, value_parser = clap::value_parser!(u32).range(1..=2000))]
    nodes: u32,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let graph = super::read(&args.file)?;
    let nodes = args.nodes as usize;
    let mut drawn = String::new();
    if args.dot {
        picture::dot(&graph, nodes, &mut drawn)?;
    } else if args.svg {
        picture::svg(&graph, nodes, &mut drawn)?;
    }
    match (args.dot || args.svg, args.json) {
        (true, _) => progress::all(&drawn),
        (_, true) => progress::line(format_args!("{}", json(&graph))),
        _ => summary(&graph),
    }
}

fn summary(graph: &FlowGraph) -> anyhow::Result<()> {
    let layout = graph.layout();
    let used_bytes: u64 = graph.used().map(|block| layout.range(block)).map(|range| range.end - range.start).sum();
    outln!("file    {} bytes, {} blocks of {}", layout.file_bytes(), layout.blocks(), layout.block_bytes());
    outln!(
        "used    {} blocks, {}; {} first blocks, {} edges, updates {}",
        graph.used().len(),
        progress::human(used_bytes),
        graph.entry().len(),
        graph.edge_count(),
        updates(graph)
    );
    for (position, stage) in graph.stages().iter().enumerate() {
        let used = graph.used().filter(|block| graph.stage_of(*block) == Some(position)).count();
        let share = match stage.share() {
            Share::Rest => "what others leave".to_string(),
            Share::Percent(percent) => format!("{percent} % of the link"),
            Share::Rate(rate) => format!("{rate} bytes/s"),
        };
        outln!("stage   \"{}\": {used} of {} blocks are used, {share}", stage.name(), blocks(stage));
    }
    let order = graph.traversal();
    let ranges = ranges(&order);
    let shown: Vec<String> = ranges.iter().take(SHOWN_MAX).map(|(first, last)| span(*first, *last)).collect();
    outln!("order   {}", shown.join(" "));
    if ranges.len() > SHOWN_MAX {
        let rest: usize = ranges[SHOWN_MAX..].iter().map(|(first, last)| (last - first) as usize + 1).sum();
        outln!("        and {rest} more blocks; --json shows all");
    }
    Ok(())
}

fn updates(graph: &FlowGraph) -> &'static str {
    if graph.updates == Updates::Live { "live" } else { "static" }
}

fn blocks(stage: &Stage) -> u64 {
    stage.ranges().iter().map(|range| u64::from(range.last - range.first) + 1).sum()
}

fn span(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}..{last}") }
}

/// Blocks in an order, as runs of neighbours.
fn ranges(order: &[u32]) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for block in order {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*block) => *last = *block,
            _ => ranges.push((*block, *block)),
        }
    }
    ranges
}

fn json(graph: &FlowGraph) -> serde_json::Value {
    let layout = graph.layout();
    let stages = graph.stages().iter().enumerate().map(|(position, stage)| {
        let (percent, rate) = match stage.share() {
            Share::Rest => (None, None),
            Share::Percent(percent) => (Some(percent), None),
            Share::Rate(rate) => (None, Some(rate)),
        };
        let ranges: Vec<[u32; 2]> = stage.ranges().iter().map(|range| [range.first, range.last]).collect();
        let used = graph.used().filter(|block| graph.stage_of(*block) == Some(position)).count();
        serde_json::json!({ "name": stage.name(), "percent": percent, "bytes_per_second": rate, "ranges": ranges, "used": used })
    });
    let entry: Vec<[u32; 2]> = graph.entry().iter().map(|edge| [edge.to, edge.weight]).collect();
    serde_json::json!({
        "file_bytes": layout.file_bytes(), "block_bytes": layout.block_bytes(), "blocks": layout.blocks(),
        "used": graph.used().len(), "edges": graph.edge_count(), "updates": updates(graph), "entry": entry,
        "order": graph.traversal(), "stages": stages.collect::<Vec<_>>(),
    })
}
