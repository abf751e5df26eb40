//! Plots as SVG inside HTML: horizontal bars ([`bars`]), the course of a run over time
//! ([`course`]), what is done ahead of time ([`leads`]), lines, distributions and scatter
//! ([`lines`]), ranges ([`ranges`]), strips ([`strips`]).
//!
//! Colours are classes, so that the style sheet can give them other values in the dark; a plot
//! never tells series apart by colour alone: bars carry their names, lines a dash pattern. Every
//! plot is followed by its numbers as a table that opens on demand, and has a title for screen
//! readers. Coordinates are user units of a drawing [`WIDTH`] wide, which the page scales. Numbers
//! must be finite: whoever measures sees to that, and [`scale::Scale`] keeps points inside the
//! drawing.

pub mod bars;
pub mod course;
pub mod leads;
pub mod lines;
pub mod ranges;
pub mod scale;
pub mod strips;

use std::fmt::Write;

use crate::html::{Table, escape};

/// Width of a drawing, user units.
pub const WIDTH: f64 = 540.0;

/// Colours of the style sheet that belong to the systems of the lab, one each.
pub const RESERVED_TONES: usize = 15;

/// All colours of the style sheet.
const TONES: usize = RESERVED_TONES + 5;

/// The `index`th colour that belongs to no system of the lab.
pub fn neutral_tone(index: usize) -> usize {
    RESERVED_TONES + index % (TONES - RESERVED_TONES)
}

/// An entry of a legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// What it stands for.
    pub label: String,
    /// Its colour.
    pub tone: usize,
    /// The dash pattern of a line; `None` for an area.
    pub dash: Option<usize>,
}

impl Key {
    /// The key of an area.
    pub fn area(label: impl Into<String>, tone: usize) -> Key {
        Key { label: label.into(), tone, dash: None }
    }

    fn html(&self) -> String {
        let Key { label, tone, dash } = self;
        let swatch = match dash {
            None => format!("<i class=\"k{tone}\"></i>"),
            Some(dash) => format!(
                "<svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><path class=\"s{tone} dash{dash}\" d=\"M0 4L26 4\"/></svg>"
            ),
        };
        format!("<span>{swatch}{}</span>", escape(label))
    }
}

/// A drawing under construction.
struct Canvas {
    body: String,
    height: f64,
}

impl Canvas {
    fn new(height: f64) -> Canvas {
        Canvas { body: String::new(), height }
    }

    /// Adds an element; `content` is escaped by its caller.
    fn add(&mut self, element: std::fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(element);
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.add(format_args!("<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>", at(x), at(y), escape(text)));
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(at);
        self.add(format_args!("<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"));
    }

    fn rectangle(&mut self, class: &str, corner: (f64, f64), width: f64, height: f64) {
        let [x, y, width, height] = [corner.0, corner.1, width.max(0.0), height.max(0.0)].map(at);
        self.add(format_args!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"));
    }

    /// The figure: legend, drawing, numbers.
    fn figure(self, title: &str, legend: &[Key], numbers: &Table) -> String {
        let items: String = legend.iter().map(Key::html).collect();
        let legend = if items.is_empty() { items } else { format!("<div class=\"legend\">{items}</div>") };
        let title = escape(title);
        let (width, height, body) = (at(WIDTH), at(self.height), self.body);
        format!(
            "<figure><figcaption>{title}</figcaption>{legend}<div class=\"scroll\"><svg viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-label=\"{title}\"><title>{title}</title>{body}</svg></div>\
             <details><summary>Numbers</summary>{}</details></figure>\n",
            numbers.html()
        )
    }
}

/// A coordinate: a tenth of a unit is finer than a pixel.
fn at(coordinate: f64) -> String {
    let text = format!("{coordinate:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}
