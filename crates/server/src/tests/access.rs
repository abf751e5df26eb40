//! Access rules: what each role may ask for, who is told what, and what a change of the rules does
//! to connections that are open.

mod limits;
mod matrix;
mod teaching;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::{Memory, Store};
use tempfile::TempDir;
use units::ImageId;
use wire::format::{FEATURE_TOKENS, FEATURES_USUAL};
use wire::{Bearer, ClientConfig, ErrorCode, Notice, Reply, Request, WireError};

use super::client::Client;
use super::rig::{Rig, config, image};
use crate::{AuditConfig, Server, ServerError, StoreAt, TokenFile, VolumeConfig};

/// A server with access rules, the images `app` and `other`, and the volume `data`.
pub struct Guarded {
    pub rig: Rig,
    pub folder: TempDir,
    pub store: Memory,
}

impl Guarded {
    pub fn start(rules: &str) -> Guarded {
        Guarded::with_learning(rules, false)
    }

    fn with_learning(rules: &str, learns: bool) -> Guarded {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("access.toml"), rules).unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("f"), b"12345").unwrap();
        let store = Memory::new();
        store.put_atomic("app.rnl", &image(1)).unwrap();
        store.put_atomic("other.rnl", &image(2)).unwrap();
        let mut config = config(StoreAt::Open(Arc::new(store.clone())));
        config.access.rules = Some(folder.path().join("access.toml"));
        config.access.audit = Some(AuditConfig { file: folder.path().join("audit.jsonl"), bytes_max: 1 << 20 });
        config.learning.enabled = learns;
        config.volumes = vec![VolumeConfig { writable: true, ..VolumeConfig::new("data", &data) }];
        Guarded { rig: Rig::start(config), folder, store }
    }

    fn rules(&self) -> PathBuf {
        self.folder.path().join("access.toml")
    }

    /// Replaces the rules, as an editor does.
    fn change(&self, rules: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, rules).unwrap();
        std::fs::rename(new, self.rules()).unwrap();
    }

    /// A new token of a principal.
    pub fn token(&self, principal: &str) -> Bearer {
        let token = TokenFile::open(&self.rules()).unwrap().create(principal, 0, None).unwrap().token;
        self.rig.reloader.reload().unwrap();
        token
    }

    fn anonymous(&self) -> Client {
        Client::connect(self.rig.address, 1)
    }

    /// A client that shows a token.
    pub fn with(&self, token: &Bearer) -> Client {
        self.device_with(token, 1)
    }

    /// The same on a device of this number.
    fn device_with(&self, token: &Bearer, device: u128) -> Client {
        let features = FEATURES_USUAL | FEATURE_TOKENS;
        let config = ClientConfig { device, features, ..ClientConfig::default() };
        let mut client = Client::with(self.rig.address, config);
        client.wire.notify(Notice::Bearer(token.clone())).unwrap();
        client
    }
}

fn open(name: &str) -> Request {
    Request::Open { name: name.to_owned() }
}

/// Why the server closed the connection; it had no right to go on.
fn closed(client: &mut Client) -> String {
    client.until(|_| false);
    match client.closed.take() {
        Some(WireError::Peer { code: ErrorCode::Forbidden, text }) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_says_who_which_right_and_what_next() {
    let server = Guarded::start("[principal.ci]\npull = [\"app\"]\n");
    let text = server.anonymous().refused(open("app"), ErrorCode::Forbidden);
    assert_eq!(
        text,
        "the server takes you for anonymous (no token, no certificate), who has no right `pull` on app:latest; give \
         --token-file, or --cert and --key"
    );
    let token = server.token("ci");
    let mut ci = server.with(&token);
    assert!(matches!(ci.ask(open("app")), Reply::Opened { .. }));
    let text = ci.refused(open("other:v2"), ErrorCode::Forbidden);
    assert!(text.starts_with("the server takes you for ci (token "), "{text}");
    assert!(text.contains("no right `pull` on other:v2; have it added to [principal.ci] in the server's"), "{text}");
    // Whether there is such a volume is nobody's business who may not read it.
    let text = ci.refused(Request::VolumeOpen { name: "nothing".to_owned() }, ErrorCode::Forbidden);
    assert!(text.contains("`volume:read` on nothing"), "{text}");
    let long = format!("{}:v1", "x".repeat(120));
    let text = ci.refused(open(&long), ErrorCode::Forbidden);
    assert!(text.contains("[principal.ci]"), "a long name leaves room for the next step: {text}");
}

#[test]
fn a_list_has_what_its_reader_may_have() {
    let server = Guarded::start("[principal.ci]\npull = [\"app\"]\n[principal.all]\nadmin = true\n[principal.none]\n");
    let [ci, all, none] = ["ci", "all", "none"].map(|name| server.token(name));
    let listed = |token: &Bearer| {
        let images = server.with(token).listing().images;
        images.into_iter().map(|image| image.name).collect::<Vec<_>>()
    };
    assert_eq!(listed(&ci), ["app"]);
    assert_eq!(listed(&all), ["app", "other"]);
    server.with(&none).refused(Request::List, ErrorCode::Forbidden);
}

#[test]
fn an_id_is_for_those_who_may_have_a_name_of_it() {
    let server = Guarded::start("[principal.ci]\npull = [\"app:v1\"]\n[principal.all]\nadmin = true\n");
    let (ci, all) = (server.token("ci"), server.token("all"));
    let mut all = server.with(&all);
    let (reply, _) = all.upload("app:v1", &image(3));
    let Reply::PutDone { id } = reply else { panic!("{reply:?}") };
    let (_, other) =
        all.listing().images.into_iter().fold((id, String::new()), |found, image| match image.name.as_str() {
            "other" => (found.0, image.id),
            _ => found,
        });
    // By its name in the store, before anybody opened it.
    let by_id = |id: ImageId| open(&format!("@{id}"));
    let mut client = server.with(&ci);
    assert!(matches!(client.ask(by_id(id)), Reply::Opened { .. }));
    client.refused(open(&format!("@{other}")), ErrorCode::Forbidden);
    // Opened by its name, it stays open to mounts that connect again when the name has moved.
    assert!(matches!(client.ask(open("app:v1")), Reply::Opened { .. }));
    let (reply, _) = all.upload("app:v1", &image(4));
    let Reply::PutDone { id: second } = reply else { panic!("{reply:?}") };
    for id in [id, second] {
        assert!(matches!(server.with(&ci).ask(by_id(id)), Reply::Opened { .. }));
    }
}

#[test]
fn a_token_that_nobody_knows_ends_the_connection() {
    let server = Guarded::start("[principal.anonymous]\nadmin = true\n[principal.ci]\n");
    let text = closed(&mut server.with(&Bearer::received("hello".to_owned())));
    assert!(text.contains("does not know your token") && text.contains("runnel token create"), "{text}");
    assert!(matches!(server.anonymous().ask(open("app")), Reply::Opened { .. }), "without one there is no question");
}

#[test]
fn a_server_without_rules_needs_no_token() {
    let (rig, _) = Rig::with_image(&image(1), |_| {});
    let features = FEATURES_USUAL | FEATURE_TOKENS;
    let mut client = Client::with(rig.address, ClientConfig { features, ..ClientConfig::default() });
    client.wire.notify(Notice::Bearer(Bearer::received("anything".to_owned()))).unwrap();
    assert!(matches!(client.ask(open("app")), Reply::Opened { .. }));
}

#[test]
fn a_revoked_token_ends_connections_that_are_open_and_idle() {
    let server = Guarded::start("[principal.ci]\npull = [\"*\"]\n");
    let (first, second) = (server.token("ci"), server.token("ci"));
    let (mut gone, mut stays) = (server.with(&first), server.with(&second));
    for client in [&mut gone, &mut stays] {
        assert!(matches!(client.ask(open("app")), Reply::Opened { .. }));
    }
    let mut file = TokenFile::open(&server.rules()).unwrap();
    let revoked = file.revoke(|info| blake3::hash(first.reveal().as_bytes()).to_hex().starts_with(&info.id)).unwrap();
    assert_eq!(revoked.len(), 1);
    // Nobody tells the server.
    let text = closed(&mut gone);
    assert!(text.contains("revoked"), "{text}");
    assert!(matches!(stays.ask(open("other")), Reply::Opened { .. }));
}

#[test]
fn a_change_of_the_rules_counts_for_open_connections_and_closes_those_that_lose_something() {
    let before = "[principal.ci]\npull = [\"app\", \"other\"]\n[principal.field]\npull = [\"other\"]\n";
    let server = Guarded::start(before);
    let (ci, field) = (server.token("ci"), server.token("field"));
    let (mut ci, mut field) = (server.with(&ci), server.with(&field));
    assert!(matches!(ci.ask(open("app")), Reply::Opened { .. }));
    assert!(matches!(field.ask(open("other")), Reply::Opened { .. }));
    server.change("[principal.ci]\npull = [\"other\"]\n[principal.field]\npull = [\"other\", \"app\"]\n");
    let text = closed(&mut ci);
    assert!(text.contains("was taken from you") && text.contains("`pull` on app:latest"), "{text}");
    assert!(matches!(field.ask(open("app")), Reply::Opened { .. }), "what is new is there at once");
    // A file that is wrong changes nothing.
    server.change("[principal.field\n");
    let error = server.rig.reloader.reload().unwrap_err();
    assert!(matches!(&error, ServerError::Access(_)) && error.to_string().contains("access.toml:1: "), "{error}");
    assert!(matches!(field.ask(open("app")), Reply::Opened { .. }));
    server.change("");
    let text = closed(&mut field);
    assert!(text.contains("not in the server's access file any more"), "{text}");
}

#[test]
fn an_upload_whose_right_is_taken_away_is_not_published() {
    let server = Guarded::start("[principal.ci]\npush = [\"new\"]\n");
    let token = server.token("ci");
    let mut ci = server.with(&token);
    let bytes = image(3);
    let request = ci.put_open("new", &bytes);
    assert!(!ci.has_reply(request));
    server.change("[principal.ci]\npush = [\"newer\"]\n");
    server.rig.reloader.reload().unwrap();
    let needed = ci.needed();
    ci.send_blocks(request, &bytes, &needed);
    ci.put_commit(request);
    let text = closed(&mut ci);
    assert!(text.contains("`push` on new:latest"), "{text}");
    assert!(server.store.get("tags/new/latest", 100).is_err());
}

#[test]
fn a_writer_of_a_volume_that_becomes_a_reader_connects_again() {
    let server = Guarded::start("[principal.ci]\n\"volume:write\" = [\"data\"]\n");
    let token = server.token("ci");
    let opened = |client: &mut Client| match client.ask(Request::VolumeOpen { name: "data".to_owned() }) {
        Reply::VolumeOpened { writable, .. } => writable,
        other => panic!("{other:?}"),
    };
    let connect = || {
        let mut client = server.with(&token);
        client.until(|client| client.wire.hello().is_some());
        client
    };
    let mut client = connect();
    assert!(opened(&mut client));
    server.change("[principal.ci]\n\"volume:read\" = [\"data\"]\n");
    assert!(closed(&mut client).contains("`volume:write` on data"));
    assert!(!opened(&mut connect()));
}

#[test]
fn what_is_done_and_refused_is_in_the_audit_log() {
    let server = Guarded::start("[principal.ci]\npush = [\"new\"]\n\"volume:write\" = [\"data\"]\n");
    let token = server.token("ci");
    let mut ci = server.with(&token);
    let (reply, _) = ci.upload("new", &image(3));
    let Reply::PutDone { id: pushed } = reply else { panic!("{reply:?}") };
    assert!(matches!(ci.ask(Request::VolumeOpen { name: "data".to_owned() }), Reply::VolumeOpened { .. }));
    ci.refused(open("app"), ErrorCode::Forbidden);
    ci.refused(open(&format!("@{}", ImageId([7; 32]))), ErrorCode::Forbidden);
    TokenFile::open(&server.rules()).unwrap().revoke(|_| true).unwrap();
    closed(&mut ci);
    let Guarded { rig, folder, .. } = server;
    rig.stop();
    let text = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(&str, &str)> =
        lines.iter().map(|line| (line["action"].as_str().unwrap(), line["principal"].as_str().unwrap())).collect();
    let actions = ["token-added", "push", "volume-write", "refused", "refused", "token-revoked", "closed"];
    assert_eq!(told, actions.map(|action| (action, "ci")), "{text}");
    assert_eq!((&lines[1]["name"], &lines[1]["image"]), (&"new:latest".into(), &pushed.to_string().into()));
    assert_eq!((&lines[1]["outcome"], &lines[2]["name"]), (&"done".into(), &"data".into()));
    assert!(lines[3]["outcome"].as_str().unwrap().contains("no right `pull` on app:latest"));
    assert!(lines[4]["name"].as_str().unwrap().starts_with("@0707"));
    assert!(lines[1]["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{text}");
    assert!(!text.contains(token.reveal()), "no secret is in the log");
}

#[test]
fn rules_that_are_wrong_are_refused_at_the_start() {
    let folder = TempDir::new().unwrap();
    let start = |path: &Path| {
        let mut config = config(StoreAt::Open(Arc::new(Memory::new())));
        config.access.rules = Some(path.to_owned());
        Server::bind(config).err().expect("it is wrong").to_string()
    };
    let path = folder.path().join("access.toml");
    assert!(start(&path).ends_with("access.toml: there is no such file"));
    std::fs::write(&path, "[principal.a]\n\npull = [\"a b\"]\n").unwrap();
    assert!(start(&path).contains("access.toml:3: \"a b\" is no pattern of images"), "{}", start(&path));
    std::fs::write(&path, "").unwrap();
    std::fs::write(folder.path().join("tokens.toml"), "[[token]]\nhash = 1\n").unwrap();
    assert!(start(&path).contains("tokens.toml:2: "), "{}", start(&path));
}
