//! Parts of an HTML page: escaping, tables, the style sheet and the head that every report shares.
//!
//! A page is one file without anything from outside: the content security policy in its head
//! forbids all but its own style sheet. Light and dark follow the reader's system.

use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The start of a page, up to the open body. `title` is escaped here.
pub fn head(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style></head><body>\n",
        escape(title),
    )
}

/// Text as HTML, in content and in attributes. HTML has no other control characters than the white
/// ones.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            control if control.is_control() && !control.is_ascii_whitespace() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A cell: its text and how it is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    text: String,
    class: &'static str,
}

impl Cell {
    /// A cell that says that something holds, or that it does not.
    pub fn judged(text: impl Into<String>, holds: bool) -> Cell {
        Cell { text: text.into(), class: if holds { "good" } else { "bad" } }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, class: "" }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::from(text.to_string())
    }
}

impl From<Option<String>> for Cell {
    fn from(text: Option<String>) -> Cell {
        Cell::from(text.unwrap_or_else(|| "-".to_string()))
    }
}

/// A table with one line of headings. The first column is text, the others are numbers unless
/// `words` says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<Cell>>,
    words: usize,
}

impl Table {
    /// An empty table.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|cell| cell.to_string()).collect(), rows: Vec::new(), words: 1 }
    }

    /// Makes the first `columns` columns text.
    pub fn words(mut self, columns: usize) -> Table {
        self.words = columns;
        self
    }

    /// Adds a row.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table in a box of its own that scrolls; empty without rows.
    pub fn html(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let class = |column: usize, class: &str| match (column < self.words, class) {
            (true, "") => String::new(),
            (true, class) => format!(" class=\"{class}\""),
            (false, class) => format!(" class=\"{}\"", format!("n {class}").trim_end()),
        };
        let mut html = String::from("<div class=\"scroll\"><table><thead><tr>");
        for (column, cell) in self.head.iter().enumerate() {
            let _ = write!(html, "<th{}>{}</th>", class(column, ""), escape(cell));
        }
        html.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let _ = write!(html, "<td{}>{}</td>", class(column, cell.class), escape(&cell.text));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
        html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let mut table = Table::new(&["<b>", "x"]);
        table.row(["a&b\"'", "<script>\u{1b}\0"]);
        let html = table.html();
        assert!(html.contains("&lt;b&gt;") && html.contains("a&amp;b&quot;&#39;") && html.contains("&lt;script&gt;"));
        assert!(!html.contains("<script>") && !html.contains(['\u{1b}', '\0']) && Table::new(&["a"]).html().is_empty());
    }
}
