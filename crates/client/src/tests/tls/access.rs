//! Access rules of a server: it knows its clients by certificate and token.

use rcgen::SanType;
use server::TokenFile;
use wire::{Bearer, ErrorCode};

use super::*;

const RULES: &str = r#"
[principal.builder]
certificate = ["builder.example.com"]
pull = ["*"]
push = ["new"]
[principal.robot]
certificate = ["spiffe://example.com/robot"]
pull = ["app"]
[principal.field]
pull = ["app"]
"#;

fn refused<T>(result: Result<T, ClientError>) -> String {
    match result.err().expect("it must be refused") {
        ClientError::Connection(ConnectionError::Refused { code: ErrorCode::Forbidden, text, .. }) => text,
        other => panic!("{other}"),
    }
}

#[test]
fn clients_are_known_by_certificate_or_token() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let [ours, people] = ["ours", "people"].map(|name| keys.authority(name));
    let tls = files(&keys.issue(&ours, "127.0.0.1", |_| ()), Some(&people));
    let rules = keys.file("access.toml", RULES);
    let issued = TokenFile::open(&rules).unwrap().create("field", 0, None).unwrap();
    let store = Memory::new();
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    let rig = Rig::start_with(&store, |config| {
        (config.tls, config.access.rules) = (tls, Some(rules));
    });
    let nobody = trusting(&ours.file);
    let by_name = |name: &str| Trust { identity: Some(keys.issue(&people, name, |_| ())), ..nobody.clone() };
    let uri = |params: &mut CertificateParams| {
        params.subject_alt_names.push(SanType::URI("spiffe://example.com/robot".try_into().unwrap()));
    };
    let robot = Trust { identity: Some(keys.issue(&people, "unknown", uri)), ..nobody.clone() };
    let field = Trust { bearer: Some(issued.token), ..nobody.clone() };
    for trust in [&by_name("builder.example.com"), &robot, &field] {
        // Over several connections, the later of which ask by id.
        let config = Config { connections: 3, connection: trusted(trust), ..Config::default() };
        let target = Target::parse(&format!("runnels://{}/app", rig.address)).unwrap();
        read_all(&Session::open(&target, config).unwrap(), &tree);
    }
    push(&rig, &keys, &tree, &by_name("builder.example.com")).unwrap();
    let text = refused(push(&rig, &keys, &tree, &field));
    assert!(text.contains("field (token ") && text.contains("`push` on new:latest"), "{text}");
    let text = refused(open(&rig, "runnels", &nobody));
    assert!(text.contains("anonymous (no token, no certificate)"), "{text}");
    let text = refused(open(&rig, "runnels", &by_name("other.example.com")));
    assert!(text.contains("anonymous (certificate other.example.com, which is of no principal)"), "{text}");
    let wrong = Trust { bearer: Some(Bearer::new([0; 24])), ..nobody };
    let text = refused(open(&rig, "runnels", &wrong));
    assert!(text.contains("does not know your token"), "{text}");
}

#[test]
fn a_token_does_not_leave_the_machine_in_the_clear() {
    let trust = Trust { bearer: Some(Bearer::new([0; 24])), ..Trust::default() };
    // Nothing listens there; nobody asks.
    let target = Target::parse("runnel://192.0.2.1/app").unwrap();
    let error = Session::open(&target, Config { connection: trusted(&trust), ..plain() }).err().unwrap();
    assert!(error.to_string().contains("a token would travel in the clear: use runnels://"), "{error}");
    let store = Memory::new();
    let tree = Tree::plain();
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    let rig = Rig::start(&store);
    read_all(&open(&rig, "runnel", &trust).unwrap(), &tree);
}
