//! Rules of comments: where they end, and what module documentation does not say.

/// Last column of a comment.
const COLUMNS_MAX: usize = 100;

/// Holds the comments of a file against the rules.
pub fn check(name: &str, text: &str, found: &mut Vec<String>) {
    let long = |line: &&str| line.trim_start().starts_with("//") && line.chars().count() > COLUMNS_MAX;
    let count = text.lines().filter(long).count();
    if count > 0 {
        found.push(format!("{name}: {count} comments go beyond column {COLUMNS_MAX}"));
    }
    // The table of edges says which crate uses which, and cargo holds it; a sentence gets old.
    let documentation: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("//!")).collect();
    if documentation.concat().contains("Called by ") {
        found.push(format!("{name}: module documentation says who calls it: leave that out"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_comments_and_callers_are_told() {
        let mut found = Vec::new();
        let long = format!(
            "//! Sums. Called\n//! by `cli`.\n// {}\nlet x = \"{}\"; // short\n",
            "y".repeat(100),
            "z".repeat(100)
        );
        check("a.rs", &long, &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
        check("a.rs", &format!("//! Sums.\n// {}\n", "ä".repeat(97)), &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
