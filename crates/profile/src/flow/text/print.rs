//! Prints a graph in its text form.

use std::collections::HashSet;
use std::fmt::{self, Write};

use crate::flow::{Edge, FlowGraph, Share, Updates};

/// Writes `graph` as text: the file, first blocks, edges in the order of their blocks, what is used
/// beside them, stages. Equal graphs give equal text.
///
/// # Errors
/// Those of `out`.
pub fn print(graph: &FlowGraph, out: &mut dyn Write) -> fmt::Result {
    let layout = graph.layout();
    writeln!(out, "flow 1\nsize {}\nblock {}", layout.file_bytes(), layout.block_bytes())?;
    writeln!(out, "updates {}", if graph.updates == Updates::Live { "live" } else { "static" })?;
    for edge in graph.entry() {
        writeln!(out, "start -> {}{}", edge.to, weight(edge.weight))?;
    }
    let mut walked_to = 0;
    for block in graph.used() {
        for edge in graph.successors(block) {
            let next = block + 1;
            if edge.to != next {
                writeln!(out, "{block} -> {}{}", edge.to, weight(edge.weight))?;
            } else if next > walked_to {
                walked_to = walk(graph, edge);
                match walked_to - block {
                    1 => writeln!(out, "{block} -> {next}{}", weight(edge.weight))?,
                    _ => writeln!(out, "seq {block}..{walked_to}{}", weight(edge.weight))?,
                }
            }
        }
    }
    print_unordered(graph, out)?;
    for stage in graph.stages() {
        write!(out, "stage \"{}\"", stage.name())?;
        for range in stage.ranges() {
            write!(out, " {}", span(range.first, range.last))?;
        }
        match stage.share() {
            Share::Rest => writeln!(out)?,
            Share::Percent(percent) => writeln!(out, " share {percent}%")?,
            Share::Rate(rate) => writeln!(out, " rate {rate}")?,
        }
    }
    Ok(())
}

fn weight(weight: u32) -> String {
    if weight == 1 { String::new() } else { format!(" x{weight}") }
}

fn span(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}..{last}") }
}

/// Where the walk ends that goes on from `edge` block by block with one weight.
fn walk(graph: &FlowGraph, edge: &Edge) -> u32 {
    let mut end = edge.to;
    let goes_on =
        |block: u32| graph.successors(block).iter().any(|next| next.to == block + 1 && next.weight == edge.weight);
    while goes_on(end) {
        end += 1;
    }
    end
}

/// Blocks that no edge begins or ends at.
fn print_unordered(graph: &FlowGraph, out: &mut dyn Write) -> fmt::Result {
    let edges = graph.used().flat_map(|block| graph.successors(block)).chain(graph.entry());
    let targets: HashSet<u32> = edges.map(|edge| edge.to).collect();
    let mut alone = graph.used().filter(|block| graph.successors(*block).is_empty() && !targets.contains(block));
    let mut range: Option<(u32, u32)> = None;
    loop {
        let block = alone.next();
        range = match (range, block) {
            (Some((first, last)), Some(block)) if block == last + 1 => Some((first, block)),
            (before, block) => {
                if let Some((first, last)) = before {
                    writeln!(out, "used {}", span(first, last))?;
                }
                block.map(|block| (block, block))
            }
        };
        if block.is_none() {
            return Ok(());
        }
    }
}
