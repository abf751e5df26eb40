//! The history file: measured rows of one run after the other, a line of JSON each.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::Context;

/// Adds `lines` to the end of the history file, creating it if it is not there.
pub fn append_history(path: &Path, lines: &[String]) -> anyhow::Result<()> {
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    let file = OpenOptions::new().create(true).append(true).open(path);
    // One write, so that two benches that end together do not mix their lines.
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot add to the history file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_grows_by_whole_lines() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("history.jsonl");
        append_history(&path, &["{\"a\":1}".into(), "{\"a\":2}".into()])?;
        append_history(&path, &["{\"a\":3}".into()])?;
        assert_eq!(std::fs::read_to_string(&path)?, "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
        let error = append_history(folder.path(), &[]).expect_err("a folder is no file");
        assert!(format!("{error:#}").contains("history file"));
        Ok(())
    }
}
