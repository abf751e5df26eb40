//! Numbers of a template that have no source.

/// Columns of tables that hold what is demanded or configured, not what was measured.
const DEMANDS: [&str; 5] = ["promise", "bar", "checked by", "case", "bar (NFS / download)"];

/// What may follow the digits of a figure in one word.
const UNITS: [&str; 13] = ["%", "x", "s", "ms", "us", "µs", "B", "k", "kB", "KiB", "MB", "MiB", "GB"];

/// Each number outside marks, code, links and columns of demands, with the start of its line.
pub fn numbers(template: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut columns: Vec<String> = Vec::new();
    // Marks may go over the end of a line, so they go first.
    for line in without_marks(template).lines() {
        if !line.starts_with('|') {
            columns.clear();
            add(line, line, &mut found);
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if columns.is_empty() {
            columns = cells.iter().map(|cell| cell.to_string()).collect();
            continue;
        }
        for (column, cell) in columns.iter().zip(&cells) {
            if !DEMANDS.contains(&column.as_str()) {
                add(cell, line, &mut found);
            }
        }
    }
    found
}

fn add(text: &str, line: &str, found: &mut Vec<String>) {
    // Every second part lies between backticks.
    for part in text.split('`').step_by(2) {
        let words = part.split(|character: char| character.is_whitespace() || "(),;:/*".contains(character));
        for word in words.filter(|word| is_figure(word)) {
            found.push(format!("'{word}' in '{}'", line.chars().take(60).collect::<String>()));
        }
    }
}

/// Whether a word is a number, alone or with its unit.
fn is_figure(word: &str) -> bool {
    let word = word.trim_start_matches(['+', '-', '±', '[']).trim_end_matches(['.', ']']);
    let digits = word.trim_start_matches(|character: char| character.is_ascii_digit() || character == '.');
    digits.len() < word.len() && (digits.is_empty() || UNITS.contains(&digits))
}

/// The text without `{{…}}` and `{=…}`.
fn without_marks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{=")).min() {
        out += &rest[..start];
        let end = if rest[start..].starts_with("{{") { "}}" } else { "}" };
        let Some(length) = rest[start..].find(end) else { return out };
        rest = &rest[start + length + end.len()..];
    }
    out + rest
}
