//! The order in which a group is fetched. Pure functions; the launcher passes the positions on the
//! disk.
//!
//! A rotating disk pays for every move of its head, so all of a group is fetched in the order in
//! which it lies there, and files are opened in the order of their inodes. Any other disk has no
//! head, but a program that runs meanwhile wants its first pages first: windows in the order of
//! first touches, and inside each by file and offset so that requests are long.

use std::collections::VecDeque;

use units::PAGE_BYTES;

use super::{GroupExtent, LaunchPlan};

/// Bytes of a window for [`windows`]: what a slow card (90 MB/s) reads in a third of a second.
pub const WINDOW_BYTES: u64 = 32 << 20;

/// Where a part of a file lies on a disk, both in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Physical {
    /// Offset on the disk.
    pub offset: u64,
    /// From there on, how many bytes of the file follow each other; 0 counts as one page.
    pub bytes: u64,
}

/// The extents in the order of their places on the disk, adjacent ones of a file joined. An extent
/// that lies in several places is cut. What `physical_of(file, offset)` does not know (no FIEMAP,
/// not allocated yet, inline) comes last, in its given order.
pub fn physical(
    extents: &[GroupExtent],
    mut physical_of: impl FnMut(u32, u64) -> Option<Physical>,
) -> Vec<GroupExtent> {
    const PAGE: u64 = PAGE_BYTES as u64;
    let mut placed: Vec<(u64, GroupExtent)> = Vec::new();
    let mut unplaced = Vec::new();
    for extent in extents {
        let mut rest = *extent;
        while rest.pages > 0 {
            let Some(place) = physical_of(rest.file, u64::from(rest.page) * PAGE) else {
                unplaced.push(rest);
                break;
            };
            // At least a page each time, so this ends.
            let pages = place.bytes.div_ceil(PAGE).clamp(1, u64::from(rest.pages)) as u32;
            placed.push((place.offset, GroupExtent { pages, ..rest }));
            rest = GroupExtent { page: rest.page.saturating_add(pages), pages: rest.pages - pages, ..rest };
        }
    }
    // Files of an overlay or with shared extents may lie in one place: then their numbers decide.
    placed.sort_unstable();
    join(placed.into_iter().map(|(_, extent)| extent).chain(unplaced))
}

/// The extents in windows of about `window_bytes` in the order given (that of first touches),
/// inside each by file and page, adjacent ones joined. An extent that is longer than what a window
/// has left is cut.
pub fn windows(extents: &[GroupExtent], window_bytes: u64) -> Vec<GroupExtent> {
    let window = (window_bytes / PAGE_BYTES as u64).clamp(1, u64::from(u32::MAX)) as u32;
    let mut queue: VecDeque<GroupExtent> = extents.iter().copied().collect();
    let mut ordered = Vec::new();
    while !queue.is_empty() {
        let (mut part, mut room) = (Vec::new(), window);
        while room > 0 {
            let Some(extent) = queue.pop_front() else { break };
            let pages = extent.pages.min(room);
            part.push(GroupExtent { pages, ..extent });
            room -= pages;
            if pages < extent.pages {
                let page = extent.page.saturating_add(pages);
                queue.push_front(GroupExtent { page, pages: extent.pages - pages, ..extent });
            }
        }
        part.sort_unstable();
        ordered.extend(join(part.into_iter()));
    }
    ordered
}

/// Opens in the order of inodes. What has none (directories, paths with nothing there) comes first,
/// in the order given: the file system must find directories before it can find what is in them.
pub fn opens_by_inode(plan: &LaunchPlan, opens: &[u32]) -> Vec<u32> {
    let inode = |open: &u32| {
        let identity = plan.files.get(*open as usize).and_then(|file| file.identity.as_ref());
        identity.map(|identity| identity.inode)
    };
    let mut ordered = opens.to_vec();
    ordered.sort_by_key(inode);
    ordered
}

fn join(extents: impl Iterator<Item = GroupExtent>) -> Vec<GroupExtent> {
    let mut joined: Vec<GroupExtent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(last) if last.file == extent.file && last.end() == extent.page => {
                last.pages = last.pages.saturating_add(extent.pages);
            }
            _ => joined.push(extent),
        }
    }
    joined
}
