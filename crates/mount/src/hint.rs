//! The messages of hints: which pages of which files will be needed soon.
//!
//! One line is `hint ` and a JSON array of files, each with its `path` inside the mount or its
//! `inode`, and `pages` as pairs of the first page and the one behind the last:
//! `hint [{"path":"/usr/bin/python3","pages":[[0,32],[40,41]]}]`. The answer is `{"hinted":N}`, the
//! pages that were requested (not those that are here already), or `{"error":"..."}`. A connection
//! may send any number of such lines, without waiting for the answers.

use std::fs;
use std::io;
use std::path::Path;

use client::HINT_PAGES_MAX;
use image::{Kind, Metadata};
use serde::{Deserialize, Serialize};
use units::{InodeId, PageId};

/// The beginning of a line with hints.
pub(crate) const REQUEST: &str = "hint ";

/// Longest line: the ranges of [`RANGES_MAX`] and the longest path, escaped.
pub(crate) const LINE_BYTES_MAX: u64 = 64 << 10;

/// Ranges that a sender puts into one line.
pub(crate) const RANGES_MAX: usize = 1024;

/// Pages of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HintedFile {
    /// Path inside the mount. Symbolic links are followed within the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Number of the inode, if there is no path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u32>,
    /// First page, and the one behind the last.
    pub pages: Vec<(u32, u32)>,
}

/// The answer to a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// The number of pages that were requested.
    Hinted(usize),
    /// Why none were requested.
    Error(String),
}

/// The line that asks for `files`.
pub(crate) fn line(files: &[HintedFile]) -> io::Result<String> {
    Ok(format!("{REQUEST}{}\n", serde_json::to_string(files)?))
}

/// The pages that are meant, in order. Files that were changed in the overlay are left out: what is
/// read of them does not come from the image.
///
/// # Errors
/// A file or a page does not exist, or there are too many pages.
pub(crate) fn pages(metadata: &Metadata, overlay: Option<&Path>, files: &[HintedFile]) -> Result<Vec<PageId>, String> {
    let mut pages = Vec::new();
    for file in files {
        let (inode, shown) = match (&file.path, file.inode) {
            (Some(path), None) if overlay.is_some_and(|folder| is_changed(folder, path)) => continue,
            (Some(path), None) => (metadata.resolve_following(path.as_bytes()), path.clone()),
            (None, Some(inode)) => (Some(InodeId(inode)), format!("inode {inode}")),
            _ => return Err("each file needs either a path or an inode".into()),
        };
        let is_file = |inode: &InodeId| metadata.inode(*inode).is_some_and(|found| found.kind() == Kind::File);
        let inode = inode.filter(is_file).ok_or_else(|| format!("the image has no file {shown}"))?;
        let count = metadata.page_count(inode);
        for (first, end) in file.pages.iter().copied() {
            if first >= end || end > count {
                return Err(format!("{shown} has {count} pages, asked for are {first} to {end}"));
            }
            if (end - first) as usize > HINT_PAGES_MAX - pages.len() {
                return Err(format!("more than {HINT_PAGES_MAX} pages in one request"));
            }
            pages.extend((first..end).map(|index| PageId::new(inode, index)));
        }
    }
    Ok(pages)
}

/// Whether the overlay in `folder` has something of its own at `path`, or in the place of a
/// directory above it.
fn is_changed(folder: &Path, path: &str) -> bool {
    let mut at = folder.join("upper");
    let mut names = path.split('/').filter(|name| !matches!(*name, "" | ".")).peekable();
    while let Some(name) = names.next() {
        at.push(name);
        let Ok(found) = fs::symlink_metadata(&at) else { return false };
        if names.peek().is_none() || !found.is_dir() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use image::fixture::{Fixture, Node};
    use image::{Limits, Metadata};

    use super::*;

    fn metadata() -> Metadata {
        let nodes = [
            Node::dir(b"lib"),
            Node::file(b"lib/a.so", &[7; 5 * 4096 + 1]),
            Node::symlink(b"a", b"/lib/a.so"),
            Node::file(b"empty", b""),
        ];
        Metadata::open(&Fixture::default().pack(&nodes).expect("packed"), &Limits::default()).expect("valid")
    }

    fn asked(text: &str) -> Result<Vec<u32>, String> {
        let files: Vec<HintedFile> = serde_json::from_str(text).expect("JSON");
        Ok(pages(&metadata(), None, &files)?.into_iter().map(|page| page.index).collect())
    }

    #[test]
    fn files_are_found_by_path_through_links_and_by_inode() {
        let inode = metadata().resolve(b"/lib/a.so").expect("there").0;
        assert_eq!(asked(r#"[{"path":"/lib/a.so","pages":[[0,2],[5,6]]}]"#), Ok(vec![0, 1, 5]));
        assert_eq!(asked(r#"[{"path":"a","pages":[[4,5]]},{"path":"empty","pages":[]}]"#), Ok(vec![4]));
        assert_eq!(asked(&format!(r#"[{{"inode":{inode},"pages":[[3,4]]}}]"#)), Ok(vec![3]));
    }

    #[test]
    fn what_does_not_exist_is_named() {
        for (text, what) in [
            (r#"[{"path":"/lib/b.so","pages":[[0,1]]}]"#, "no file /lib/b.so"),
            (r#"[{"path":"/lib","pages":[[0,1]]}]"#, "no file /lib"),
            (r#"[{"inode":4000000000,"pages":[[0,1]]}]"#, "no file inode 4000000000"),
            (r#"[{"path":"/lib/a.so","pages":[[5,7]]}]"#, "/lib/a.so has 6 pages, asked for are 5 to 7"),
            (r#"[{"path":"/lib/a.so","pages":[[3,3]]}]"#, "asked for are 3 to 3"),
            (r#"[{"path":"/empty","pages":[[0,1]]}]"#, "/empty has 0 pages"),
            (r#"[{"pages":[[0,1]]}]"#, "either a path or an inode"),
            (r#"[{"path":"a","inode":1,"pages":[[0,1]]}]"#, "either a path or an inode"),
        ] {
            let error = asked(text).expect_err(text);
            assert!(error.contains(what), "{error}");
        }
        let many: Vec<(u32, u32)> = vec![(0, 6); HINT_PAGES_MAX / 6 + 1];
        let file = HintedFile { path: Some("a".into()), inode: None, pages: many };
        assert!(pages(&metadata(), None, &[file]).expect_err("too many").contains("more than 65536 pages"));
    }

    #[test]
    fn files_changed_in_the_overlay_are_left_out() {
        let folder = tempfile::tempdir().expect("tempdir");
        let hinted = || {
            let file = HintedFile { path: Some("/lib/a.so".into()), inode: None, pages: vec![(0, 1)] };
            pages(&metadata(), Some(folder.path()), &[file]).expect("valid").len()
        };
        assert_eq!(hinted(), 1);
        fs::create_dir_all(folder.path().join("upper/lib")).expect("mkdir");
        assert_eq!(hinted(), 1, "only its directory was touched");
        fs::write(folder.path().join("upper/lib/a.so"), b"mine").expect("write");
        assert_eq!(hinted(), 0);
        fs::remove_dir_all(folder.path().join("upper/lib")).expect("removed");
        fs::write(folder.path().join("upper/lib"), b"a file in its place").expect("write");
        assert_eq!(hinted(), 0);
    }
}
