//! Hints to a mount, as its control socket takes them: which pages of which files will be needed soon.
//!
//! One line is `hint ` and a JSON array of files, each with its `path` inside the mount or its `inode`, and `pages` as
//! pairs of the first page and the one behind the last: `hint [{"path":"/usr/bin/python3","pages":[[0,32],[40,41]]}]`.
//! The answer is `{"hinted":N}`, the pages that were asked for (not those that are here already), or `{"error":"..."}`.
//! A connection may send any number of such lines, without waiting for the answers. Each connection has a thread, so that
//! `status` is answered beside it. Sent by `hinter`.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use client::HINT_PAGES_MAX;
use image::{Kind, Metadata};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use units::{InodeId, PageId};

use crate::control::Controlled;

/// What a line of this kind begins with.
pub(crate) const REQUEST: &str = "hint ";

/// Longest line: the ranges of [`RANGES_MAX`] and the longest path, escaped.
pub(crate) const LINE_BYTES_MAX: u64 = 64 << 10;

/// Ranges that a sender puts into one line.
pub(crate) const RANGES_MAX: usize = 1024;

/// Connections of this kind at a time: launchers that run together.
const CONNECTIONS_MAX: usize = 8;

/// Silence after which a connection is closed; its sender makes another one.
const IDLE_MAX: Duration = Duration::from_secs(60);

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

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// So many pages were asked for.
    Hinted(usize),
    /// Why none were.
    Error(String),
}

/// The line that asks for `files`.
pub(crate) fn line(files: &[HintedFile]) -> io::Result<String> {
    Ok(format!("{REQUEST}{}\n", serde_json::to_string(files)?))
}

/// The pages that are meant, in order. Files that were changed in the overlay are left out: what is read of them does not
/// come from the image.
///
/// # Errors
/// What does not exist, named: a file, a page. Too many pages.
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

/// Whether the overlay in `folder` has something of its own at `path`, or in the place of a directory above it.
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

/// Serves a connection whose first line is one of these, on a thread of its own until it falls silent or `stop` is
/// readable.
pub(crate) struct Connections {
    open: Arc<AtomicUsize>,
    stop: OwnedFd,
}

impl Connections {
    pub fn new(stop: OwnedFd) -> Connections {
        Connections { open: Arc::default(), stop }
    }

    /// Takes over a connection of which `first` was read.
    pub fn take(&self, mount: &Arc<dyn Controlled>, reader: BufReader<UnixStream>, first: Vec<u8>) -> io::Result<()> {
        if self.open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            self.open.fetch_sub(1, Ordering::AcqRel);
            return answer(reader.get_ref(), &Answer::Error("too many connections for hints".into()));
        }
        let (mount, open, stop) = (mount.clone(), self.open.clone(), self.stop.try_clone());
        let started = thread::Builder::new().name("runnel-hints".into()).spawn(move || {
            // A client that went away concerns nobody.
            let _ = stop.and_then(|stop| serve(mount.as_ref(), reader, first, &stop));
            open.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
        started.map(drop)
    }
}

fn serve(mount: &dyn Controlled, mut reader: BufReader<UnixStream>, first: Vec<u8>, stop: &OwnedFd) -> io::Result<()> {
    let mut line = first;
    loop {
        let rest = LINE_BYTES_MAX.saturating_sub(line.len() as u64);
        if !line.ends_with(b"\n") {
            reader.by_ref().take(rest).read_until(b'\n', &mut line)?;
        }
        if !line.ends_with(b"\n") {
            let long = line.len() as u64 >= LINE_BYTES_MAX;
            let problem = format!("a request is longer than {LINE_BYTES_MAX} bytes");
            return if long { answer(reader.get_ref(), &Answer::Error(problem)) } else { Ok(()) };
        }
        answer(reader.get_ref(), &obey(mount, &line))?;
        line.clear();
        if reader.buffer().is_empty() && !wait(reader.get_ref(), stop)? {
            return Ok(());
        }
    }
}

fn obey(mount: &dyn Controlled, line: &[u8]) -> Answer {
    let Some(text) = line.strip_prefix(REQUEST.as_bytes()) else {
        return Answer::Error("unknown request: after a hint come hints".into());
    };
    let hinted = serde_json::from_slice::<Vec<HintedFile>>(text).map_err(|error| format!("not a hint: {error}"));
    match hinted.and_then(|files| mount.hint(&files)) {
        Ok(count) => Answer::Hinted(count),
        Err(problem) => Answer::Error(problem),
    }
}

fn answer(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// Waits for more. False if the mount ends or nothing comes for long.
fn wait(stream: &UnixStream, stop: &OwnedFd) -> io::Result<bool> {
    let time = Timespec { tv_sec: IDLE_MAX.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut fds, Some(&time)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(fds[0].revents().is_empty() && !fds[1].revents().is_empty()),
        }
    }
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
