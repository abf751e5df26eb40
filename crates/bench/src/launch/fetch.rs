//! Prefetching a known set of files beside or before a start, as any program in user space could.
//!
//! Metadata come first where a style says so: folders are listed and files opened in the order of
//! their inodes, by a few threads, since each such step waits for the disk. Then `posix_fadvise`
//! asks for pages; the kernel reads them while the program runs. Every style works with exact
//! knowledge of the set, so its time is a bound and not a forecast.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{Advice, fadvise};

use super::touched::{self, Touched};

/// Threads that open files: two thirds of what can be gained by more are gained with four.
const THREADS: usize = 4;

/// Bytes of first touches that are sorted by place within themselves, in pages: 32 MiB.
const WINDOW_PAGES: u64 = 8192;

/// Pages that are read along if two wanted ranges of a file lie no farther apart: another request
/// costs more.
const BRIDGE_PAGES: u64 = 4;

const PAGE: u64 = units::PAGE_BYTES as u64;

/// How to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// All folders and files opened in the order of inodes, then touched pages in the order of the
    /// disk.
    Sorted,
    /// Touched pages in windows of first touches, each in the order of the disk, files opened as
    /// they come.
    Windows,
    /// Every file that is touched, whole, in the order of first touches: `vmtouch`.
    WholeFiles,
    /// What processes have mapped, in the order of the disk: `preload`.
    Mapped,
}

/// A piece of a file to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the file in the set.
    pub file: usize,
    /// First page.
    pub page: u64,
    /// How many.
    pub pages: u64,
    /// Where it lies on the disk.
    place: u64,
    order: u64,
}

/// A prefetch, ready to be run.
pub struct Fetch<'a> {
    root: &'a Path,
    touched: &'a Touched,
    style: Style,
    /// Batches in their order.
    batches: Vec<Vec<Piece>>,
    files: Mutex<HashMap<usize, File>>,
    stop: AtomicBool,
}

impl<'a> Fetch<'a> {
    /// The prefetch of what `touched` says about `phase`, below the folder `root`.
    pub fn new(root: &'a Path, touched: &'a Touched, phase: usize, style: Style) -> Fetch<'a> {
        let batches = batches(touched, phase, style);
        Fetch { root, touched, style, batches, files: Mutex::default(), stop: AtomicBool::new(false) }
    }

    /// Opens what must be opened before pages can be asked for; nothing in styles that open as they
    /// go.
    pub fn open(&self) {
        if self.style == Style::Sorted {
            let list = |index: usize| {
                drop(fs::read_dir(self.root.join(&self.touched.folders[index])).map(Iterator::count));
            };
            self.each(&folders(self.touched, &self.batches), list);
            self.open_files(self.batches.iter().flatten());
        }
    }

    /// Asks for the pages; ends when the last request was sent, or soon after [`Fetch::stop`].
    pub fn read(&self) {
        for batch in &self.batches {
            self.open_files(batch.iter());
            let files = self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for piece in batch {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Some(file) = files.get(&piece.file) {
                    // What cannot be had ahead is read by the program itself.
                    let _ = fadvise(file, piece.page * PAGE, NonZeroU64::new(piece.pages * PAGE), Advice::WillNeed);
                }
            }
        }
    }

    /// Ends it: the program has ended.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Opens the files of `pieces` that are not open, in the order of inodes.
    fn open_files<'p>(&self, pieces: impl Iterator<Item = &'p Piece>) {
        let open = self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut wanted: Vec<usize> = pieces.map(|piece| piece.file).filter(|file| !open.contains_key(file)).collect();
        drop(open);
        // The set is sorted by inode number.
        wanted.sort_unstable();
        wanted.dedup();
        self.each(&wanted, |index| {
            if let Ok(file) = File::open(self.root.join(&self.touched.files[index].path)) {
                self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(index, file);
            }
        });
    }

    /// Does `work` for each of `indexes`, by some threads, about in their order.
    fn each(&self, indexes: &[usize], work: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS.min(indexes.len()) {
                scope.spawn(|| {
                    while let Some(index) = indexes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if self.stop.load(Ordering::Relaxed) {
                            return;
                        }
                        work(*index);
                    }
                });
            }
        });
    }
}

/// Indexes of the folders that hold what is asked for, and of those above: none that only another
/// phase needs.
fn folders(touched: &Touched, batches: &[Vec<Piece>]) -> Vec<usize> {
    let files: BTreeSet<usize> = batches.iter().flatten().map(|piece| piece.file).collect();
    let needed: BTreeSet<&Path> =
        files.iter().flat_map(|index| touched.files[*index].path.ancestors().skip(1)).collect();
    let is_needed = |index: &usize| needed.contains(touched.folders[*index].as_path());
    (0..touched.folders.len()).filter(is_needed).collect()
}

/// What to ask for, in batches.
fn batches(touched: &Touched, phase: usize, style: Style) -> Vec<Vec<Piece>> {
    let ranges =
        |file: &touched::File| file.touched.iter().filter(|range| range.phase == phase).copied().collect::<Vec<_>>();
    let mut pieces: Vec<Piece> = Vec::new();
    for (index, file) in touched.files.iter().enumerate() {
        let touched = ranges(file);
        let Some(order) = touched.iter().map(|range| range.order).min() else { continue };
        let piece = |page, pages, place, order| Piece { file: index, page, pages, place, order };
        match style {
            Style::Sorted | Style::Windows => {
                let all = touched.iter().map(|range| piece(range.page, range.pages, range.place, range.order));
                pieces.extend(bridged(all.collect()));
            }
            Style::WholeFiles => pieces.push(piece(0, file.pages, file.place, order)),
            Style::Mapped => {
                let inside = |(page, pages): (u64, u64)| (page, pages.min(file.pages.saturating_sub(page)));
                let all = file.mapped.iter().copied().map(inside).filter(|(_, pages)| *pages > 0);
                pieces.extend(all.map(|(page, pages)| piece(page, pages, file.place + page, order)));
            }
        }
    }
    match style {
        Style::Sorted | Style::Mapped => {
            pieces.sort_by_key(|piece| piece.place);
            vec![pieces]
        }
        Style::WholeFiles => {
            pieces.sort_by_key(|piece| piece.order);
            vec![pieces]
        }
        Style::Windows => {
            pieces.sort_by_key(|piece| piece.order);
            windows(pieces)
        }
    }
}

/// Joins pieces of one file that lie close together; the earliest touch counts.
fn bridged(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_by_key(|piece| piece.page);
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if piece.page <= last.page + last.pages + BRIDGE_PAGES => {
                last.pages = piece.page + piece.pages - last.page;
                last.order = last.order.min(piece.order);
            }
            _ => joined.push(piece),
        }
    }
    joined
}

fn windows(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut batches: Vec<Vec<Piece>> = Vec::new();
    let mut pages = WINDOW_PAGES;
    for piece in pieces {
        if pages + piece.pages > WINDOW_PAGES {
            batches.push(Vec::new());
            pages = 0;
        }
        pages += piece.pages;
        if let Some(batch) = batches.last_mut() {
            batch.push(piece);
        }
    }
    batches.iter_mut().for_each(|batch| batch.sort_by_key(|piece| piece.place));
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::touched::{File, Range};

    fn set() -> Touched {
        let range = |page, pages, place, order, phase| Range { page, pages, place, order, phase };
        let file = |path: &str, inode, pages, place, touched, mapped| File {
            path: path.into(),
            inode,
            pages,
            place,
            touched,
            mapped,
        };
        let first = vec![range(50, 2, 1050, 0, 0), range(0, 1, 1000, 3, 0), range(4, 1, 1004, 5, 0)];
        let second = vec![range(0, 9000, 100, 1, 0), range(9000, 5, 9100, 9, 1)];
        Touched {
            files: vec![
                file("a", 5, 60, 1000, first, vec![(0, 60), (40, 90)]),
                file("b", 6, 9005, 100, second, Vec::new()),
            ],
            ..Touched::default()
        }
    }

    fn pieces(phase: usize, style: Style) -> Vec<Vec<(usize, u64, u64)>> {
        let short = |piece: &Piece| (piece.file, piece.page, piece.pages);
        batches(&set(), phase, style).iter().map(|batch| batch.iter().map(short).collect()).collect()
    }

    #[test]
    fn each_style_asks_for_its_pages_in_its_order() {
        assert_eq!(pieces(0, Style::Sorted), [vec![(1, 0, 9000), (0, 0, 5), (0, 50, 2)]]);
        assert_eq!(pieces(0, Style::Windows), [vec![(0, 50, 2)], vec![(1, 0, 9000)], vec![(0, 0, 5)]]);
        assert_eq!(pieces(0, Style::WholeFiles), [vec![(0, 0, 60), (1, 0, 9005)]]);
        assert_eq!(pieces(0, Style::Mapped), [vec![(0, 0, 60), (0, 40, 20)]]);
        assert_eq!(pieces(1, Style::Sorted), [vec![(1, 9000, 5)]]);
    }

    #[test]
    fn folders_are_listed_only_in_the_phase_that_needs_them() {
        let mut touched = set();
        touched.files[0].path = "usr/lib/a".into();
        touched.files[1].path = "opt/b".into();
        touched.folders = ["", "opt", "usr", "usr/lib"].map(Into::into).into();
        let of = |phase| folders(&touched, &batches(&touched, phase, Style::Sorted));
        assert_eq!((of(0), of(1), of(2)), (vec![0, 1, 2, 3], vec![0, 1], Vec::new()));
    }

    #[test]
    fn files_that_are_gone_stop_nothing() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("a"), vec![0; 60 * 4096])?;
        let touched = set();
        for style in [Style::Sorted, Style::Windows, Style::WholeFiles, Style::Mapped] {
            let fetch = Fetch::new(folder.path(), &touched, 0, style);
            fetch.open();
            fetch.read();
            assert_eq!(fetch.files.lock().map(|files| files.len()).ok(), Some(1));
            fetch.stop();
        }
        Ok(())
    }
}
