//! Rules of the documents: links lead somewhere, every page is in the book, and the two pages that
//! everybody reads stay short.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;

/// Pages with a limit, in lines.
const LINES_MAX: [(&str, usize); 2] = [("README.md", 120), ("ARCHITECTURE.md", 150)];

/// Words of a paragraph of these pages.
const PARAGRAPH_WORDS_MAX: usize = 80;

/// Holds every page against the rules.
pub fn check(root: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    let mut pages = pages(&root.join("docs"))?;
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    let in_book = links(&read(&root.join("docs/SUMMARY.md"))?);
    let in_book: BTreeSet<PathBuf> = in_book.iter().map(|link| flat(&root.join("docs").join(link))).collect();
    for page in &pages {
        let name = page.strip_prefix(root).unwrap_or(page).display().to_string();
        let text = read(page)?;
        let folder = page.parent().unwrap_or(root);
        for link in links(&text) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:") && !folder.join(path).exists()
            {
                found.push(format!("{name}: links to {link}, which is not there"));
            }
        }
        if name.starts_with("docs/") && name != "docs/SUMMARY.md" && !in_book.contains(&flat(page)) {
            found.push(format!("{name}: is not in docs/SUMMARY.md"));
        }
        if let Some((_, max)) = LINES_MAX.iter().find(|(page, _)| *page == name) {
            short(&name, &text, *max, found);
        }
    }
    Ok(())
}

fn short(name: &str, text: &str, lines_max: usize, found: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > lines_max {
        found.push(format!("{name}: {lines} lines, at most {lines_max}: move what few look for to the book"));
    }
    for paragraph in text.split("\n\n").filter(|text| !text.starts_with('|') && !text.starts_with("```")) {
        // Each item of a list is a paragraph.
        for part in paragraph.split("\n- ") {
            let words = part.trim_start_matches("- ").split_whitespace().count();
            if words > PARAGRAPH_WORDS_MAX {
                let start: String = part.trim().chars().take(40).collect();
                found.push(format!("{name}: a paragraph of {words} words, at most {PARAGRAPH_WORDS_MAX}: {start}…"));
            }
        }
    }
}

/// Targets of links: `](target)`, and `[name]: target` at the beginning of a line. What stands in
/// code is none.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code || line.starts_with("    ") && !line.trim_start().starts_with("- ") {
            continue;
        }
        // Every second part lies between backticks.
        for part in line.split('`').step_by(2) {
            let inline = part.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            found.extend(inline.map(|target| target.split_whitespace().next().unwrap_or_default().to_owned()));
        }
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            found.push(target.trim().to_owned());
        }
    }
    found
}

/// A path without `.` and `..`.
fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(flat.pop()),
            Component::CurDir => {}
            other => flat.push(other),
        }
    }
    flat
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// All pages under a folder.
fn pages(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_code_is_none() {
        let text = "See [a](b.md#c), `[x](y)` and [d][e].\n    [no](no.md)\n```\n[no](no.md)\n```\n[e]: f.md\n";
        assert_eq!(links(text), ["b.md#c", "f.md"]);
    }

    #[test]
    fn long_pages_and_paragraphs_are_told() {
        let mut found = Vec::new();
        short("README.md", &format!("{}\n\n- {}\n", "word ".repeat(81), "word ".repeat(80)), 2, &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
