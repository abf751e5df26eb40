//! The course of a run over time: a rising line of what was read, shaded stretches behind it,
//! marked moments below.

use std::fmt::Write;

use super::scale::{Scale, Unit};
use super::{Canvas, Key, WIDTH, at};
use crate::html::Table;
use crate::statistic::thinned;

const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 40.0;
const HEIGHT: f64 = 230.0;
/// Below the line: how much is asked for at a time.
const DENSITY_HEIGHT: f64 = 26.0;
const DENSITY_GAP: f64 = 12.0;
const MARKS_HEIGHT: f64 = 18.0;
const AXIS_HEIGHT: f64 = 44.0;

/// Steps of the line: more cannot be seen.
const STEPS_MAX: usize = 400;

/// Cells of the density below the line, each about three units wide.
const CELLS: usize = 156;

/// Least distance between the numbers of neighbouring stretches, units.
const NAME_WIDTH: f64 = 17.0;

/// A stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// A short name; left out where there is no room for it.
    pub name: String,
    /// Start and end, seconds.
    pub span: (f64, f64),
}

/// A marked moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// A short name.
    pub name: String,
    /// When, seconds.
    pub at: f64,
    /// To when an arrow leads, seconds.
    pub until: f64,
    /// What the table says of it.
    pub text: String,
}

/// A drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// What is shown.
    pub title: String,
    /// What rises.
    pub label: String,
    /// Moment, seconds, and how much was read then, bytes; in order of time.
    pub reads: Vec<(f64, f64)>,
    /// What the stretches are called in the legend.
    pub stretch: String,
    /// In order of time, without overlap.
    pub stretches: Vec<Stretch>,
    /// What the marks are called in the legend.
    pub mark: String,
    /// In order of time.
    pub marks: Vec<Mark>,
    /// When it all ended, seconds.
    pub ended: f64,
}

impl Course {
    /// The figure; empty if nothing was read.
    pub fn html(&self) -> String {
        if self.reads.is_empty() {
            return String::new();
        }
        let mut sum = 0.0;
        let steps: Vec<(f64, f64)> = self
            .reads
            .iter()
            .map(|(at, bytes)| {
                sum += bytes;
                (*at, sum)
            })
            .collect();
        let ends = self.stretches.iter().map(|stretch| stretch.span.1).chain([self.ended]);
        let x = Scale::linear(steps.iter().map(|step| step.0).chain(ends), [LEFT, WIDTH - RIGHT]);
        let y = Scale::linear(std::iter::once(sum), [HEIGHT, TOP]);
        let mut canvas = Canvas::new(self.bottom() + AXIS_HEIGHT);
        self.draw_stretches(&mut canvas, &x);
        self.draw_axes(&mut canvas, &x, &y);
        draw_steps(&mut canvas, &x, &y, &steps);
        self.draw_density(&mut canvas, &x);
        self.draw_marks(&mut canvas, &x);
        let line = Key { label: self.label.clone(), tone: LINE, dash: Some(0) };
        let mut legend = vec![line, Key::area(&self.stretch, STRETCH)];
        if !self.marks.is_empty() {
            legend.push(Key { label: self.mark.clone(), tone: MARK, dash: Some(1) });
        }
        canvas.figure(&self.title, &legend, &self.numbers(&steps))
    }

    fn bottom(&self) -> f64 {
        HEIGHT + DENSITY_GAP + DENSITY_HEIGHT + if self.marks.is_empty() { 4.0 } else { MARKS_HEIGHT }
    }

    fn draw_stretches(&self, canvas: &mut Canvas, x: &Scale) {
        let mut free = f64::MIN;
        for stretch in &self.stretches {
            let (left, right) = (x.at(stretch.span.0), x.at(stretch.span.1));
            // A unit is the least that can be seen.
            let width = (right - left).max(1.0);
            let (x, width, height) = (at(left), at(width), at(self.bottom() - TOP));
            canvas.add(format_args!(
                "<rect class=\"f{STRETCH}\" fill-opacity=\"0.22\" x=\"{x}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\"/>"
            ));
            let middle = f64::midpoint(left, right);
            if middle - NAME_WIDTH / 2.0 >= free {
                canvas.text(middle, TOP - 6.0, "tick mid", &stretch.name);
                free = middle + NAME_WIDTH / 2.0;
            }
        }
    }

    fn draw_axes(&self, canvas: &mut Canvas, x: &Scale, y: &Scale) {
        for tick in y.ticks() {
            let place = y.at(tick);
            canvas.line(if tick == 0.0 { "axis" } else { "grid" }, (LEFT, place), (WIDTH - RIGHT, place));
            canvas.text(LEFT - 7.0, place + 4.0, "tick end", &Unit::Bytes.tick(tick));
        }
        let bottom = self.bottom();
        for tick in x.ticks() {
            let place = x.at(tick);
            canvas.line("axis", (place, bottom), (place, bottom + 4.0));
            canvas.text(place, bottom + 17.0, "tick mid", &Unit::Seconds.tick(tick));
        }
        canvas.line("axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        canvas.text((LEFT + WIDTH - RIGHT) / 2.0, bottom + 38.0, "label mid", "time since the start of the program");
        canvas.text(0.0, 12.0, "label", &self.label);
    }

    /// Reads in each stretch of time, logarithmic: one alone is seen as well as thousands.
    fn draw_density(&self, canvas: &mut Canvas, x: &Scale) {
        let mut counts = vec![0u32; CELLS];
        let width = (WIDTH - RIGHT - LEFT) / CELLS as f64;
        for (moment, _) in &self.reads {
            let cell = ((x.at(*moment) - LEFT) / width) as usize;
            counts[cell.min(CELLS - 1)] += 1;
        }
        let most = f64::from(counts.iter().copied().max().unwrap_or(1)).ln_1p();
        let bottom = HEIGHT + DENSITY_GAP + DENSITY_HEIGHT;
        for (cell, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let height = DENSITY_HEIGHT * f64::from(*count).ln_1p() / most;
            canvas.rectangle(
                &format!("f{LINE}"),
                (LEFT + cell as f64 * width, bottom - height),
                (width - 0.4).max(0.4),
                height,
            );
        }
        canvas.text(LEFT - 7.0, bottom - 8.0, "tick end", "reads");
    }

    fn draw_marks(&self, canvas: &mut Canvas, x: &Scale) {
        let middle = HEIGHT + DENSITY_GAP + DENSITY_HEIGHT + MARKS_HEIGHT / 2.0;
        for mark in &self.marks {
            let (from, to) = (x.at(mark.at), x.at(mark.until));
            canvas.line(&format!("s{MARK} dash1"), (from, TOP), (from, middle));
            canvas.line(&format!("s{MARK}"), (from, middle), (to, middle));
            canvas.add(format_args!("<circle class=\"f{MARK}\" cx=\"{from:.1}\" cy=\"{middle:.1}\" r=\"3\"/>"));
        }
        if !self.marks.is_empty() {
            canvas.text(LEFT - 7.0, middle + 4.0, "tick end", "lead");
        }
    }

    fn numbers(&self, steps: &[(f64, f64)]) -> Table {
        let mut table = Table::new(&["", "from", "to", "read until then"]);
        let read_until = |moment: f64| {
            let position = steps.partition_point(|step| step.0 <= moment);
            Unit::Bytes.cell(position.checked_sub(1).map_or(0.0, |last| steps[last].1))
        };
        for Stretch { name, span } in &self.stretches {
            let [from, to] = [span.0, span.1].map(|moment| Unit::Seconds.cell(moment));
            table.row([format!("{} {name}", self.stretch), from, to, read_until(span.1)]);
        }
        for mark in &self.marks {
            let [from, to] = [mark.at, mark.until].map(|moment| Unit::Seconds.cell(moment));
            table.row([format!("{} {}: {}", self.mark, mark.name, mark.text), from, to, read_until(mark.at)]);
        }
        table
    }
}

/// Colours of the parts of the drawing.
const LINE: usize = super::RESERVED_TONES;
const STRETCH: usize = super::RESERVED_TONES + 1;
const MARK: usize = super::RESERVED_TONES + 3;

fn draw_steps(canvas: &mut Canvas, x: &Scale, y: &Scale, steps: &[(f64, f64)]) {
    let mut path = format!("M{} {}", at(x.at(0.0)), at(y.at(0.0)));
    for (moment, sum) in thinned(steps, STEPS_MAX) {
        let _ = write!(path, "H{}V{}", at(x.at(moment)), at(y.at(sum)));
    }
    let _ = write!(path, "H{}", at(WIDTH - RIGHT));
    canvas.add(format_args!("<path class=\"s{LINE}\" d=\"{path}\"/>"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course() -> Course {
        Course {
            title: "a<b".into(),
            label: "read".into(),
            reads: vec![(0.0, 4096.0), (0.1, 8192.0), (5.0, 0.0)],
            stretch: "burst".into(),
            stretches: vec![
                Stretch { name: "0".into(), span: (0.0, 0.1) },
                Stretch { name: "1".into(), span: (5.0, 5.0) },
            ],
            mark: "breakpoint".into(),
            marks: vec![Mark { name: "1".into(), at: 2.0, until: 5.0, text: "main".into() }],
            ended: 6.0,
        }
    }

    #[test]
    fn stretches_marks_and_what_was_read_until_then() {
        let html = course().html();
        assert_eq!(html.matches("fill-opacity").count(), 2);
        assert!(html.contains("a&lt;b") && html.contains("breakpoint 1: main") && html.contains("12.3 kB"));
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }

    #[test]
    fn nothing_read_is_no_figure_and_one_read_is_one() {
        assert!(Course { reads: vec![], ..course() }.html().is_empty());
        let one = Course { reads: vec![(0.0, 0.0)], stretches: vec![], marks: vec![], ended: 0.0, ..course() };
        let html = one.html();
        assert!(html.contains("<path") && !html.contains("NaN"), "{html}");
    }
}
