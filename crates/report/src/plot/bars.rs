//! Horizontal bars in groups: names stay readable at any number of bars, and on a phone.

use super::scale::{Scale, Unit};
use super::{Canvas, Key, WIDTH};
use crate::html::Table;

const LABEL_WIDTH: f64 = 152.0;
/// Beyond this, bars would have no room.
const LABEL_WIDTH_MAX: f64 = 250.0;
/// About what a character takes on a phone, where letters are largest in units of the drawing.
const CHARACTER_WIDTH: f64 = 7.2;
const VALUE_WIDTH: f64 = 66.0;
const BAR_HEIGHT: f64 = 12.0;
const ROW_HEIGHT: f64 = 16.0;
const GROUP_HEAD_HEIGHT: f64 = 24.0;
const AXIS_HEIGHT: f64 = 40.0;
const TICKS_HEIGHT: f64 = 22.0;

/// A bar, of one part or of several in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is for.
    pub label: String,
    /// Lengths and colours.
    pub parts: Vec<(f64, usize)>,
    /// Smallest and largest run, drawn as a whisker.
    pub spread: Option<(f64, f64)>,
    /// A value to reach, drawn as a tick across the bar.
    pub mark: Option<f64>,
    /// What is written at its end.
    pub text: String,
}

impl Bar {
    /// A bar of one part.
    pub fn new(label: impl Into<String>, tone: usize, value: f64, text: impl Into<String>) -> Bar {
        Bar { label: label.into(), parts: vec![(value, tone)], spread: None, mark: None, text: text.into() }
    }

    fn sum(&self) -> f64 {
        self.parts.iter().map(|(value, _)| value).sum()
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let spread = self.spread.into_iter().flat_map(|(low, high)| [low, high]);
        std::iter::once(self.sum()).chain(spread).chain(self.mark)
    }
}

/// Bars that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Their heading; may be empty.
    pub label: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// A bar chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What is shown.
    pub title: String,
    /// What the axis says.
    pub axis: String,
    /// What it counts.
    pub unit: Unit,
    /// The bars.
    pub groups: Vec<Group>,
    /// Names of parts and marks with their colours, where bars alone do not say it.
    pub legend: Vec<Key>,
}

impl Bars {
    /// The figure; empty without bars.
    pub fn html(&self) -> String {
        let groups: Vec<&Group> = self.groups.iter().filter(|group| !group.bars.is_empty()).collect();
        if groups.is_empty() {
            return String::new();
        }
        let labels = groups.iter().flat_map(|group| &group.bars).map(|bar| bar.label.chars().count());
        let label_width = (labels.max().unwrap_or(0) as f64 * CHARACTER_WIDTH).clamp(LABEL_WIDTH, LABEL_WIDTH_MAX);
        let ends = [label_width, WIDTH - VALUE_WIDTH];
        let scale = Scale::linear(groups.iter().flat_map(|group| &group.bars).flat_map(Bar::values), ends);
        let height = |group: &&Group| head_height(group) + group.bars.len() as f64 * ROW_HEIGHT;
        let bottom: f64 = groups.iter().map(height).sum::<f64>() + 4.0;
        let mut canvas = Canvas::new(bottom + if self.axis.is_empty() { TICKS_HEIGHT } else { AXIS_HEIGHT });
        self.draw_axis(&mut canvas, &scale, bottom);
        let mut top = 0.0;
        for group in &groups {
            if !group.label.is_empty() {
                canvas.text(0.0, top + GROUP_HEAD_HEIGHT - 7.0, "head", &group.label);
            }
            top += head_height(group);
            for bar in &group.bars {
                draw(&mut canvas, &scale, bar, (label_width, top));
                top += ROW_HEIGHT;
            }
        }
        canvas.figure(&self.title, &self.legend, &self.numbers(&groups))
    }

    fn draw_axis(&self, canvas: &mut Canvas, scale: &Scale, bottom: f64) {
        for tick in scale.ticks() {
            let x = scale.at(tick);
            let class = if tick == 0.0 { "axis" } else { "grid" };
            canvas.line(class, (x, 0.0), (x, bottom));
            canvas.text(x, bottom + 15.0, "tick mid", &self.unit.tick(tick));
        }
        canvas.text((scale.at(f64::MIN) + scale.at(f64::MAX)) / 2.0, bottom + 33.0, "label mid", &self.axis);
    }

    fn numbers(&self, groups: &[&Group]) -> Table {
        let mut table = Table::new(&["", "", &self.axis, "shown", "min", "max", "mark"]);
        for (group, bar) in groups.iter().flat_map(|group| group.bars.iter().map(move |bar| (group, bar))) {
            let cell = |value: Option<f64>| value.map_or("-".to_string(), |value| self.unit.cell(value));
            let (low, high) = bar.spread.unzip();
            let numbers = [cell(Some(bar.sum())), bar.text.clone(), cell(low), cell(high), cell(bar.mark)];
            table.row([group.label.clone(), bar.label.clone()].into_iter().chain(numbers));
        }
        table
    }
}

fn head_height(group: &Group) -> f64 {
    if group.label.is_empty() { 6.0 } else { GROUP_HEAD_HEIGHT }
}

fn draw(canvas: &mut Canvas, scale: &Scale, bar: &Bar, (label_width, top): (f64, f64)) {
    let middle = top + ROW_HEIGHT / 2.0;
    let corner = middle - BAR_HEIGHT / 2.0;
    canvas.text(label_width - 6.0, middle + 4.0, "name end", &bar.label);
    let mut from = 0.0;
    for (value, tone) in &bar.parts {
        let (left, right) = (scale.at(f64::min(from, from + value)), scale.at(f64::max(from, from + value)));
        // Half a unit is the least that can be seen.
        let width = (right - left).max(0.5);
        canvas.rectangle(&format!("f{tone}"), (left, corner), width, BAR_HEIGHT);
        from += value;
    }
    let mut end = scale.at(from.max(0.0));
    if let Some((low, high)) = bar.spread.filter(|(low, high)| scale.at(*high) - scale.at(*low) >= 1.0) {
        canvas.line("whisker", (scale.at(low), middle), (scale.at(high), middle));
        end = end.max(scale.at(high));
    }
    if let Some(mark) = bar.mark {
        let x = scale.at(mark);
        canvas.line("mark", (x, corner - 1.5), (x, corner + BAR_HEIGHT + 1.5));
        end = end.max(x);
    }
    canvas.text(end + 6.0, middle + 4.0, "value", &bar.text);
}
