//! Whether something that is started ahead of time is done in time: a row for each, with the moment
//! it is needed at zero. A frame goes from the start to that moment, a bar from the start to when
//! it is done; what sticks out to the right is late.

use super::scale::{Scale, Unit};
use super::{Canvas, Key, RESERVED_TONES, WIDTH};
use crate::html::{Cell, Table};

const LABEL_WIDTH: f64 = 70.0;
const VALUE_WIDTH: f64 = 84.0;
const ROW_HEIGHT: f64 = 26.0;
const BAR_HEIGHT: f64 = 12.0;
const AXIS_HEIGHT: f64 = 40.0;

const IN_TIME: usize = RESERVED_TONES + 2;
const LATE: usize = RESERVED_TONES + 1;

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Lead {
    /// Its name.
    pub label: String,
    /// How long before it is needed it starts, seconds.
    pub ahead: f64,
    /// How long it takes, seconds.
    pub takes: f64,
    /// What is written at the end.
    pub text: String,
}

/// A drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Leads {
    /// What is shown.
    pub title: String,
    /// What the axis says.
    pub axis: String,
    /// The rows.
    pub rows: Vec<Lead>,
}

impl Leads {
    /// The figure; empty without rows.
    pub fn html(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let values = self.rows.iter().flat_map(|row| [-row.ahead, row.takes - row.ahead]);
        let scale = Scale::linear(values, [LABEL_WIDTH, WIDTH - VALUE_WIDTH]);
        let bottom = self.rows.len() as f64 * ROW_HEIGHT + 4.0;
        let mut canvas = Canvas::new(bottom + AXIS_HEIGHT);
        for tick in scale.ticks() {
            let x = scale.at(tick);
            canvas.line(if tick == 0.0 { "mark" } else { "grid" }, (x, 0.0), (x, bottom));
            canvas.text(x, bottom + 15.0, "tick mid", &Unit::Seconds.tick(tick));
        }
        canvas.text((LABEL_WIDTH + WIDTH - VALUE_WIDTH) / 2.0, bottom + 33.0, "label mid", &self.axis);
        for (index, row) in self.rows.iter().enumerate() {
            let top = index as f64 * ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT) / 2.0;
            let (start, needed, done) = (scale.at(-row.ahead), scale.at(0.0), scale.at(row.takes - row.ahead));
            canvas.text(LABEL_WIDTH - 8.0, top + BAR_HEIGHT - 2.0, "name end", &row.label);
            canvas.rectangle("frame", (start, top - 3.0), needed - start, BAR_HEIGHT + 6.0);
            let in_time = done.min(needed) - start;
            canvas.rectangle(
                &format!("f{IN_TIME}"),
                (start, top),
                in_time.max(if row.ahead > 0.0 { 1.0 } else { 0.0 }),
                BAR_HEIGHT,
            );
            canvas.rectangle(&format!("f{LATE}"), (needed, top), done - needed, BAR_HEIGHT);
            canvas.text(WIDTH - VALUE_WIDTH + 8.0, top + BAR_HEIGHT - 2.0, "value", &row.text);
        }
        let legend = [Key::area("fetched before it is needed", IN_TIME), Key::area("fetched after", LATE)];
        canvas.figure(&self.title, &legend, &self.numbers())
    }

    fn numbers(&self) -> Table {
        let mut table = Table::new(&["", "ahead", "takes", "left", ""]);
        for row in &self.rows {
            let left = row.ahead - row.takes;
            let [ahead, takes] = [row.ahead, row.takes].map(|value| Cell::from(Unit::Seconds.cell(value)));
            let left = Cell::judged(Unit::Seconds.cell(left), left >= 0.0);
            table.row([Cell::from(row.label.clone()), ahead, takes, left, Cell::from(row.text.clone())]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_sticks_out() {
        let row = |ahead, takes| Lead { label: "g".into(), ahead, takes, text: "1 MB".into() };
        let leads = Leads { title: "t".into(), axis: "x".into(), rows: vec![row(0.0, 2.0), row(4.0, 1.0)] };
        let html = leads.html();
        assert!(html.contains("class=\"n bad\">-2.00 s") && html.contains("class=\"n good\">3.00 s"), "{html}");
        assert!(Leads { rows: vec![], ..leads.clone() }.html().is_empty());
        let nothing = Leads { rows: vec![row(0.0, 0.0)], ..leads };
        assert!(!nothing.html().contains("NaN"));
    }
}
