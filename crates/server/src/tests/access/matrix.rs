//! Every request of a client, made in every role. The outcome is the table of docs/access.md, which
//! `RUNNEL_ACCESS=write cargo test -p runnel-server matrix` brings up to date.

use std::fmt::Write;

use bytes::Bytes;
use units::{BlockId, InodeId, LockKind, PageId, Token};
use wire::format::ClientKind;
use wire::volume::{LeaseKind, LockAsk, VolumeAsk};
use wire::{Bearer, ErrorCode, ImageHandle, ManageAsk, Reply, Request};

use super::super::client::Client;
use super::super::rig::{image, program};
use super::super::volumes::{append, transaction};
use super::Guarded;

/// The page with the table.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/access.md");

/// What stands before and behind the table.
const MARKS: [&str; 2] = ["<!-- matrix -->\n", "<!-- end of matrix -->\n"];

/// Roles by the one right that each has.
const ROLES: [(&str, &str); 7] = [
    ("none", ""),
    ("pull", "pull = [\"app\"]"),
    ("push", "push = [\"app\"]"),
    ("volume:read", "\"volume:read\" = [\"data\"]"),
    ("volume:write", "\"volume:write\" = [\"data\"]"),
    ("stat", "stat = true"),
    ("admin", "admin = true"),
];

/// Frames that ask for nothing that they could be refused: they are about the connection, or about
/// what a request has opened.
const NO_REQUESTS: [ClientKind; 17] = [
    ClientKind::Hello,
    ClientKind::Bearer,
    ClientKind::Ping,
    ClientKind::Cancel,
    ClientKind::Hurry,
    ClientKind::Touch,
    ClientKind::TokenEnd,
    ClientKind::Credit,
    ClientKind::StopPush,
    ClientKind::Hint,
    ClientKind::DeviceSpeed,
    ClientKind::PutMeta,
    ClientKind::PutBlock,
    ClientKind::PutCommit,
    ClientKind::FileClose,
    ClientKind::FileShare,
    ClientKind::RateLimit,
];

/// A request of the table: on what it is.
type Row = (&'static str, Request);

/// Requests that need nothing open.
fn first_rows() -> Vec<Row> {
    // Refused for its lengths by a server that would take it: an upload is answered at its end.
    let put = |name: &str| Request::PutOpen {
        name: name.to_owned(),
        file_bytes: 8193,
        metadata_offset: 4096,
        metadata_bytes: 4096,
    };
    let read = |name: &str| Request::TrustRead { name: name.to_owned(), known: Bytes::from_static(&[1]) };
    // Refused for its form by a server that would take it.
    let write = |name: &str| Request::TrustWrite { name: name.to_owned(), files: Bytes::from_static(&[0]) };
    let manage = |name: &str, ask| Request::Manage { name: name.to_owned(), ask };
    vec![
        ("`app`", Request::Open { name: "app".to_owned() }),
        ("another image", Request::Open { name: "other".to_owned() }),
        ("`app`, by its id", Request::Open { name: id_of_app() }),
        ("", Request::List),
        ("", Request::Status),
        ("`app`", put("app")),
        ("another image", put("other")),
        ("`app`", read("app:latest")),
        ("another image", read("other:latest")),
        ("no name", read("")),
        ("`app`", write("app:latest")),
        ("another image", write("other:latest")),
        ("no name", write("")),
        ("`app`", manage("app:gone", ManageAsk::Remove)),
        ("another image", manage("other:gone", ManageAsk::Remove)),
        ("`app`, of itself", manage("app:gone", ManageAsk::Tag { of: "app".to_owned() })),
        ("`app`, of another image", manage("app:gone", ManageAsk::Tag { of: "other".to_owned() })),
        ("the rules", manage("", ManageAsk::Rules)),
        ("a rule", manage("app", ManageAsk::Retain { keep: 1, seconds: 0 })),
        ("all images", manage("", ManageAsk::Collect { grace: 0, dry_run: false })),
        ("`data`", Request::VolumeOpen { name: "data".to_owned() }),
        ("another volume", Request::VolumeOpen { name: "other".to_owned() }),
    ]
}

fn id_of_app() -> String {
    let metadata = image::Metadata::open(&image(1), &image::Limits::default()).unwrap();
    format!("@{}", metadata.id())
}

/// Requests about an image that is open.
fn image_rows(image: ImageHandle, page: PageId) -> Vec<Row> {
    vec![
        ("`app`", Request::MetaRead { image, offset: 0, bytes: 16 }),
        (
            "`app`",
            Request::PullBlock { image, token: Token(1), page, block: BlockId(0), force: true, speculative: false },
        ),
        ("`app`", Request::PullPages { image, token: Token(1), pages: vec![page], force: true }),
    ]
}

/// Requests about a volume that is open.
fn volume_rows(volume: ImageHandle) -> Vec<Row> {
    let path = || b"f".to_vec();
    let lock = LockAsk {
        file: 1,
        owner: 1,
        is_flock: false,
        test: false,
        start: 0,
        end: 1,
        kind: Some(LockKind::Shared),
        pid: 1,
    };
    let asks = vec![
        VolumeAsk::FileOpen { token: Token(1), path: path() },
        VolumeAsk::FileStat { path: path() },
        VolumeAsk::FolderList { path: Vec::new(), after: Vec::new(), limit: 10 },
        VolumeAsk::LinkRead { path: path() },
        VolumeAsk::PullBlocks { token: Token(1), blocks: vec![PageId::new(InodeId(2), 0)], force: true },
        VolumeAsk::XattrsRead { path: path() },
        VolumeAsk::SpaceStat,
        VolumeAsk::Enrol,
        VolumeAsk::Prove { number: 1, proof: [0; 32], previous: 0 },
        transaction(1, vec![append("f", b"6")]),
        VolumeAsk::Lease { file: 1, kind: Some(LeaseKind::Shared), duration_ms: 1000 },
        VolumeAsk::Lock(lock),
    ];
    asks.into_iter().map(|ask| ("`data`", Request::Volume { volume, ask })).collect()
}

/// Whether the server lets the client ask this. That it then fails, for instance because the client
/// has not proven who it is, is another matter.
fn is_allowed(client: &mut Client, ask: &Request) -> bool {
    let text = match client.ask(ask.clone()) {
        Reply::Error { code: ErrorCode::Forbidden, text } => {
            assert!(text.contains("who has no right"), "{text}");
            return false;
        }
        Reply::Error { code: ErrorCode::BadRequest, text } => text,
        _ => return true,
    };
    !text.contains("was not given on this connection")
}

/// All rows for one role. What it could not open it asks for by a handle that it guesses.
fn outcomes(server: &Guarded, token: &Bearer) -> Vec<(Row, bool)> {
    let mut found = Vec::new();
    let connect = || {
        let mut client = server.with(token);
        client.until(|client| client.wire.hello().is_some());
        client
    };
    for row in first_rows() {
        // Of its own, so that nothing is open.
        let allowed = is_allowed(&mut connect(), &row.1);
        found.push((row, allowed));
    }
    let mut client = connect();
    let handle = match client.ask(Request::Open { name: "app".to_owned() }) {
        Reply::Opened { .. } => client.open("app"),
        _ => ImageHandle(0),
    };
    for row in image_rows(handle, program(&image(1), 1, 1)[0]) {
        let allowed = is_allowed(&mut client, &row.1);
        found.push((row, allowed));
    }
    let mut other = connect();
    let volume = match other.ask(Request::VolumeOpen { name: "data".to_owned() }) {
        Reply::VolumeOpened { volume, .. } => volume,
        _ => ImageHandle(0),
    };
    for row in volume_rows(volume) {
        let allowed = is_allowed(&mut other, &row.1);
        found.push((row, allowed));
    }
    found
}

fn table(roles: &[Vec<(Row, bool)>]) -> String {
    let mut text = "| request | on |".to_owned();
    ROLES.iter().for_each(|(name, _)| write!(text, " {name} |").unwrap());
    text += "\n|---|---|";
    text += &":---:|".repeat(ROLES.len());
    for (index, ((on, ask), _)) in roles[0].iter().enumerate() {
        write!(text, "\n| {} | {on} |", ask.name()).unwrap();
        for role in roles {
            text += if role[index].1 { " yes |" } else { " |" };
        }
    }
    text + "\n"
}

#[test]
fn matrix_every_request_in_every_role_is_as_the_page_says() {
    let rules: String =
        ROLES.iter().enumerate().map(|(index, (_, right))| format!("[principal.role{index}]\n{right}\n")).collect();
    let server = Guarded::start(&rules);
    let tokens: Vec<Bearer> = (0..ROLES.len()).map(|index| server.token(&format!("role{index}"))).collect();
    let roles: Vec<_> = tokens.iter().map(|token| outcomes(&server, token)).collect();
    for kind in ClientKind::ALL.iter().filter(|kind| !NO_REQUESTS.contains(kind)) {
        assert!(roles[0].iter().any(|((_, ask), _)| ask.name() == kind.name()), "{kind:?} is in no row");
    }
    assert!(roles[0].iter().all(|(_, allowed)| !allowed), "who has no right may do nothing");
    assert!(roles[ROLES.len() - 1].iter().all(|(_, allowed)| *allowed), "an admin may do everything");
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).expect("the page has a place for the table");
    let (found, after) = rest.split_once(MARKS[1]).expect("the table has an end");
    let expected = table(&roles);
    if std::env::var_os("RUNNEL_ACCESS").is_some_and(|value| value == "write") {
        std::fs::write(PAGE, [before, MARKS[0], &expected, MARKS[1], after].concat()).unwrap();
        return;
    }
    assert!(found == expected, "docs/access.md has another table; RUNNEL_ACCESS=write writes this one:\n{expected}");
}
