//! Curves and clouds of points over two axes: lines, distributions, scatter.

use std::fmt::Write;

use super::scale::{Scale, Unit};
use super::{Canvas, Key, WIDTH, at};
use crate::html::Table;
use crate::statistic::{quantile, thinned};

const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 46.0;
const HEIGHT: f64 = 290.0;

/// Most points of a line: more cannot be seen and make the page heavy.
const LINE_POINTS_MAX: usize = 180;

/// Most points that are drawn alone.
const POINTS_MAX: usize = 500;

/// Rows of a curve in the table of numbers.
const ROWS_MAX: usize = 12;

/// Where on a logarithmic axis zero is drawn: below the smallest value, by this factor.
const ZERO_FACTOR: f64 = 4.0;

/// Dash patterns of the style sheet.
const DASHES: usize = 4;

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it says.
    pub label: String,
    /// What it counts.
    pub unit: Unit,
    /// Whether it is logarithmic; a zero is then drawn left of the smallest value and called so.
    pub logarithmic: bool,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: &str, unit: Unit) -> Axis {
        Axis { label: label.to_string(), unit, logarithmic: false }
    }

    /// A logarithmic axis.
    pub fn logarithmic(label: &str, unit: Unit) -> Axis {
        Axis { label: label.to_string(), unit, logarithmic: true }
    }

    fn scale(&self, values: impl Iterator<Item = f64>, ends: [f64; 2]) -> Scale {
        if self.logarithmic { Scale::logarithmic(values, ends) } else { Scale::linear(values, ends) }
    }
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line through the points.
    Line,
    /// A line with a dot at each point.
    Dotted,
    /// Points alone.
    Points,
}

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name.
    pub label: String,
    /// Its colour.
    pub tone: usize,
    /// Its points; `x` ascending unless they are drawn alone.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// What is shown.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// How.
    pub style: Style,
    /// The series.
    pub curves: Vec<Curve>,
}

/// Points of the distribution of `values`: for each value the share that is not larger.
pub fn distribution(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let points: Vec<(f64, f64)> =
        sorted.iter().enumerate().map(|(index, value)| (*value, (index + 1) as f64 / count)).collect();
    thinned(&points, LINE_POINTS_MAX)
}

impl Lines {
    /// The figure; empty without points.
    pub fn html(&self) -> String {
        let curves: Vec<Curve> =
            self.curves.iter().filter(|curve| !curve.points.is_empty()).map(|curve| self.prepared(curve)).collect();
        if curves.is_empty() {
            return String::new();
        }
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let zero = points().any(|point| point.0 == 0.0).then(|| self.zero(points().map(|point| point.0))).flatten();
        let x = self.x.scale(points().map(|point| point.0).chain(zero), [LEFT, WIDTH - RIGHT]);
        let y = self.y.scale(points().map(|point| point.1), [HEIGHT - BOTTOM, TOP]);
        let mut canvas = Canvas::new(HEIGHT);
        self.draw_axes(&mut canvas, &x, &y, zero);
        for (index, curve) in curves.iter().enumerate() {
            let places: Vec<(f64, f64)> = curve
                .points
                .iter()
                .map(|point| (x.at(zero.filter(|_| point.0 == 0.0).unwrap_or(point.0)), y.at(point.1)))
                .collect();
            self.draw(&mut canvas, curve.tone, index, &places);
        }
        let key = |(index, curve): (usize, &Curve)| Key {
            label: curve.label.clone(),
            tone: curve.tone,
            dash: (self.style != Style::Points).then_some(index % DASHES),
        };
        let legend: Vec<Key> = curves.iter().enumerate().map(key).collect();
        let legend = if legend.len() > 1 { legend } else { Vec::new() };
        canvas.figure(&self.title, &legend, &self.numbers())
    }

    fn prepared(&self, curve: &Curve) -> Curve {
        let most = if self.style == Style::Points { POINTS_MAX } else { LINE_POINTS_MAX };
        Curve { points: thinned(&curve.points, most), ..curve.clone() }
    }

    /// Where zero is drawn on a logarithmic axis.
    fn zero(&self, values: impl Iterator<Item = f64>) -> Option<f64> {
        let smallest = values.filter(|value| *value > 0.0).min_by(f64::total_cmp)?;
        self.x.logarithmic.then_some(smallest / ZERO_FACTOR)
    }

    /// Different values of `x`, ascending.
    fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    fn draw_axes(&self, canvas: &mut Canvas, x: &Scale, y: &Scale, zero: Option<f64>) {
        for tick in y.ticks() {
            let place = y.at(tick);
            canvas.line(if tick == 0.0 { "axis" } else { "grid" }, (LEFT, place), (WIDTH - RIGHT, place));
            canvas.text(LEFT - 7.0, place + 4.0, "tick end", &self.y.unit.tick(tick));
        }
        // A few measured places are better ticks than round numbers.
        let ticks = if self.style == Style::Dotted { self.places() } else { x.ticks() };
        let ticks: Vec<f64> = ticks.into_iter().filter(|tick| zero.is_none_or(|zero| *tick > zero * 2.0)).collect();
        let zero = zero.map(|zero| (x.at(zero), "0".to_string()));
        let ticks = ticks.into_iter().map(|tick| (x.at(tick), self.x.unit.tick(tick)));
        for (place, label) in zero.into_iter().chain(ticks) {
            canvas.line("axis", (place, HEIGHT - BOTTOM), (place, HEIGHT - BOTTOM + 4.0));
            canvas.text(place, HEIGHT - BOTTOM + 17.0, "tick mid", &label);
        }
        canvas.line("axis", (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM));
        canvas.text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, "label mid", &self.x.label);
        canvas.text(0.0, 12.0, "label", &self.y.label);
    }

    fn draw(&self, canvas: &mut Canvas, tone: usize, index: usize, places: &[(f64, f64)]) {
        if self.style != Style::Points {
            let mut path = String::new();
            for (number, (x, y)) in places.iter().enumerate() {
                let _ = write!(path, "{}{} {}", if number == 0 { "M" } else { "L" }, at(*x), at(*y));
            }
            canvas.add(format_args!("<path class=\"s{tone} dash{}\" d=\"{path}\"/>", index % DASHES));
        }
        if self.style != Style::Line {
            let radius = if self.style == Style::Points { "1.7" } else { "3" };
            for (x, y) in places {
                let (x, y) = (at(*x), at(*y));
                canvas.add(format_args!("<circle class=\"f{tone}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"/>"));
            }
        }
    }

    fn numbers(&self) -> Table {
        let mut table = Table::new(&["", &self.x.label, &self.y.label]);
        for curve in &self.curves {
            for (x, y) in thinned(&curve.points, ROWS_MAX) {
                table.row([curve.label.clone(), self.x.unit.cell(x), self.y.unit.cell(y)]);
            }
        }
        table
    }
}

/// Usual percentiles of `values`: 5, 25, 50, 75, 95.
pub fn percentiles(values: &[f64]) -> Option<[f64; 5]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let [a, b, c, d, e] = [0.05, 0.25, 0.5, 0.75, 0.95].map(|share| quantile(&sorted, share));
    Some([a?, b?, c?, d?, e?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_ends_at_one() {
        let points = distribution(&[3.0, 1.0, 2.0, 4.0]);
        assert_eq!(points, [(1.0, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0)]);
        assert_eq!(distribution(&[]), []);
        assert_eq!(percentiles(&[1.0, 2.0, 3.0]), Some([1.0, 2.0, 2.0, 3.0, 3.0]));
    }
}
