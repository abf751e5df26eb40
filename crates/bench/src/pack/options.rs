//! Options of `runnel bench pack`, checked before anything is set up.

use std::path::PathBuf;

use anyhow::{Context, ensure};

use super::tree;

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// The first tree, few rows: minutes.
    Quick,
    /// The trees and rows that the bars need: about an hour and a half.
    #[default]
    Usual,
    /// One tree more, every codec and block size on every tree, and memory on all trees together: some hours.
    Full,
}

/// What the command line gives.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary that is measured.
    pub runnel: PathBuf,
    /// See [`Size`].
    pub size: Size,
    /// Names of trees; without any, those of the size.
    pub trees: Vec<String>,
    /// Trees of the user.
    pub folders: Vec<PathBuf>,
    /// Only rows whose name contains this.
    pub only: Option<String>,
    /// The cache folder.
    pub work: Option<PathBuf>,
    /// Measure again what was measured already.
    pub fresh: bool,
    /// Print rows as JSON instead of tables.
    pub json: bool,
    /// Where the report goes; without it, to the cache folder.
    pub report: Option<PathBuf>,
    /// Add a line to this file.
    pub history: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            runnel: PathBuf::from("/proc/self/exe"),
            size: Size::default(),
            trees: Vec::new(),
            folders: Vec::new(),
            only: None,
            work: None,
            fresh: false,
            json: false,
            report: None,
            history: None,
        }
    }
}

impl Options {
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
        let count = match self.size {
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
        let quick = Options { size: Size::Quick, ..Options::default() };
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
