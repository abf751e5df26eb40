//! Spread of many values in one line each: percentiles 5 to 95 as a line, 25 to 75 as a box, the
//! median as a tick, the mean as a dot; logarithmic, since latencies of pages differ by four orders
//! of magnitude.

use super::scale::{Scale, Unit};
use super::{Canvas, WIDTH};
use crate::html::Table;

const LABEL_WIDTH: f64 = 152.0;
const RIGHT: f64 = 18.0;
const ROW_HEIGHT: f64 = 24.0;
const BOX_HEIGHT: f64 = 12.0;
const AXIS_HEIGHT: f64 = 40.0;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    /// What it is for.
    pub label: String,
    /// Its colour.
    pub tone: usize,
    /// Percentiles 5, 25, 50, 75, 95.
    pub percentiles: [f64; 5],
    /// Mean.
    pub mean: f64,
}

/// Lines over one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranges {
    /// What is shown.
    pub title: String,
    /// What the axis says.
    pub axis: String,
    /// What it counts.
    pub unit: Unit,
    /// The lines.
    pub ranges: Vec<Range>,
}

impl Ranges {
    /// The figure; empty without lines.
    pub fn html(&self) -> String {
        if self.ranges.is_empty() {
            return String::new();
        }
        let values = self.ranges.iter().flat_map(|range| range.percentiles.into_iter().chain([range.mean]));
        let scale = Scale::logarithmic(values, [LABEL_WIDTH, WIDTH - RIGHT]);
        let bottom = self.ranges.len() as f64 * ROW_HEIGHT + 4.0;
        let mut canvas = Canvas::new(bottom + AXIS_HEIGHT);
        for tick in scale.ticks() {
            let x = scale.at(tick);
            canvas.line("grid", (x, 0.0), (x, bottom));
            canvas.text(x, bottom + 15.0, "tick mid", &self.unit.tick(tick));
        }
        canvas.text((LABEL_WIDTH + WIDTH - RIGHT) / 2.0, bottom + 33.0, "label mid", &self.axis);
        for (index, range) in self.ranges.iter().enumerate() {
            draw(&mut canvas, &scale, range, (index as f64 + 0.5) * ROW_HEIGHT);
        }
        canvas.figure(&self.title, &[], &self.numbers())
    }

    fn numbers(&self) -> Table {
        let mut table = Table::new(&["", "mean", "p5", "p25", "p50", "p75", "p95"]);
        for range in &self.ranges {
            let numbers = std::iter::once(range.mean).chain(range.percentiles).map(|value| self.unit.cell(value));
            table.row(std::iter::once(range.label.clone()).chain(numbers));
        }
        table
    }
}

fn draw(canvas: &mut Canvas, scale: &Scale, range: &Range, middle: f64) {
    let [p5, p25, p50, p75, p95] = range.percentiles.map(|value| scale.at(value));
    let (tone, top) = (range.tone, middle - BOX_HEIGHT / 2.0);
    canvas.text(LABEL_WIDTH - 8.0, middle + 4.0, "name end", &range.label);
    canvas.line(&format!("s{tone}"), (p5, middle), (p95, middle));
    canvas.rectangle(&format!("box f{tone}"), (p25, top), (p75 - p25).max(2.0), BOX_HEIGHT);
    canvas.line("mark", (p50, top), (p50, top + BOX_HEIGHT));
    let mean = scale.at(range.mean);
    canvas.add(format_args!("<circle class=\"mean f{tone}\" cx=\"{mean:.1}\" cy=\"{middle:.1}\" r=\"4\"/>"));
}
