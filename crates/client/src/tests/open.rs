//! Opening: what must be refused, and what an opened image looks like.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use image::Limits;
use image::fixture::Fixture;
use units::{ImageId, PAGE_BYTES, PageId};
use wire::{Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, HANDLE, opened};
use super::fake_sink::FakeSink;
use super::tree::Tree;
use super::{open, plain, read, with_open_deadline};
use crate::{ClientError, Config, ReadError, Session, admin};
use connection::{ConnectionError, Target};

fn refused(server: &FakeServer, image: &str, config: Config) -> ClientError {
    match Session::open(&Target::parse(&server.url(image)).unwrap(), config) {
        Ok(_) => panic!("{image} was opened"),
        Err(error) => error,
    }
}

/// Answers Open with `reply`.
fn answer_open(server: &FakeServer, reply: Reply) {
    server.policy(move |_, machine, event| {
        if let ServerEvent::Request { request, ask: Request::Open { .. } } = event {
            machine.reply(*request, reply.clone()).unwrap();
            return true;
        }
        false
    });
}

#[test]
fn a_remote_and_a_local_image_are_the_same() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.rnl");
    std::fs::write(&path, &tree.bytes).unwrap();
    let remote = open(&server, plain());
    let local = Session::open(&Target::parse(path.to_str().unwrap()).unwrap(), Config::default()).unwrap();
    assert_eq!(remote.metadata().id(), local.metadata().id());
    for (inode, contents) in &tree.files {
        for session in [&remote, &local] {
            assert_eq!(read(session, 1, *inode, 0, 1 << 20).wait().as_ref(), Ok(contents));
        }
    }
    assert_eq!(local.counters().transfer.bytes_received, 0);
    assert!(remote.counters().transfer.bytes_received > 0);
}

#[test]
fn a_damaged_local_file_fails_with_an_error_and_never_with_wrong_bytes() {
    let tree = Tree::plain();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.rnl");
    let mut bytes = tree.bytes.clone();
    // Within the first block, behind the superblock.
    bytes[5000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let session = Session::open(&Target::File(path), Config::default()).unwrap();
    assert_eq!(read(&session, 1, tree.big(), 0, 4096).wait(), Err(ReadError::Corrupt));
    let last = 100 * 4096;
    assert_eq!(read(&session, 1, tree.big(), last, 4096).wait().unwrap(), tree.range(tree.big(), last, 4096));
}

#[test]
fn a_hot_block_of_a_local_image_goes_to_the_kernel_at_once() {
    let tree = Tree::of(Fixture { hot_blocks: 1, ..Fixture::default() }, 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.rnl");
    std::fs::write(&path, &tree.bytes).unwrap();
    let session = Session::open(&Target::File(path), Config::default()).unwrap();
    let sink = Arc::new(FakeSink::default());
    session.attach(sink.clone());
    // The cold block first: what is stored is stored in the order of the READs.
    for index in [20, 5] {
        let start = index * PAGE_BYTES as u64;
        assert_eq!(read(&session, 1, tree.big(), start, 4096).wait().unwrap(), tree.range(tree.big(), start, 4096));
    }
    sink.wait_stored(PageId::new(tree.big(), 15));
    let expected: Vec<PageId> =
        (0..16).filter(|index| *index != 5).map(|index| PageId::new(tree.big(), index)).collect();
    assert_eq!(sink.pages(), expected);
    for page in expected {
        assert_eq!(sink.page(page).unwrap(), tree.page(page));
    }
}

#[test]
fn missing_images_and_servers_are_named() {
    let tree = Arc::new(Tree::plain());
    let mut server = FakeServer::start(&tree);
    let error = refused(&server, "other", plain()).to_string();
    assert!(error.contains("no image other:latest"), "{error}");
    let missing = Session::open(&Target::parse("/no/such.rnl").unwrap(), plain()).err().unwrap();
    assert!(missing.to_string().contains("/no/such.rnl"), "{missing}");
    server.kill();
    let error = refused(&server, "app", plain());
    use connection::ConnectionError::{Connect, Lost, Wire};
    let gone = matches!(error, ClientError::Connection(Connect { .. } | Lost { .. } | Wire { .. }));
    assert!(gone, "{error}");
}

#[test]
fn an_id_that_became_another_image_is_refused() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    answer_open(&server, opened(&tree));
    let other = format!("@{}", ImageId([7; 32]));
    assert!(matches!(refused(&server, &other, plain()), ClientError::StaleImage { .. }));
}

#[test]
fn endless_metadata_is_refused_before_it_is_fetched() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let Reply::Opened { image, id, .. } = opened(&tree) else { unreachable!() };
    for (file_bytes, metadata_offset, metadata_bytes) in
        [(u64::MAX, 4096, u64::MAX - 4096), (1 << 40, 1 << 30, Limits::default().metadata_bytes_max + 1)]
    {
        answer_open(&server, Reply::Opened { image, id, file_bytes, metadata_offset, metadata_bytes });
        assert!(matches!(refused(&server, "app", plain()), ClientError::MetadataTooLarge { .. }));
    }
    answer_open(&server, Reply::Opened { image, id, file_bytes: 8192, metadata_offset: 8000, metadata_bytes: 500 });
    assert!(matches!(refused(&server, "app", plain()), ClientError::Contradiction { .. }));
    assert!(server.requests(0, |ask| matches!(ask, Request::MetaRead { .. })).is_empty());
}

#[test]
fn every_flipped_byte_of_the_metadata_is_noticed() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let region = tree.metadata.metadata_region();
    let spots = [0, 9, 600, 4095, region.start, (region.start + region.end) / 2, region.end - 1];
    for spot in spots {
        let bytes = tree.bytes.clone();
        server.policy(move |_, machine, event| {
            let ServerEvent::Request { request, ask: Request::MetaRead { image: HANDLE, offset, bytes: count } } =
                event
            else {
                return false;
            };
            let mut data = bytes[*offset as usize..][..*count as usize].to_vec();
            if let Some(at) = spot.checked_sub(*offset).filter(|at| *at < u64::from(*count)) {
                data[at as usize] ^= 0x10;
            }
            machine.reply(*request, Reply::MetaData { offset: *offset, bytes: Bytes::from(data) }).unwrap();
            true
        });
        let error = refused(&server, "app", plain());
        assert!(matches!(error, ClientError::Image { .. } | ClientError::Contradiction { .. }), "{spot}: {error}");
    }
    // The canary: without the flip the same path opens.
    server.be_honest();
    open(&server, plain());
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("runnel://{}/app", listener.local_addr().unwrap());
    let config = with_open_deadline(50);
    assert!(Session::open(&Target::parse(&url).unwrap(), config).is_err());
}

#[test]
fn a_server_that_greets_and_says_no_more_is_given_up_after_the_time_that_is_said() {
    let server = FakeServer::start(&Arc::new(Tree::plain()));
    server.policy(|_, _, event| matches!(event, ServerEvent::Request { .. }));
    let config = with_open_deadline(50);
    let expected = config.connection.open_deadline;
    let ClientError::Connection(ConnectionError::NoAnswer { waited, .. }) = refused(&server, "app", config) else {
        panic!("another error")
    };
    assert_eq!(waited, expected);
}

#[test]
fn list_and_status_are_passed_on() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let address = connection::Server::parse(server.url("").trim_end_matches('/')).unwrap();
    let time = Duration::from_secs(10);
    assert_eq!(admin::list(&address, &connection::Trust::default(), time).unwrap(), "{\"images\":[]}");
    assert_eq!(admin::status(&address, &connection::Trust::default(), time).unwrap(), "{\"pulls\":0}");
}
