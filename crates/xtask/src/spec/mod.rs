//! `spec`: writes SPEC.md from a template and the history of the benches.
//!
//! The template, `bench/spec.md`, is Markdown with two kinds of marks. `{{OPERATION KEY | KEY}}` is
//! a measured figure: [`history`] finds the rows of a key, and [`figure`] computes the text from
//! them. `{=TEXT}` is a number that nobody measured, such as a setting. Any other number in prose
//! or in a measured column is an error ([`bare`]), so no figure stands in SPEC.md without its rows.
//! Every figure gets the number of its line in the table of sources, which takes the place of
//! `{{sources}}`.

mod bare;
mod figure;
mod history;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use self::history::History;

const TEMPLATE: &str = "bench/spec.md";
const PAGE: &str = "SPEC.md";
const GENERATED: &str = "<!-- Written by `./x spec` from bench/spec.md and bench/history.jsonl. Edit those. -->\n\n";

/// Columns of prose in the page.
const COLUMNS_MAX: usize = 120;

/// Writes the page.
///
/// # Errors
/// A file cannot be read or written, a key has no row, or a number has no source.
pub fn run(root: &Path) -> anyhow::Result<()> {
    fs::write(root.join(PAGE), page(root)?).context(PAGE)
}

/// Tells whether the page is what the template and the history give.
pub fn check(root: &Path, found: &mut Vec<String>) {
    match (page(root), fs::read_to_string(root.join(PAGE))) {
        (Ok(expected), Ok(actual)) if expected == actual => {}
        (Ok(_), _) => found.push(format!("{PAGE}: is not what {TEMPLATE} and the history give: run ./x spec")),
        (Err(error), _) => found.push(format!("{TEMPLATE}: {error:#}")),
    }
}

fn page(root: &Path) -> anyhow::Result<String> {
    let read = |name: &str| fs::read_to_string(root.join(name)).context(name.to_owned());
    let history = History::parse(&read("bench/history.jsonl")?, &read("bench/codecs.jsonl")?)?;
    render(&read(TEMPLATE)?, &history)
}

/// The page of a template.
fn render(template: &str, history: &History) -> anyhow::Result<String> {
    let bare = bare::numbers(template);
    ensure!(bare.is_empty(), "numbers without a source, or '{{=…}}' around what is not measured: {}", bare.join("; "));
    let mut sources = Sources::default();
    let mut page = GENERATED.to_owned();
    let mut lines = template.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with('|') {
            let (row, rows) = substitute(line, history, None)?;
            page += &sources.mark_row(&row, rows);
        } else if line.is_empty() || line.starts_with('#') || line == "{{sources}}" {
            page += line;
        } else {
            let mut paragraph = line.to_owned();
            while let Some(more) = lines.next_if(|next| !next.is_empty() && !next.starts_with(['|', '#', '-'])) {
                paragraph = paragraph + " " + more.trim();
            }
            let (text, _) = substitute(&paragraph, history, Some(&mut sources))?;
            page += &wrapped(&text);
        }
        page.push('\n');
    }
    Ok(page.replace("{{sources}}\n", &sources.table()))
}

/// A text with its marks replaced, and the rows of its figures as lines for the table of sources.
/// With `sources`, each figure is numbered where it stands.
fn substitute(
    text: &str,
    history: &History,
    mut sources: Option<&mut Sources>,
) -> anyhow::Result<(String, Vec<String>)> {
    let mut out = String::new();
    let mut rows = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        out += &rest[..start];
        let mark = &rest[start..];
        let (inner, after) = if let Some(mark) = mark.strip_prefix("{{") {
            let (reference, after) = mark.split_once("}}").with_context(|| format!("no }}}} after {mark:.60}"))?;
            let figure = figure::evaluate(reference, history).with_context(|| reference.to_owned())?;
            let number = sources.as_deref_mut().map(|sources| sources.number(&figure.rows)).unwrap_or_default();
            rows.extend(figure.rows);
            (figure.text + &number, after)
        } else if let Some(mark) = mark.strip_prefix("{=") {
            let (text, after) = mark.split_once('}').with_context(|| format!("no }} after {mark:.60}"))?;
            (text.to_owned(), after)
        } else {
            ("{".to_owned(), &mark[1..])
        };
        out += &inner;
        rest = after;
    }
    Ok((out + rest, rows))
}

/// The lines of the table of sources.
#[derive(Default)]
struct Sources {
    count: usize,
    lines: Vec<String>,
}

impl Sources {
    /// Adds the rows of a figure; its mark in the text.
    fn number(&mut self, rows: &[String]) -> String {
        self.count += 1;
        let number = self.count;
        for (index, row) in rows.iter().enumerate() {
            let first = if index == 0 { format!("<a id=\"s{number}\"></a>{number}") } else { String::new() };
            self.lines.push(format!("| {first} | {row} |\n"));
        }
        format!("<sup>[{number}](#s{number})</sup>")
    }

    /// A row of a table with one mark for all its figures, at the end of its first cell.
    fn mark_row(&mut self, line: &str, rows: Vec<String>) -> String {
        match line.char_indices().filter(|(_, character)| *character == '|').nth(1) {
            Some((end, _)) if !rows.is_empty() => {
                format!("{}{} {}", line[..end].trim_end(), self.number(&rows), &line[end..])
            }
            _ => line.to_owned(),
        }
    }

    fn table(&self) -> String {
        let head = "| | row | value | n | commit | codec |\n|---|---|---|---|---|---|\n";
        head.to_owned() + &self.lines.concat()
    }
}

/// A paragraph or an item of a list in lines.
fn wrapped(text: &str) -> String {
    let indent = if text.starts_with("- ") { "\n  " } else { "\n" };
    let mut out = String::new();
    let mut columns = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if columns > 0 && columns + 1 + width > COLUMNS_MAX {
            out += indent;
            columns = indent.len() - 1;
        } else if columns > 0 {
            out.push(' ');
            columns += 1;
        }
        out += word;
        columns += width;
    }
    out
}
