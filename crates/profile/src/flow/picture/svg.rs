//! A layered drawing: columns are steps from the start, lines are edges, their width is their part
//! of the weights.

use std::fmt::{self, Write};

use super::{Link, Sketch, percent};
use crate::flow::{FlowGraph, Share};

const NODE_WIDTH: f64 = 92.0;
const NODE_HEIGHT: f64 = 22.0;
const COLUMN: f64 = 160.0;
const ROW: f64 = 32.0;
/// Room at the left for the start, and on the other sides.
const MARGIN: f64 = 40.0;
/// Room for the title and one line of legend.
const HEAD: f64 = 64.0;
/// Least part whose percentage is written beside the edge.
const LABELLED_PART: f64 = 0.05;
/// Colours of stages; further stages take them again.
const TONES: [&str; 6] = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948"];
const PLAIN: &str = "#8a8f98";

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.title{font-size:14px;font-weight:600}\
.mid{text-anchor:middle}.small{font-size:10px;fill:#666}.edge{fill:none;stroke:#777;stroke-opacity:.7}\
.back{stroke-dasharray:4 3;stroke-opacity:.35}.paper{fill:#fff}.node{fill-opacity:.18}\
@media(prefers-color-scheme:dark){svg{background:#16181c}.paper{fill:#16181c}text{fill:#ddd}.small{fill:#aaa}.edge{stroke:#aaa}}";

/// The drawing, at most `nodes_max` nodes. It needs nothing beside itself.
///
/// # Errors
/// Those of `out`.
pub fn svg(graph: &FlowGraph, nodes_max: usize, out: &mut dyn Write) -> fmt::Result {
    let sketch = Sketch::new(graph, nodes_max);
    let places = places(&sketch);
    let right = places.iter().map(|(x, _)| x + NODE_WIDTH).fold(6.0 * NODE_WIDTH, f64::max) + MARGIN;
    let bottom = places.iter().map(|(_, y)| y + NODE_HEIGHT).fold(HEAD + ROW, f64::max) + MARGIN;
    let layout = graph.layout();
    let title = format!(
        "Flow graph: {} of {} blocks of {} bytes are used, {} edges",
        graph.used().len(),
        layout.blocks(),
        layout.block_bytes(),
        graph.edge_count()
    );
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {right:.0} {bottom:.0}\" width=\"{right:.0}\" \
         height=\"{bottom:.0}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>"
    )?;
    writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"24\">{title}</text>")?;
    legend(graph, &sketch, out)?;
    let start = (MARGIN / 2.0, HEAD + NODE_HEIGHT / 2.0);
    writeln!(out, "<circle cx=\"{:.0}\" cy=\"{:.0}\" r=\"6\" fill=\"{PLAIN}\"/>", start.0, start.1)?;
    for link in &sketch.links {
        let from = link
            .from
            .map_or((start.0 + 6.0, start.1), |from| (places[from].0 + NODE_WIDTH, places[from].1 + NODE_HEIGHT / 2.0));
        draw_link(link, from, places[link.to], out)?;
    }
    for (node, (x, y)) in sketch.nodes.iter().zip(&places) {
        let tone = node.stage.map_or(PLAIN, |stage| TONES[stage % TONES.len()]);
        writeln!(
            out,
            "<rect class=\"paper\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{NODE_WIDTH}\" height=\"{NODE_HEIGHT}\" rx=\"4\"/>\
             <rect class=\"node\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{NODE_WIDTH}\" height=\"{NODE_HEIGHT}\" rx=\"4\" \
             fill=\"{tone}\" stroke=\"{tone}\"/><text class=\"mid\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + NODE_WIDTH / 2.0,
            y + NODE_HEIGHT / 2.0 + 4.0,
            node.label()
        )?;
    }
    if let Some(hidden) = sketch.hidden() {
        writeln!(out, "<text x=\"{MARGIN}\" y=\"{:.0}\">{hidden}</text>", bottom - 14.0)?;
    }
    writeln!(out, "</svg>")
}

/// Upper left corners. Within a column, nodes lie in the order of what leads to them, then in that
/// of the traversal.
fn places(sketch: &Sketch) -> Vec<(f64, f64)> {
    let mut places = vec![(0.0, 0.0); sketch.nodes.len()];
    let layers = sketch.nodes.iter().map(|node| node.layer + 1).max().unwrap_or(0);
    for layer in 0..layers {
        let mut column: Vec<(f64, usize)> = (0..sketch.nodes.len())
            .filter(|number| sketch.nodes[*number].layer == layer)
            .map(|number| {
                let earlier =
                    |link: &&Link| link.to == number && link.from.is_some_and(|from| sketch.nodes[from].layer < layer);
                let rows: Vec<f64> = sketch
                    .links
                    .iter()
                    .filter(earlier)
                    .filter_map(|link| link.from)
                    .map(|from| places[from].1)
                    .collect();
                (rows.iter().sum::<f64>() / rows.len().max(1) as f64, number)
            })
            .collect();
        column.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        for (row, (_, number)) in column.into_iter().enumerate() {
            places[number] = (MARGIN + 20.0 + layer as f64 * COLUMN, HEAD + row as f64 * ROW);
        }
    }
    places
}

fn legend(graph: &FlowGraph, sketch: &Sketch, out: &mut dyn Write) -> fmt::Result {
    let mut x = MARGIN;
    for position in &sketch.stages {
        let stage = &graph.stages()[*position];
        let share = match stage.share() {
            Share::Rest => "rest".to_string(),
            Share::Percent(percent) => format!("{percent}%"),
            Share::Rate(rate) => format!("{rate} B/s"),
        };
        let text = format!("{} ({share})", stage.name());
        writeln!(
            out,
            "<rect x=\"{x:.0}\" y=\"36\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.0}\" y=\"45\">{}</text>",
            TONES[position % TONES.len()],
            x + 15.0,
            escape(&text)
        )?;
        // About what letters take.
        x += 35.0 + 7.0 * text.chars().count() as f64;
    }
    Ok(())
}

fn draw_link(link: &Link, from: (f64, f64), to: (f64, f64), out: &mut dyn Write) -> fmt::Result {
    let (x, y) = (to.0, to.1 + NODE_HEIGHT / 2.0);
    let width = 0.6 + link.part * if x <= from.0 { 0.6 } else { 2.4 };
    // An edge that leads on is a slope; one that leads back, a bow from the right side around to
    // the left.
    let back = x <= from.0;
    let bend = if back { COLUMN * 0.45 } else { (x - from.0) * 0.5 };
    let dip = if back { ROW * 0.9 } else { 0.0 };
    let class = if back { "edge back" } else { "edge" };
    writeln!(
        out,
        "<path class=\"{class}\" stroke-width=\"{width:.1}\" d=\"M{:.1} {:.1}C{:.1} {:.1} {:.1} {:.1} {x:.1} {y:.1}\"/>",
        from.0,
        from.1,
        from.0 + bend,
        from.1 + dip,
        x - bend,
        y + dip
    )?;
    if !back && (LABELLED_PART..0.995).contains(&link.part) {
        let (x, y) = ((from.0 + x) / 2.0, (from.1 + y) / 2.0 - 3.0);
        writeln!(out, "<text class=\"small mid\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", percent(link.part))?;
    }
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
