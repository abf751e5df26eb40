//! What a server sends of an image before it answers Open.

use std::sync::Arc;

use bytes::Bytes;
use wire::format::{FEATURES, START_BYTES_MAX};
use wire::{ImageHandle, Request, ServerEvent};

use super::fake_server::{FakeServer, HANDLE};
use super::tree::Tree;
use super::{open, plain, read_page};

type Part = (ImageHandle, u64, Bytes);

/// What a good server sends.
fn parts(tree: &Tree) -> Vec<Part> {
    let part =
        |start: u64, end: u64| (HANDLE, start, Bytes::copy_from_slice(&tree.bytes[start as usize..end as usize]));
    let (start, end) = (tree.metadata.metadata_region().start, tree.metadata.superblock().hash_region().unwrap().start);
    let mut parts = vec![part(0, 4096)];
    parts.extend((start..end).step_by(START_BYTES_MAX).map(|at| part(at, end.min(at + START_BYTES_MAX as u64))));
    parts
}

/// Mounts from a server that sends `parts`, and reads a page. How often metadata was asked for.
fn mount(tree: &Arc<Tree>, parts: Vec<Part>) -> usize {
    let server = FakeServer::start_with(tree, FEATURES);
    server.policy(move |_, machine, event| {
        if matches!(event, ServerEvent::Request { ask: Request::Open { .. }, .. }) {
            for (image, offset, bytes) in parts.clone() {
                machine.start(image, offset, bytes).unwrap();
            }
        }
        false
    });
    let session = open(&server, plain());
    assert_eq!(read_page(&session, 1, tree.big(), 5).wait().unwrap(), tree.page(units::PageId::new(tree.big(), 5)));
    server.requests(0, |ask| matches!(ask, Request::MetaRead { .. })).len()
}

#[test]
fn nothing_is_asked_for_that_came_before_the_answer() {
    let tree = Arc::new(Tree::large());
    assert_eq!(mount(&tree, parts(&tree)), 0);
}

#[test]
fn zeros_that_end_the_superblock_need_not_come() {
    let tree = Arc::new(Tree::large());
    let mut parts = parts(&tree);
    let used = tree.bytes[..4096].iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(used < 1024, "most of the table is unused");
    parts[0].2.truncate(used);
    assert_eq!(mount(&tree, parts), 0);
}

#[test]
fn what_is_missing_or_does_not_fit_is_asked_for() {
    let tree = Arc::new(Tree::large());
    let good = parts(&tree);
    let changed = |change: &dyn Fn(&mut Vec<Part>)| {
        let mut parts = good.clone();
        change(&mut parts);
        parts
    };
    for parts in [
        Vec::new(),
        changed(&|parts| parts.truncate(1)),
        changed(&|parts| parts[1].2.truncate(100)),
        changed(&|parts| drop(parts.remove(0))),
        changed(&|parts| parts.iter_mut().for_each(|part| part.0 = ImageHandle(99))),
        changed(&|parts| parts[1].1 += 1),
        changed(&|parts| parts[1].1 = u64::MAX),
        changed(&|parts| parts.reverse()),
    ] {
        assert!(mount(&tree, parts) > 0);
    }
}
