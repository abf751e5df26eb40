//! Strips of cells, one above the other, that are the darker the more they hold: where something
//! lies in a file.

use super::{Canvas, WIDTH, neutral_tone};
use crate::html::Table;

const LABEL_HEIGHT: f64 = 20.0;
const STRIP_HEIGHT: f64 = 26.0;
const GAP: f64 = 10.0;

/// Parts into which the numbers below a drawing are summed up.
const NUMBERS: usize = 12;

/// A drawing of strips.
#[derive(Clone, Debug, PartialEq)]
pub struct Strips {
    /// What is shown.
    pub title: String,
    /// Name and cells of each strip; a cell holds a share from 0 to 1.
    pub rows: Vec<(String, Vec<f64>)>,
}

impl Strips {
    /// The figure; empty without cells.
    pub fn html(&self) -> String {
        if self.rows.iter().all(|(_, cells)| cells.is_empty()) {
            return String::new();
        }
        let mut canvas = Canvas::new(self.rows.len() as f64 * (LABEL_HEIGHT + STRIP_HEIGHT + GAP));
        let mut table = Table::new(&["", "part", "mean share"]).words(2);
        let tone = neutral_tone(0);
        for (index, (label, cells)) in self.rows.iter().enumerate() {
            let top = index as f64 * (LABEL_HEIGHT + STRIP_HEIGHT + GAP);
            canvas.text(0.0, top + LABEL_HEIGHT - 6.0, "head", label);
            canvas.rectangle("frame", (0.0, top + LABEL_HEIGHT), WIDTH, STRIP_HEIGHT);
            let width = WIDTH / cells.len().max(1) as f64;
            for (cell, share) in cells.iter().enumerate().filter(|(_, share)| **share > 0.0) {
                let (x, y) = (cell as f64 * width, top + LABEL_HEIGHT);
                // The least that can be seen, however little it is.
                let opacity = share.clamp(0.08, 1.0);
                canvas.add(format_args!(
                    "<rect class=\"f{tone}\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{STRIP_HEIGHT}\" \
                     fill-opacity=\"{opacity:.2}\"/>"
                ));
            }
            for (part, shares) in cells.chunks(cells.len().div_ceil(NUMBERS).max(1)).enumerate() {
                let mean = shares.iter().sum::<f64>() / shares.len() as f64;
                table.row([label.clone(), format!("{} of {NUMBERS}", part + 1), crate::text::percent(mean)]);
            }
        }
        canvas.figure(&self.title, &[], &table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cells_that_hold_something_are_drawn() {
        let strips = Strips { title: "heat".into(), rows: vec![("a<b".into(), vec![0.0, 0.001, 1.0])] };
        let html = strips.html();
        assert_eq!(html.matches("fill-opacity").count(), 2);
        assert!(html.contains("a&lt;b") && html.contains("0.08"));
        assert!(Strips { rows: vec![("x".into(), vec![])], ..strips }.html().is_empty());
    }
}
