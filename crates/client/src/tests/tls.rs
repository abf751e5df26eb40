//! The client against the real server over TLS: what is trusted works, what is not says why.

mod access;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
    RevokedCertParams, SerialNumber, date_time_ymd,
};
use server::TlsFiles;
use store::{Memory, Store};
use tempfile::TempDir;

use super::real_server::Rig;
use super::tree::Tree;
use super::{HANG, plain, read};
use crate::upload::upload;
use crate::{ClientError, Config, Session, admin};
use connection::{ConnectionError, Identity, Target, Trust};

/// An authority, with its certificate in a file.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub file: PathBuf,
}

impl Authority {
    /// Its list of revoked certificates, in PEM form.
    pub fn revoked(&self, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2026, 1, 2),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// A folder of keys.
pub(super) struct Keys {
    folder: TempDir,
}

impl Keys {
    pub fn new() -> Keys {
        Keys { folder: tempfile::tempdir().unwrap() }
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn authority(&self, name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let file = self.file(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        Authority { issuer: Issuer::new(params, key), file }
    }

    pub fn issue(&self, authority: &Authority, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        let number = std::fs::read_dir(self.folder.path()).unwrap().count();
        Identity {
            certificate: self.file(&format!("{number}-cert.pem"), &certificate.pem()),
            key: self.file(&format!("{number}-key.pem"), &key.serialize_pem()),
        }
    }
}

pub(super) fn files(identity: &Identity, client_authorities: Option<&Authority>) -> Option<TlsFiles> {
    Some(TlsFiles {
        certificate: identity.certificate.clone(),
        key: identity.key.clone(),
        client_authorities: client_authorities.map(|authority| authority.file.clone()),
        push_authorities: None,
        revocations: Vec::new(),
    })
}

/// Uploads an image to `new` on the server.
fn push(rig: &Rig, keys: &Keys, tree: &Tree, trust: &Trust) -> Result<units::ImageId, ClientError> {
    let path = keys.folder.path().join("app.rnl");
    std::fs::write(&path, &tree.bytes).unwrap();
    let Ok(Target::Remote(target)) = Target::parse(&format!("runnels://{}/new", rig.address)) else { panic!() };
    upload(&path, &target, &Config { connection: trusted(trust), ..plain() }, &mut |_| ())
}

pub(super) fn start(tree: &Tree, tls: Option<TlsFiles>) -> Rig {
    let store = Memory::new();
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    Rig::start_with(&store, |config| config.tls = tls)
}

pub(super) fn trusting(authorities: &Path) -> Trust {
    Trust { authorities: Some(authorities.into()), ..Trust::default() }
}

fn trusted(trust: &Trust) -> connection::Config {
    connection::Config { trust: trust.clone(), ..connection::Config::default() }
}

pub(super) fn open(rig: &Rig, scheme: &str, trust: &Trust) -> Result<Arc<Session>, ClientError> {
    let target = Target::parse(&format!("{scheme}://{}/app", rig.address)).unwrap();
    Session::open(&target, Config { connection: trusted(trust), ..plain() })
}

fn refusal(rig: &Rig, scheme: &str, trust: &Trust) -> String {
    open(rig, scheme, trust).err().expect("it must be refused").to_string()
}

pub(super) fn read_all(session: &Session, tree: &Tree) {
    for (inode, contents) in &tree.files {
        let bytes = contents.len() as u32;
        assert!(read(session, 5, *inode, 0, bytes).wait().as_ref() == Ok(contents), "inode {inode:?}");
    }
}

#[test]
fn every_command_works_over_tls() {
    let (keys, tree) = (Keys::new(), Tree::scattered());
    let authority = keys.authority("ours");
    let identity = keys.issue(&authority, "127.0.0.1", |_| ());
    let rig = start(&tree, files(&identity, None));
    let trust = trusting(&authority.file);
    let config = Config { connections: 3, connection: trusted(&trust), ..Config::default() };
    let target = Target::parse(&format!("runnels://{}/app", rig.address)).unwrap();
    read_all(&Session::open(&target, config).unwrap(), &tree);
    let Target::Remote(target) = target else { panic!("remote") };
    assert!(admin::list(&target.server, &trust, HANG).unwrap().contains(&tree.metadata.id().to_string()));
    assert!(admin::status(&target.server, &trust, HANG).unwrap().contains('{'));
    let other = Tree::plain();
    let path = keys.folder.path().join("other.rnl");
    std::fs::write(&path, &other.bytes).unwrap();
    let id = upload(&path, &target, &Config { connection: trusted(&trust), ..plain() }, &mut |_| ()).unwrap();
    assert_eq!(id, other.metadata.id());
    read_all(&open(&rig, "runnels", &trust).unwrap(), &other);
}

#[test]
fn certificates_that_cannot_be_trusted_are_refused_with_the_reason() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let (authority, stranger) = (keys.authority("ours"), keys.authority("theirs"));
    let good = keys.issue(&authority, "127.0.0.1", |_| ());
    let rig = start(&tree, files(&good, None));
    let text = refusal(&rig, "runnels", &trusting(&stranger.file));
    assert!(text.contains("no authority in") && text.contains(stranger.file.to_str().unwrap()), "{text}");
    assert!(text.contains(&rig.address.to_string()), "{text}");
    read_all(&open(&rig, "runnels", &trusting(&authority.file)).unwrap(), &tree);

    let old = keys.issue(&authority, "127.0.0.1", |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
    });
    let text = refusal(&start(&tree, files(&old, None)), "runnels", &trusting(&authority.file));
    assert!(text.contains("expired"), "{text}");
    let early = keys.issue(&authority, "127.0.0.1", |params| params.not_before = date_time_ymd(3000, 1, 1));
    let text = refusal(&start(&tree, files(&early, None)), "runnels", &trusting(&authority.file));
    assert!(text.contains("not valid yet"), "{text}");
    let elsewhere = keys.issue(&authority, "elsewhere.example", |_| ());
    let text = refusal(&start(&tree, files(&elsewhere, None)), "runnels", &trusting(&authority.file));
    assert!(text.contains("another name than 127.0.0.1"), "{text}");
}

#[test]
fn plain_and_encrypted_ends_that_meet_say_what_to_use() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let authority = keys.authority("ours");
    let identity = keys.issue(&authority, "127.0.0.1", |_| ());
    let secure = start(&tree, files(&identity, None));
    let text = refusal(&secure, "runnel", &Trust::default());
    assert!(text.contains("the server speaks TLS: use runnels://"), "{text}");
    let text = refusal(&start(&tree, None), "runnels", &trusting(&authority.file));
    assert!(text.contains("does not speak TLS: use runnel://"), "{text}");
}

#[test]
fn a_server_that_wants_client_certificates_gets_them_or_refuses() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let (authority, stranger) = (keys.authority("ours"), keys.authority("theirs"));
    let rig = start(&tree, files(&keys.issue(&authority, "127.0.0.1", |_| ()), Some(&authority)));
    let nobody = trusting(&authority.file);
    let text = refusal(&rig, "runnels", &nobody);
    assert!(text.contains("--cert FILE"), "{text}");
    let as_whom = |authority| Trust { identity: Some(keys.issue(authority, "device", |_| ())), ..nobody.clone() };
    let text = refusal(&rig, "runnels", &as_whom(&stranger));
    assert!(text.contains("refuses our certificate"), "{text}");
    let known = as_whom(&authority);
    read_all(&open(&rig, "runnels", &known).unwrap(), &tree);

    let text = push(&rig, &keys, &tree, &nobody).unwrap_err().to_string();
    assert!(text.contains("--cert FILE"), "{text}");
}

#[test]
fn only_certificates_of_the_push_authorities_may_push() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let [ours, devices, publishers] = ["ours", "devices", "publishers"].map(|name| keys.authority(name));
    let server = keys.issue(&ours, "127.0.0.1", |_| ());
    let who = |authority: Option<&Authority>| Trust {
        identity: authority.map(|authority| keys.issue(authority, "someone", |_| ())),
        ..trusting(&ours.file)
    };
    let started = |clients: Option<&Authority>, pushers: Option<&Authority>| {
        let mut tls = files(&server, clients).unwrap();
        tls.push_authorities = pushers.map(|authority| authority.file.clone());
        start(&tree, Some(tls))
    };
    let refused = |rig: &Rig, trust: &Trust| match push(rig, &keys, &tree, trust).unwrap_err() {
        ClientError::Connection(ConnectionError::Refused { code: wire::ErrorCode::Forbidden, text, .. }) => text,
        other => panic!("{other}"),
    };

    // Certificates of clients, and no word on who may push: nobody.
    let rig = started(Some(&devices), None);
    read_all(&open(&rig, "runnels", &who(Some(&devices))).unwrap(), &tree);
    assert!(refused(&rig, &who(Some(&devices))).contains("no --push-ca"));

    // Devices read, publishers read and push, others do not even connect.
    let rig = started(Some(&devices), Some(&publishers));
    read_all(&open(&rig, "runnels", &who(Some(&devices))).unwrap(), &tree);
    read_all(&open(&rig, "runnels", &who(Some(&publishers))).unwrap(), &tree);
    assert!(refused(&rig, &who(Some(&devices))).contains("your certificate may not push"));
    assert_eq!(push(&rig, &keys, &tree, &who(Some(&publishers))).unwrap(), tree.metadata.id());
    assert!(refusal(&rig, "runnels", &who(None)).contains("--cert FILE"));

    // Everybody reads, publishers push.
    let rig = started(None, Some(&publishers));
    read_all(&open(&rig, "runnels", &who(None)).unwrap(), &tree);
    assert!(refused(&rig, &who(None)).contains("--cert FILE"));
    assert!(refusal(&rig, "runnels", &who(Some(&devices))).contains("refuses our certificate"));
    assert_eq!(push(&rig, &keys, &tree, &who(Some(&publishers))).unwrap(), tree.metadata.id());
}

/// New files count for new connections; those that are open live on; files of no use change
/// nothing.
#[test]
fn certificates_are_renewed_without_losing_connections() {
    let (keys, tree) = (Keys::new(), Tree::scattered());
    let (old, new) = (keys.authority("old"), keys.authority("new"));
    let identity = keys.issue(&old, "127.0.0.1", |_| ());
    let rig = start(&tree, files(&identity, None));
    let before = open(&rig, "runnels", &trusting(&old.file)).unwrap();

    let renewed = keys.issue(&new, "127.0.0.1", |_| ());
    let put = |from: &Path, to: &Path| std::fs::copy(from, to).map(drop).unwrap();
    put(&renewed.certificate, &identity.certificate);
    let error = rig.reloader.reload().unwrap_err().to_string();
    assert!(error.contains("does not go with"), "{error}");
    drop(open(&rig, "runnels", &trusting(&old.file)).unwrap());

    put(&renewed.key, &identity.key);
    rig.reloader.reload().unwrap();
    read_all(&open(&rig, "runnels", &trusting(&new.file)).unwrap(), &tree);
    assert!(refusal(&rig, "runnels", &trusting(&old.file)).contains("no authority in"));
    assert_eq!(before.counters().transfer.reconnects, 0);
    read_all(&before, &tree);
    assert_eq!(before.counters().transfer.reconnects, 0, "the connection from before was lost");
}

#[test]
fn files_that_are_no_certificates_or_keys_are_named() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let authority = keys.authority("ours");
    let (one, two) = (keys.issue(&authority, "127.0.0.1", |_| ()), keys.issue(&authority, "127.0.0.1", |_| ()));
    let rig = start(&tree, files(&one, None));
    let nonsense = keys.file("nonsense.pem", "what is this\n");
    for authorities in [Path::new("/no/such/ca.pem"), &nonsense, &one.key] {
        let text = refusal(&rig, "runnels", &trusting(authorities));
        assert!(text.contains(authorities.to_str().unwrap()), "{text}");
    }
    let mixed = Identity { certificate: one.certificate.clone(), key: two.key.clone() };
    let text = refusal(&rig, "runnels", &Trust { identity: Some(mixed.clone()), ..trusting(&authority.file) });
    assert!(text.contains(two.key.to_str().unwrap()) && text.contains("does not go with"), "{text}");
    let bind = |tls| {
        let mut config =
            server::Config::new(server::StoreAt::Open(Arc::new(Memory::new())), ([127, 0, 0, 1], 0).into());
        config.tls = tls;
        server::Server::bind(config).err().unwrap().to_string()
    };
    assert!(bind(files(&mixed, None)).contains("does not go with"));
    let absent = Identity { certificate: "/no/such/cert.pem".into(), key: one.key.clone() };
    assert!(bind(files(&absent, None)).contains("/no/such/cert.pem"));
}

#[test]
fn a_full_server_says_so_over_tls_too() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let authority = keys.authority("ours");
    let store = Memory::new();
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    let tls = files(&keys.issue(&authority, "127.0.0.1", |_| ()), None);
    let rig = Rig::start_with(&store, |config| (config.tls, config.connections.max) = (tls, 1));
    let trust = trusting(&authority.file);
    let first = open(&rig, "runnels", &trust).unwrap();
    let text = refusal(&rig, "runnels", &trust);
    assert!(text.contains("connections from this address are open"), "{text}");
    read_all(&first, &tree);
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let keys = Keys::new();
    let authority = keys.authority("ours");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::parse(&format!("runnels://{}/app", listener.local_addr().unwrap())).unwrap();
    let open_deadline = Duration::from_millis(50);
    let config =
        Config { connection: connection::Config { open_deadline, ..trusted(&trusting(&authority.file)) }, ..plain() };
    let error = Session::open(&target, config).err().unwrap();
    // The time is over in the handshake, or just before it.
    assert!(
        matches!(error, ClientError::Connection(ConnectionError::NoAnswer { .. } | ConnectionError::NoGreeting { .. })),
        "{error}"
    );
}
