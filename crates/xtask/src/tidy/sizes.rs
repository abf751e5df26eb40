//! How long files are, how many fields structs have, and how long one type's `impl` blocks are
//! together. Counted in text as rustfmt writes it, without a parser.

use std::collections::BTreeMap;

/// Longest source file, in lines: about what one idea needs. Goes down, never up.
const FILE_LINES_MAX: usize = 500;

/// Crates whose structs are held to [`FIELDS_MAX`]: those with state machines.
const FEW_FIELDS: &[&str] = &["bench", "client", "connection", "server", "stream"];

/// Fields of a struct.
const FIELDS_MAX: usize = 15;

/// Lines of all `impl` blocks of one type in its crate.
const IMPL_LINES_MAX: usize = 800;

/// Structs and types with more, as `crate::Type`. Goes down, never up.
const LARGE: &[&str] = &["bench::Options", "image::Metadata"];

/// Lines of `impl` blocks by crate and type.
#[derive(Default)]
pub struct Impls(BTreeMap<String, usize>);

/// Holds a file against the rules, and counts its `impl` blocks.
pub fn check(crate_name: &str, name: &str, text: &str, impls: &mut Impls, found: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > FILE_LINES_MAX {
        found.push(format!("{name}: {} lines, at most {FILE_LINES_MAX}: split it by noun", lines.len()));
    }
    if name.contains("/tests") || name.ends_with("tests.rs") {
        return;
    }
    for (index, line) in lines.iter().enumerate() {
        let body = || lines[index + 1..].iter().take_while(|line| **line != "}");
        if let Some(struct_name) = opened_struct(line) {
            let fields = body().filter(|line| is_field(line)).count();
            let key = format!("{crate_name}::{struct_name}");
            if fields > FIELDS_MAX && FEW_FIELDS.contains(&crate_name) && !LARGE.contains(&key.as_str()) {
                found.push(format!("{name}: {struct_name} has {fields} fields, at most {FIELDS_MAX}"));
            }
        } else if let Some(implemented) = opened_impl(line) {
            *impls.0.entry(format!("{crate_name}::{implemented}")).or_default() += body().count() + 2;
        }
    }
}

impl Impls {
    /// Tells the types that have too much.
    pub fn check(&self, found: &mut Vec<String>) {
        for (name, lines) in &self.0 {
            if *lines > IMPL_LINES_MAX && !LARGE.contains(&name.as_str()) {
                found.push(format!("{name}: {lines} lines of impl, at most {IMPL_LINES_MAX}"));
            }
        }
    }
}

/// The name of a struct with named fields that this line begins.
fn opened_struct(line: &str) -> Option<&str> {
    let rest = without_visibility(line).strip_prefix("struct ")?;
    line.ends_with('{').then(|| word(rest))
}

/// The type whose `impl` block this line begins.
fn opened_impl(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("unsafe ").unwrap_or(line).strip_prefix("impl")?;
    if !line.ends_with('{') || !rest.starts_with([' ', '<']) {
        return None;
    }
    // Generic parameters have no spaces around their brackets.
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.trim_start() };
    let implemented = rest.split_once(" for ").map_or(rest, |(_, implemented)| implemented);
    Some(word(implemented))
}

fn is_field(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("    ") else { return false };
    let rest = without_visibility(rest);
    let name = word(rest.trim_start_matches("r#"));
    !name.is_empty() && rest.trim_start_matches("r#")[name.len()..].starts_with(": ")
}

fn without_visibility(text: &str) -> &str {
    let Some(rest) = text.strip_prefix("pub") else { return text };
    let rest = if rest.starts_with('(') { rest.split_once(')').map_or("", |(_, rest)| rest) } else { rest };
    rest.strip_prefix(' ').unwrap_or(text)
}

/// The identifier that a text begins with.
fn word(text: &str) -> &str {
    text.split(|character: char| !character.is_alphanumeric() && character != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_impls_are_counted() {
        let fields: String =
            (0..16).map(|number| format!("    /// Doc.\n    pub(crate) f{number}: Vec<u8>,\n")).collect();
        let text = format!("pub struct Big<'a> {{\n{fields}}}\n\nimpl<'a> Big<'a> {{\n    fn a() {{\n    }}\n}}\n");
        let (mut impls, mut found) = (Impls::default(), Vec::new());
        check("stream", "crates/stream/src/a.rs", &text, &mut impls, &mut found);
        assert_eq!(found, ["crates/stream/src/a.rs: Big has 16 fields, at most 15"]);
        check("stream", "crates/stream/src/b.rs", "impl fmt::Display for Big<'_> {\n}\n", &mut impls, &mut found);
        assert_eq!(impls.0, BTreeMap::from([("stream::Big".to_owned(), 6)]));
        assert_eq!((opened_impl("implied {"), opened_struct("struct Unit;")), (None, None));
    }
}
