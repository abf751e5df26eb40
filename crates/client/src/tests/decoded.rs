//! Blocks that a near server sends decoded: each page is checked when it is used.

use std::sync::Arc;

use units::PageId;
use wire::{Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, is_pull};
use super::fake_sink::FakeSink;
use super::tree::Tree;
use super::{open, plain, read_page};
use crate::{Config, Session};

struct Rig {
    tree: Arc<Tree>,
    server: FakeServer,
    session: Arc<Session>,
}

impl Rig {
    /// A server that decodes blocks, and then does `spoil` to their bytes.
    fn new(config: Config, mut spoil: impl FnMut(&mut Vec<u8>) + Send + 'static) -> Rig {
        let tree = Arc::new(Tree::plain());
        let server = FakeServer::start(&tree);
        let session = open(&server, Config { whole_metadata_bytes: u64::MAX, ..config });
        let image = Arc::clone(&tree);
        server.policy(move |_, machine, event| {
            let ServerEvent::Request { request, ask: Request::PullBlock { block, force: false, .. } } = event else {
                return false;
            };
            let mut raw = Vec::new();
            image.metadata.decode_block(*block, image.stored(*block), &mut raw).unwrap();
            spoil(&mut raw);
            machine.reply(*request, Reply::Decoded { block: *block, bytes: raw.into() }).unwrap();
            true
        });
        Rig { tree, server, session }
    }

    fn read(&self, index: u32) {
        let bytes = read_page(&self.session, 1, self.tree.big(), index).wait().unwrap();
        assert_eq!(bytes, self.tree.page(PageId::new(self.tree.big(), index)));
    }

    /// Whether each demand so far had to be answered with the block as it is stored.
    fn forced(&self, count: usize) -> Vec<bool> {
        let forced = |ask: &Request| matches!(ask, Request::PullBlock { force: true, .. });
        self.server.requests(count, is_pull).iter().map(|(_, _, ask)| forced(ask)).collect()
    }

    fn verify_failures(&self) -> u64 {
        self.session.counters().demand.verify_failures
    }
}

#[test]
fn pages_of_a_decoded_block_need_one_request() {
    let rig = Rig::new(plain(), |_| {});
    [2, 5, 0, 15].into_iter().for_each(|index| rig.read(index));
    assert_eq!((rig.forced(1), rig.verify_failures()), (vec![false], 0));
    rig.server.wait_touched(1, &[5, 0, 15].map(|index| PageId::new(rig.tree.big(), index)));
}

#[test]
fn a_wrong_page_is_asked_for_as_it_is_stored_and_no_other_is_disturbed() {
    let rig = Rig::new(plain(), |raw| raw[2 * 4096 + 7] ^= 1);
    rig.read(1);
    assert_eq!((rig.forced(1), rig.verify_failures()), (vec![false], 0), "the page itself is good");
    rig.read(2);
    assert_eq!(rig.forced(3), [false, false, true]);
    assert_eq!(rig.verify_failures(), 2);
    [1, 2, 3].into_iter().for_each(|index| rig.read(index));
    assert_eq!(rig.forced(3).len(), 3, "from the block that was decoded here");
}

#[test]
fn a_block_of_another_length_is_refused() {
    for spoil in [Vec::clear as fn(&mut Vec<u8>), |raw| raw.push(0), |raw| raw.truncate(4096)] {
        let rig = Rig::new(plain(), move |raw| {
            spoil(raw);
            // No frame is empty.
            raw.resize(raw.len().max(1), 0);
        });
        rig.read(0);
        assert_eq!((rig.forced(2), rig.verify_failures()), (vec![false, true], 1));
    }
}

#[test]
fn nothing_wrong_reaches_the_page_cache() {
    // Every page but the first one of a block is wrong, and blocks leave the cache at once.
    let config = Config { cache_bytes: 64 << 10, stored_bytes: 0, ..plain() };
    let rig = Rig::new(config, |raw| raw.iter_mut().skip(4096).step_by(4096).for_each(|byte| *byte ^= 1));
    let sink = Arc::new(FakeSink::default());
    rig.session.attach(sink.clone());
    [0, 16, 32, 48, 64].into_iter().for_each(|index| rig.read(index));
    [1, 17, 33].into_iter().for_each(|index| rig.read(index));
    for page in sink.pages() {
        assert_eq!(sink.page(page).unwrap(), rig.tree.page(page));
    }
}
