//! The text of a figure, computed from rows.
//!
//! - `value KEY`: values with their units; `num KEY`: without; `range KEY`: smallest to largest.
//! - `lower A | B`: by how much A is lower than B; `mean-lower`, `best-lower`: the average and the
//!   most.
//! - `over A | B`: how many times B is A; `ratios A | B`: the same as a range of percentages.
//! - `hand CASE`: a text that a person measured.

use anyhow::{Context, bail, ensure};
use report::text;

use super::history::{Figure, History};

/// A figure in the page.
pub struct Text {
    /// What the reader sees.
    pub text: String,
    /// Its rows: cells of the table of sources, without the first.
    pub rows: Vec<String>,
}

/// The text of a reference, which stands between `{{` and `}}`.
///
/// # Errors
/// The operation is unknown, or a row is missing.
pub fn evaluate(reference: &str, history: &History) -> anyhow::Result<Text> {
    let (operation, keys) = reference.trim().split_once(' ').context("an operation and a key are needed")?;
    if operation == "hand" {
        let row = history.by_hand(keys.trim())?;
        let cells = format!("by hand: `{}` | as said | {} | {} | {}", keys.trim(), row.runs, row.commit, row.codec);
        return Ok(Text { text: row.text, rows: vec![cells] });
    }
    let keys: Vec<&str> = keys.split('|').map(str::trim).collect();
    let sides = keys.iter().map(|key| history.figures(key)).collect::<anyhow::Result<Vec<_>>>()?;
    let text = match sides.as_slice() {
        [values] => of_one(operation, values)?,
        [ours, theirs] => {
            ensure!(ours.len() == theirs.len(), "{} rows against {}", ours.len(), theirs.len());
            of_two(operation, &quotients(ours, theirs))?
        }
        _ => bail!("one key or two"),
    };
    Ok(Text { text, rows: keys.iter().zip(&sides).map(|(key, figures)| source(key, figures)).collect() })
}

fn of_one(operation: &str, values: &[Figure]) -> anyhow::Result<String> {
    let all = |show: fn(&Figure) -> String| values.iter().map(show).collect::<Vec<_>>().join(", ");
    match operation {
        "value" => Ok(all(shown)),
        "num" => Ok(all(|figure| text::significant(figure.value))),
        "range" => {
            let least = values.iter().min_by(|a, b| a.value.total_cmp(&b.value)).context("no rows")?;
            let most = values.iter().max_by(|a, b| a.value.total_cmp(&b.value)).context("no rows")?;
            Ok(if least.value == most.value { shown(least) } else { format!("{} to {}", shown(least), shown(most)) })
        }
        _ => bail!("'{operation}' is no operation on one key"),
    }
}

/// Quotients of rows, each with its label.
fn quotients(ours: &[Figure], theirs: &[Figure]) -> Vec<(String, f64)> {
    ours.iter().zip(theirs).map(|(ours, theirs)| (ours.label.clone(), ours.value / theirs.value)).collect()
}

fn of_two(operation: &str, quotients: &[(String, f64)]) -> anyhow::Result<String> {
    let lower = || quotients.iter().map(|(_, quotient)| 1.0 - quotient);
    Ok(match operation {
        "lower" => lower_or_higher(quotients),
        "mean-lower" => percent(lower().sum::<f64>() / quotients.len() as f64),
        "best-lower" => percent(lower().fold(f64::MIN, f64::max)),
        "ratios" => {
            let most = quotients.iter().map(|(_, quotient)| *quotient).fold(f64::MIN, f64::max);
            let least = quotients.iter().map(|(_, quotient)| *quotient).fold(f64::MAX, f64::min);
            if most == least { percent(most) } else { format!("{} to {}", percent(least), percent(most)) }
        }
        "over" => {
            let mut sorted = quotients.to_vec();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            sorted.iter().map(|(label, quotient)| labelled(label, &times(*quotient))).collect::<Vec<_>>().join(", ")
        }
        _ => bail!("'{operation}' is no operation on two keys"),
    })
}

/// `perl 17 %, python 2.2 % lower; gcc 7.0 % higher`: the best first.
fn lower_or_higher(quotients: &[(String, f64)]) -> String {
    let mut sorted = quotients.to_vec();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    let list = |found: Vec<&(String, f64)>, word: &str| {
        let shares: Vec<String> =
            found.iter().map(|(label, quotient)| labelled(label, &change((1.0 - quotient).abs()))).collect();
        if shares.is_empty() { String::new() } else { format!("{} {word}", shares.join(", ")) }
    };
    let lower = list(sorted.iter().filter(|(_, quotient)| *quotient <= 1.0).collect(), "lower");
    let higher = list(sorted.iter().filter(|(_, quotient)| *quotient > 1.0).collect(), "higher");
    [lower, higher].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn labelled(label: &str, text: &str) -> String {
    if label.is_empty() { text.to_owned() } else { format!("{label} {text}") }
}

/// A share that tells a change: whole percents where they have two digits.
fn change(share: f64) -> String {
    if share >= 0.0995 { format!("{:.0} %", share * 100.0) } else { format!("{:.1} %", share * 100.0) }
}

fn percent(share: f64) -> String {
    if share.abs() < 0.01 && share != 0.0 { format!("{:.2} %", share * 100.0) } else { text::percent(share) }
}

fn times(quotient: f64) -> String {
    format!("{} x", text::significant(quotient))
}

/// A value with its unit.
fn shown(figure: &Figure) -> String {
    match figure.unit.as_str() {
        "s" => text::seconds(figure.value),
        "us" => text::seconds(figure.value * 1e-6),
        "B" => text::bytes(figure.value),
        "share" => percent(figure.value),
        "x" => times(figure.value),
        "count" => text::count(figure.value),
        other => format!("{} {other}", text::significant(figure.value)),
    }
}

/// Cells of the table of sources.
fn source(key: &str, figures: &[Figure]) -> String {
    let all = |field: fn(&Figure) -> String| {
        let mut values: Vec<String> = figures.iter().map(field).collect();
        if values.iter().all(|value| *value == values[0]) {
            values.truncate(1);
        }
        values.join(", ")
    };
    let cells = [
        all(shown),
        all(|figure| figure.runs.clone()),
        all(|figure| figure.commit.clone()),
        all(|figure| figure.codec.clone()),
    ];
    let key = key.replace('*', "jvm,python,perl,openssl,gcc").replace(',', ", ");
    format!("`{key}` | {}", cells.join(" | "))
}
