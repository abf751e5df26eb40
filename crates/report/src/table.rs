//! Tables for people: one per workload and link, one line per system and mode.

use std::fmt::Write;

use crate::row::{Metric, Series};

/// Columns after the name: heading and content.
const HEADINGS: [&str; 9] =
    ["median s", "min-max", "x warm", "requests", "MB", "demanded", "pushed", "wasted", "stall s"];

/// The table of the series of one workload over one link. `warm` is the native warm time that
/// ratios refer to.
pub fn table(title: &str, series: &[&Series], warm: Option<f64>) -> String {
    let mut lines = vec![std::iter::once(title).chain(HEADINGS).map(str::to_string).collect::<Vec<_>>()];
    lines.extend(series.iter().map(|series| line(series, warm)));
    aligned(&lines)
}

fn line(series: &Series, warm: Option<f64>) -> Vec<String> {
    let median = |metric: Metric| series.summary(metric).map(|summary| summary.median);
    let count = |metric: Metric| median(metric).map_or("-".to_string(), |value| format!("{value:.0}"));
    let wall = series.summary(Metric::Wall);
    let ratio = wall.zip(warm).map_or("-".to_string(), |(wall, warm)| format!("{:.2}", wall.median / warm));
    vec![
        format!("{} {}", series.peer, series.mode),
        wall.map_or("-".to_string(), |wall| format!("{:.3}", wall.median)),
        wall.map_or("-".to_string(), |wall| format!("{:.3}-{:.3}", wall.min, wall.max)),
        ratio,
        count(Metric::Requests),
        median(Metric::Bytes).map_or("-".to_string(), |bytes| format!("{:.2}", bytes / 1e6)),
        count(Metric::PagesDemanded),
        count(Metric::PagesPushed),
        count(Metric::PagesWasted),
        median(Metric::Stall).map_or("-".to_string(), |stall| format!("{stall:.3}")),
    ]
}

/// Columns padded to their widest cell: the first to the left, numbers to the right.
pub fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            let _ = if column == 0 { write!(text, "  {cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Sample;

    #[test]
    fn a_table_lines_up_and_shows_what_is_known() {
        let push = Series {
            peer: "runnel".into(),
            mode: "push".into(),
            samples: vec![Sample::from([
                (Metric::Wall, 1.2),
                (Metric::Bytes, 3_400_000.0),
                (Metric::PagesPushed, 1500.0),
            ])],
            ..Series::default()
        };
        let native = Series {
            peer: "native".into(),
            mode: "warm".into(),
            samples: vec![Sample::from([(Metric::Wall, 0.6)])],
            ..Series::default()
        };
        let expected = "  \
  python-200   median s      min-max  x warm  requests    MB  demanded  pushed  wasted  stall s
  native warm     0.600  0.600-0.600    1.00         -     -         -       -       -        -
  runnel push     1.200  1.200-1.200    2.00         -  3.40         -    1500       -        -
";
        assert_eq!(table("python-200", &[&native, &push], Some(0.6)), expected);
    }
}
