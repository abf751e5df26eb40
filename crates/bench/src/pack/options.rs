//! Options of `runnel-bench pack`, checked before anything is set up.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Parser;

use super::tree;
use crate::options::beside;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// The first tree, few rows: minutes.
    Quick,
    /// The trees and rows that the bars need: about an hour and a half.
    Usual,
    /// One tree more, every codec and block size on every tree, and memory on all trees together:
    /// some hours.
    Full,
}

/// Images of real trees beside SquashFS, EROFS, DwarFS and one compressed stream
///
/// Makes the trees from Debian packages (kept in a cache folder; needs root), packs each with
/// runnel and with the tools of the other systems, decodes every image of ours and compares it with
/// its tree, and measures what a start reads. Rows that were measured before with the same binary
/// are known. Ends with an error that names the rows that failed.
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// The first tree and few rows: some minutes
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// One tree more, and every codec and block size on every tree: some hours
    #[arg(long)]
    pub full: bool,
    /// Instead, our packer with chunks sorted in other ways, METIS among them: hours
    #[arg(long, conflicts_with_all = ["quick", "full"])]
    pub sorters: bool,
    /// Only these trees: debian-amd64, debian-arm64, jdk, node, gimp
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub trees: Vec<String>,
    /// A tree of your own; may be given several times
    #[arg(long = "tree", value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Only rows whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Measure again what was measured already
    #[arg(long)]
    pub fresh: bool,
    /// Cache folder (default: runnel/pack in the user's caches); about 10 GB
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Where the report goes (default: report.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// One JSON line per row instead of tables
    #[arg(long)]
    pub json: bool,
    /// Measure this runnel instead of the one beside this program
    #[arg(long = "binary", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub runnel: PathBuf,
    /// Add a line with all figures to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options::parse_from([""])
    }
}

impl Options {
    /// How much is measured.
    pub fn size(&self) -> Size {
        match (self.quick, self.full) {
            (true, _) => Size::Quick,
            (_, true) => Size::Full,
            _ => Size::Usual,
        }
    }

    /// The recipes of the trees to pack.
    ///
    /// # Errors
    /// A name that no tree has; the message lists those there are.
    pub fn recipes(&self) -> anyhow::Result<Vec<&'static tree::Recipe>> {
        let known = || tree::RECIPES.iter().map(|recipe| recipe.name).collect::<Vec<_>>().join(", ");
        let find = |name: &String| {
            let found = tree::RECIPES.iter().find(|recipe| recipe.name == name.as_str());
            found.with_context(|| format!("there is no tree '{name}'; there are {}", known()))
        };
        if !self.trees.is_empty() {
            return self.trees.iter().map(find).collect();
        }
        if !self.folders.is_empty() {
            return Ok(Vec::new());
        }
        let count = match self.size() {
            Size::Quick => 1,
            Size::Usual => tree::REQUIRED,
            Size::Full => tree::RECIPES.len(),
        };
        Ok(tree::RECIPES[..count].iter().collect())
    }

    /// The cache folder: as given, or below the user's caches.
    ///
    /// # Errors
    /// None is given, and neither XDG_CACHE_HOME nor HOME is set.
    pub fn cache(&self) -> anyhow::Result<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let caches = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        let folder = self.work.clone().or_else(|| caches().map(|caches| caches.join("runnel/pack")));
        folder.context("neither HOME nor XDG_CACHE_HOME is set; give a cache folder with --work DIR")
    }

    /// Refuses what cannot be packed, before minutes are spent on something else.
    ///
    /// # Errors
    /// A tree that is no folder, or one whose cache would lie in it.
    pub fn check(&self) -> anyhow::Result<()> {
        self.recipes()?;
        let cache = self.cache()?;
        for folder in &self.folders {
            ensure!(folder.is_dir(), "--tree {}: not a folder", folder.display());
            let whole = std::fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
            let inside = std::path::absolute(&cache)?.starts_with(&whole);
            ensure!(!inside, "the cache {} lies in --tree {}; choose --work DIR", cache.display(), folder.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_found_by_name_or_refused_with_the_names_there_are() -> anyhow::Result<()> {
        let names = |options: &Options| -> anyhow::Result<Vec<&str>> {
            Ok(options.recipes()?.into_iter().map(|recipe| recipe.name).collect())
        };
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(names(&quick)?, [tree::FIRST]);
        assert!(names(&Options::default())?.len() >= 4);
        let error = names(&Options { trees: vec!["moon".into()], ..Options::default() }).expect_err("no such tree");
        assert!(error.to_string().contains("'moon'") && error.to_string().contains(tree::FIRST), "{error}");
        Ok(())
    }

    #[test]
    fn a_cache_inside_the_tree_is_refused() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let options = |work: PathBuf| Options {
            folders: vec![folder.path().to_path_buf()],
            work: Some(work),
            ..Options::default()
        };
        let error = options(folder.path().join("cache")).check().expect_err("inside").to_string();
        assert!(error.contains("--work"), "{error}");
        options(PathBuf::from("/nonexistent/elsewhere")).check()
    }
}
