//! Pushes that end while a piece of them is being built: what comes after finds no trace of the
//! piece.

use std::sync::Arc;

use image::{Limits, Metadata};
use store::{Memory, Store};
use units::{BlockId, PageId, Token};
use wire::{ImageHandle, PushEndReason, Reply};

use super::client::Client;
use super::hooked::{Gate, Hooked, Operation};
use super::rig::{Rig, config, noise};
use crate::StoreAt;

const HINTS: Token = Token(77);

/// Blocks of the image; two of them are a piece.
const BLOCKS: usize = 20;

/// How a push ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Stopped,
    TokenEnded,
}

/// A client whose second piece is being built, which is held back by a gate.
struct Stage {
    client: Client,
    rig: Rig,
    gate: Arc<Gate>,
    handle: ImageHandle,
    pages: Vec<PageId>,
}

impl Stage {
    fn set() -> Stage {
        let bytes = noise(BLOCKS);
        let metadata = Metadata::open(&bytes.as_slice(), &Limits::default()).unwrap();
        let file = metadata.resolve(b"/noise").unwrap();
        let memory = Memory::new();
        memory.put_atomic("app.rnl", &bytes).unwrap();
        let gate = Arc::new(Gate::default());
        let (waits, second) = (gate.clone(), metadata.block(BlockId(2)).unwrap().file_offset);
        let hook = move |key: &str, operation| {
            if key == "app.rnl" && operation == (Operation::Read { offset: second }) {
                waits.pass();
            }
        };
        let rig = Rig::start(config(StoreAt::Open(Arc::new(Hooked::new(memory, hook)))));
        let mut client = Client::connect(rig.address, 1);
        client.credits = false;
        let handle = client.open("app");
        let pages = (0..BLOCKS as u32 * 16).map(|index| PageId::new(file, index)).collect();
        let mut stage = Stage { client, rig, gate, handle, pages };
        stage.hint(0..64);
        stage.gate.wait_arrived(1);
        stage.client.until(|client| client.streams.values().any(|stream| !stream.pieces.is_empty()));
        stage
    }

    fn hint(&mut self, range: std::ops::Range<usize>) {
        let pages = self.pages[range].to_vec();
        self.client.hint(self.handle, HINTS, &pages);
    }

    /// Ends the push and waits until the client is told so.
    fn end(&mut self, end: End) {
        let stream = *self.client.streams.keys().next().unwrap();
        match end {
            End::Stopped => self.client.stop_push(stream),
            End::TokenEnded => self.client.end(self.handle, HINTS),
        }
        self.client.until(|client| client.streams[&stream].end.is_some());
        let reason = self.client.streams[&stream].end.unwrap();
        let expected = match end {
            End::Stopped => PushEndReason::Stopped,
            End::TokenEnded => PushEndReason::TokenEnded,
        };
        assert_eq!(reason, expected);
    }
}

#[test]
fn regress_a_touch_after_a_push_that_ended_while_a_piece_was_built_harms_nobody() {
    for end in [End::Stopped, End::TokenEnded] {
        let mut stage = Stage::set();
        let mut other = Client::connect(stage.rig.address, 2);
        let theirs = other.open("app");
        stage.end(end);
        // A page of the piece that is being built, one that was sent, and one that was never
        // ordered.
        for page in [40, 0, 300] {
            let page = stage.pages[page];
            stage.client.touch(stage.handle, Token(5), &[page]);
            let ask = stage.client.pull_request(stage.handle, Token(5), stage.pages[200], false);
            let reply = stage.client.ask(ask);
            assert!(matches!(reply, Reply::Block { .. }), "{end:?}: {reply:?}");
        }
        // Nothing of the piece comes once it is built, and hints begin a new stream.
        stage.gate.open();
        stage.client.credits = true;
        stage.client.credit_all();
        stage.hint(100..164);
        stage.client.until(|client| client.streams.len() == 2 && client.streams.values().all(|s| s.end.is_some()));
        let streams: Vec<_> = stage.client.streams.values().collect();
        assert_eq!(streams[0].pages(), stage.pages[..32], "{end:?}");
        assert_eq!(
            (streams[1].pages(), streams[1].end),
            (stage.pages[100..164].to_vec(), Some(PushEndReason::Complete))
        );
        let reply = other.pull(theirs, Token(9), stage.pages[40]);
        assert!(matches!(reply, Reply::Block { .. }), "{end:?}: {reply:?}");
        let Stage { client, rig, .. } = stage;
        drop((client, other));
        rig.stop();
    }
}

#[test]
fn hints_while_a_piece_is_built_extend_the_push_behind_it() {
    let mut stage = Stage::set();
    stage.hint(64..100);
    stage.hint(100..128);
    // Answered at once, though a piece is being built of which the page is a part.
    let ask = stage.client.pull_request(stage.handle, Token(5), stage.pages[300], false);
    assert!(matches!(stage.client.ask(ask), Reply::Block { .. }));
    stage.gate.open();
    stage.client.credits = true;
    stage.client.credit_all();
    stage.client.until(|client| client.streams.values().all(|stream| stream.end.is_some()));
    let streams: Vec<_> = stage.client.streams.values().collect();
    assert_eq!((streams.len(), streams[0].pages()), (1, stage.pages[..128].to_vec()));
}
