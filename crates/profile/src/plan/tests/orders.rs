//! Orders of fetching.

use super::order::{Physical, opens_by_inode, physical, windows};
use super::*;

fn extent(file: u32, page: u32, pages: u32) -> GroupExtent {
    GroupExtent { file, page, pages }
}

#[test]
fn physical_order_cuts_joins_and_keeps_what_has_no_place() {
    // File 0 lies backwards in two pieces, file 1 in one, file 2 nowhere, file 3 answers nonsense.
    let place = |file, offset: u64| match (file, offset / 4096) {
        (0, page @ 0..4) => Some(Physical { offset: 900_000 + offset, bytes: (4 - page) * 4096 }),
        (0, page) => Some(Physical { offset: 100_000 + offset, bytes: (100 - page) * 4096 }),
        (1, _) => Some(Physical { offset: 500_000 + offset, bytes: 1 << 30 }),
        (3, page) => Some(Physical { offset: 2_000_000 - page * 4096, bytes: 0 }),
        _ => None,
    };
    let given = [extent(2, 7, 1), extent(1, 4, 4), extent(0, 2, 6), extent(1, 0, 4), extent(2, 1, 2), extent(3, 0, 2)];
    let expected = [
        extent(0, 4, 4),
        extent(1, 0, 8),
        extent(0, 2, 2),
        extent(3, 1, 1),
        extent(3, 0, 1),
        extent(2, 7, 1),
        extent(2, 1, 2),
    ];
    assert_eq!(physical(&given, place), expected);
    assert_eq!(physical(&[], place), []);
    // Foreign extents at the end of the numbers neither panic nor loop.
    let last = extent(1, u32::MAX, u32::MAX);
    assert_eq!(physical(&[last], place), [last]);
}

#[test]
fn windows_keep_first_touch_order_between_and_sort_inside() {
    let given = [extent(5, 0, 2), extent(1, 8, 1), extent(1, 0, 8), extent(0, 3, 1)];
    assert_eq!(
        windows(&given, 4 * 4096),
        [extent(1, 0, 1), extent(1, 8, 1), extent(5, 0, 2), extent(1, 1, 4), extent(0, 3, 1), extent(1, 5, 3)]
    );
    assert_eq!(windows(&given, 1 << 30), [extent(0, 3, 1), extent(1, 0, 9), extent(5, 0, 2)]);
    assert_eq!(windows(&given[..1], 0), [extent(5, 0, 1), extent(5, 1, 1)], "a page at least");
    assert_eq!(windows(&[], 4096), []);
}

#[test]
fn opens_go_by_inode_and_directories_first() {
    let file = |inode: Option<u64>| PlanFile {
        path: format!("f{inode:?}").into_bytes(),
        identity: inode.map(|inode| Identity { inode, size: 1, mtime_ns: 0, build_id: Vec::new() }),
    };
    let files = vec![file(Some(7)), file(None), file(Some(3)), file(Some(5))];
    let plan = LaunchPlan { files, ..LaunchPlan::default() };
    assert_eq!(opens_by_inode(&plan, &[0, 3, 1, 2]), [1, 2, 3, 0]);
    assert_eq!(opens_by_inode(&plan, &[0, 99]), [99, 0], "a foreign number is no panic");
}
