//! Uploads: only lacking blocks travel, a broken connection starts again, damage is found before it
//! leaves.

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use image::fixture::Fixture;
use image::{BuilderParams, Limits, Metadata};
use units::{BlockId, ImageId, RequestId};
use wire::{BlockRange, ErrorCode, Reply, Request, ServerConnection, ServerEvent};

use super::fake_server::{FakeServer, greeting};
use super::tree::Tree;
use crate::upload::{News, Progress, upload};
use crate::{ClientError, Config};
use connection::{ConnectionError, Remote, Target};

/// The server's side: collects an image, asking for blocks it has not got yet.
#[derive(Default)]
struct Receiver {
    file: Vec<u8>,
    meta_missing: u64,
    have: std::collections::BTreeSet<u32>,
    name: String,
    blocks_received: usize,
}

impl Receiver {
    fn take(&mut self, machine: &mut ServerConnection, event: &ServerEvent) -> bool {
        match event {
            ServerEvent::Request { ask: Request::PutOpen { name, file_bytes, metadata_bytes, .. }, .. } => {
                self.file.resize(*file_bytes as usize, 0);
                self.meta_missing = metadata_bytes + 4096;
                self.name = name.clone();
            }
            ServerEvent::PutMeta { request, offset, bytes } => {
                self.file[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                self.meta_missing -= bytes.len() as u64;
                if self.meta_missing == 0 {
                    self.need(machine, *request);
                }
            }
            ServerEvent::PutBlock { block, bytes, request } => {
                let metadata = self.metadata();
                let entry = metadata.verify_block(*block, bytes).unwrap();
                self.file[entry.file_offset as usize..][..bytes.len()].copy_from_slice(bytes);
                self.have.insert(block.0);
                self.blocks_received += 1;
                machine.put_progress(*request, entry.file_offset + bytes.len() as u64).unwrap();
            }
            ServerEvent::PutCommit { request } => {
                machine.reply(*request, Reply::PutDone { id: self.metadata().id() }).unwrap();
            }
            _ => return false,
        }
        true
    }

    fn metadata(&self) -> Metadata {
        Metadata::open(&self.file, &Limits::default()).unwrap()
    }

    fn need(&self, machine: &mut ServerConnection, request: RequestId) {
        let lacking = (0..self.metadata().block_count()).filter(|block| !self.have.contains(block));
        let ranges: Vec<BlockRange> = lacking.map(|block| BlockRange { first: BlockId(block), count: 1 }).collect();
        machine.put_need(request, ranges, true).unwrap();
    }
}

struct Rig {
    tree: Arc<Tree>,
    server: FakeServer,
    receiver: Arc<Mutex<Receiver>>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let tree = Arc::new(Tree::plain());
        let server = FakeServer::start(&tree);
        let receiver = Arc::new(Mutex::new(Receiver::default()));
        let taker = Arc::clone(&receiver);
        server.policy(move |_, machine, event| taker.lock().unwrap().take(machine, event));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.rnl");
        std::fs::write(&path, &tree.bytes).unwrap();
        Rig { tree, server, receiver, path, _folder: folder }
    }

    fn upload(&self, image: &str) -> Result<(ImageId, Progress), ClientError> {
        let mut last = Progress::default();
        let id = upload(&self.path, &remote(&self.server.url(image)), &Config::default(), &mut |news| {
            if let News::Progress(progress) = news {
                last = progress;
            }
        })?;
        Ok((id, last))
    }
}

fn remote(url: &str) -> Remote {
    let Ok(Target::Remote(target)) = Target::parse(url) else { panic!("{url}") };
    target
}

#[test]
fn an_upload_arrives_whole_and_the_second_sends_no_block() {
    let rig = Rig::new();
    let (id, first) = rig.upload("app:v1").unwrap();
    assert_eq!(id, rig.tree.metadata.id());
    assert!(rig.receiver.lock().unwrap().file == rig.tree.bytes);
    assert_eq!(rig.receiver.lock().unwrap().name, "app:v1");
    assert_eq!((first.sent_bytes, first.blocks_present), (rig.tree.bytes.len() as u64, 0));
    assert_eq!(first.wanted_bytes, first.sent_bytes);
    let (_, second) = rig.upload("app:v2").unwrap();
    assert_eq!(second.blocks_present, second.blocks);
    assert_eq!(rig.receiver.lock().unwrap().blocks_received as u32, second.blocks, "of the first upload");
}

#[test]
fn a_lost_connection_starts_again_and_sends_only_what_is_lacking() {
    let rig = Rig::new();
    let taker = Arc::clone(&rig.receiver);
    let mut cut = false;
    rig.server.policy(move |connection, machine, event| {
        let mut receiver = taker.lock().unwrap();
        if cut && connection == 0 {
            return true;
        }
        if receiver.blocks_received == 3 && !cut {
            cut = true;
            machine.shut_down(ErrorCode::Shutdown, "going down");
            return true;
        }
        receiver.take(machine, event)
    });
    let (_, progress) = rig.upload("app").unwrap();
    let receiver = rig.receiver.lock().unwrap();
    assert!(receiver.file == rig.tree.bytes);
    assert_eq!(receiver.blocks_received as u32, rig.tree.metadata.block_count(), "no block twice");
    assert_eq!((progress.sent_bytes, progress.blocks_present), (rig.tree.bytes.len() as u64, 0), "of both attempts");
}

#[test]
fn a_server_that_is_away_for_a_while_is_waited_for() {
    let mut rig = Rig::new();
    let target = remote(&rig.server.url("app"));
    // The first connection stores no more than that.
    let taker = Arc::clone(&rig.receiver);
    rig.server.policy(move |connection, machine, event| {
        let mut receiver = taker.lock().unwrap();
        connection == 0 && receiver.blocks_received >= 3 || receiver.take(machine, event)
    });
    let (receiver, server) = (&rig.receiver, &mut rig.server);
    let (mut is_there, mut refused) = (true, 0);
    let outcome = upload(&rig.path, &target, &Config::default(), &mut |news| match news {
        News::Progress(_) if is_there && receiver.lock().unwrap().blocks_received >= 3 && refused == 0 => {
            server.kill();
            is_there = false;
        }
        News::Interrupted(ClientError::Connection(ConnectionError::Connect { .. })) => {
            refused += 1;
            if refused == 3 {
                server.restart();
                is_there = true;
            }
        }
        _ => {}
    });
    assert_eq!(outcome.unwrap(), rig.tree.metadata.id());
    assert!(receiver.lock().unwrap().file == rig.tree.bytes);
    assert_eq!(refused, 3);
}

#[test]
fn a_server_that_greets_and_then_is_silent_ends_an_upload() {
    let (listener, greeting) = (TcpListener::bind("127.0.0.1:0").unwrap(), greeting());
    let url = format!("runnel://{}/app", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let greet = |stream: std::io::Result<std::net::TcpStream>| {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(&greeting);
            stream
        };
        let _silent: Vec<_> = listener.incoming().map(greet).collect();
    });
    // More metadata than one frame takes, which the kernel takes for the server.
    let params = BuilderParams { chunk_shift: 8, ..BuilderParams::default() };
    let tree = Tree::sized(Fixture { params, ..Fixture::default() }, 3, 4000);
    let region = tree.metadata.metadata_region();
    assert!(region.end - region.start > 512 << 10, "{region:?}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.rnl");
    std::fs::write(&path, &tree.bytes).unwrap();
    let mut config = Config { upload_deadline: Duration::from_millis(500), ..Config::default() };
    config.connection.answer_deadline = Duration::from_millis(100);
    let mut attempts = 1;
    let error = upload(&path, &remote(&url), &config, &mut |news| {
        attempts += u32::from(matches!(news, News::Interrupted(_)));
        assert!(attempts < 100, "it never ends");
    })
    .unwrap_err();
    assert!(matches!(error, ClientError::NoProgress { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains(&url[..url.len() - 4]) && said.contains("the server sent nothing within 100ms"), "{said}");
    assert!(said.contains("the upload got no further for 500ms\nhint: "), "{said}");
    assert!(attempts > 1);
}

#[test]
fn regress_a_server_that_loses_what_it_stores_ends_an_upload() {
    let rig = Rig::new();
    let taker = Arc::clone(&rig.receiver);
    rig.server.policy(move |_, machine, event| {
        let mut receiver = taker.lock().unwrap();
        let taken = receiver.take(machine, event);
        if matches!(event, ServerEvent::PutBlock { .. }) {
            receiver.have.clear();
            machine.shut_down(ErrorCode::Shutdown, "going down");
        }
        taken
    });
    let config = Config { upload_deadline: Duration::from_millis(500), ..Config::default() };
    let mut attempts = 1;
    let error = upload(&rig.path, &remote(&rig.server.url("app")), &config, &mut |news| {
        attempts += u32::from(matches!(news, News::Interrupted(_)));
        assert!(attempts < 500, "it never ends");
    })
    .unwrap_err();
    assert!(matches!(error, ClientError::NoProgress { .. }), "{error}");
}

#[test]
fn a_damaged_file_is_not_sent() {
    let rig = Rig::new();
    let mut bytes = rig.tree.bytes.clone();
    bytes[5000] ^= 1;
    std::fs::write(&rig.path, &bytes).unwrap();
    let error = rig.upload("app").unwrap_err();
    assert!(matches!(error, ClientError::Image { .. }), "{error}");
    assert!(!rig.receiver.lock().unwrap().have.contains(&0));
}

#[test]
fn refusals_and_hostile_answers_are_errors() {
    let rig = Rig::new();
    let error = rig.upload(&format!("@{}", ImageId([1; 32]))).unwrap_err();
    assert!(matches!(error, ClientError::NotATag(_)), "{error}");
    rig.server.policy(|_, machine, event| {
        if let ServerEvent::Request { request, ask: Request::PutOpen { .. } } = event {
            machine.reply(*request, Reply::error(ErrorCode::NoSpace, "the store is full")).unwrap();
        }
        true
    });
    let error = rig.upload("app").unwrap_err().to_string();
    assert!(error.contains("the store is full"), "{error}");
    rig.server.policy(|_, machine, event| {
        if let ServerEvent::Request { request, ask: Request::PutOpen { .. } } = event {
            let range = BlockRange { first: BlockId(5), count: 1_000_000 };
            machine.put_need(*request, vec![range], true).unwrap();
        }
        true
    });
    let error = rig.upload("app").unwrap_err();
    assert!(matches!(error, ClientError::NoSuchBlock { .. }), "{error}");
    let target = Remote {
        server: connection::Server { scheme: connection::Scheme::Runnel, host: "127.0.0.1".into(), port: 1 },
        image: connection::ImageName::parse("x").unwrap(),
    };
    let missing = upload("/no/such".as_ref(), &target, &Config::default(), &mut |_| ()).unwrap_err();
    assert!(matches!(missing, ClientError::File { .. }), "{missing}");
}
