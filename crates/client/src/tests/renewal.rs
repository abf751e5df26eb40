//! Certificates that are renewed and revoked while clients are connected.

use std::path::Path;

use connection::{Clock, Connection, ConnectionError, Dialer, Identity, Target, Trust};
use rcgen::{CertificateParams, SerialNumber};
use wire::ClientEvent;

use super::HANG;
use super::real_server::Rig;
use super::tls::{Authority, Keys, files, open, read_all, start, trusting};
use super::tree::Tree;

fn dialer(rig: &Rig, trust: &Trust) -> Dialer {
    let Ok(Target::Remote(target)) = Target::parse(&format!("runnels://{}/app", rig.address)) else { panic!() };
    Dialer::new(&target.server, trust).unwrap()
}

fn with_identity(authority: &Authority, identity: &Identity) -> Trust {
    Trust { identity: Some(identity.clone()), ..trusting(&authority.file) }
}

/// A connection that the server has greeted.
fn greeted(dialer: &Dialer) -> Result<Connection, ConnectionError> {
    let clock = Clock::start();
    let wire = connection::Config::default().wire(1);
    let mut connection = Connection::connect(dialer, wire, clock, HANG)?;
    // Whether the server takes our certificate is said only after our part of the handshake.
    match connection.event(clock.now().after(HANG))? {
        ClientEvent::Ready(_) => Ok(connection),
        other => panic!("{other:?}"),
    }
}

fn refusal(dialer: &Dialer) -> String {
    greeted(dialer).err().expect("it must be refused").to_string()
}

/// Why the server closes a connection.
fn closed(mut connection: Connection) -> String {
    let until = connection.now().after(HANG);
    loop {
        if let Err(error) = connection.event(until) {
            return error.to_string();
        }
    }
}

fn numbered(serial: u64) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.serial_number = Some(SerialNumber::from(serial))
}

#[test]
fn who_is_revoked_loses_its_connection_and_others_keep_theirs() {
    let (keys, tree) = (Keys::new(), Tree::scattered());
    let ours = keys.authority("ours");
    let [good, bad] = [1, 2].map(|serial| keys.issue(&ours, "device", numbered(serial)));
    let list = keys.file("revoked.pem", &ours.revoked(&[7]));
    let mut tls = files(&keys.issue(&ours, "127.0.0.1", |_| ()), Some(&ours)).unwrap();
    tls.revocations = vec![list.clone()];
    let rig = start(&tree, Some(tls));
    let session = open(&rig, "runnels", &with_identity(&ours, &good)).unwrap();
    let (stays, leaves) = (dialer(&rig, &with_identity(&ours, &good)), dialer(&rig, &with_identity(&ours, &bad)));
    let connection = greeted(&leaves).unwrap();

    // Nobody tells the server.
    std::fs::write(&list, format!("{}{}", ours.revoked(&[7]), ours.revoked(&[7, 2]))).unwrap();
    let reason = closed(connection);
    assert!(reason.contains("your certificate was revoked"), "{reason}");
    assert!(refusal(&leaves).contains("refuses our certificate"));

    // A list of no use changes nothing.
    std::fs::write(&list, "no list\n").unwrap();
    let error = rig.reloader.reload().unwrap_err().to_string();
    assert!(error.contains("revoked.pem: holds no list"), "{error}");
    assert!(refusal(&leaves).contains("refuses our certificate"));
    drop(greeted(&stays).unwrap());
    read_all(&session, &tree);
    assert_eq!(session.counters().transfer.reconnects, 0, "who is not revoked was sent away");
}

#[test]
fn who_has_an_authority_that_is_gone_loses_its_connection() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let [ours, theirs] = ["ours", "theirs"].map(|name| keys.authority(name));
    let authorities = std::fs::read_to_string(&ours.file).unwrap() + &std::fs::read_to_string(&theirs.file).unwrap();
    let both = keys.file("both.pem", &authorities);
    let mut tls = files(&keys.issue(&ours, "127.0.0.1", |_| ()), None).unwrap();
    tls.client_authorities = Some(both.clone());
    let rig = start(&tree, Some(tls));
    let identity = keys.issue(&theirs, "device", |_| ());
    let connection = greeted(&dialer(&rig, &with_identity(&ours, &identity))).unwrap();
    std::fs::copy(&ours.file, &both).unwrap();
    let reason = closed(connection);
    assert!(reason.contains("not trusted any more"), "{reason}");
}

#[test]
fn a_list_of_revoked_clients_without_their_authorities_is_refused() {
    let keys = Keys::new();
    let ours = keys.authority("ours");
    let mut tls = files(&keys.issue(&ours, "127.0.0.1", |_| ()), None).unwrap();
    tls.revocations = vec![keys.file("revoked.pem", &ours.revoked(&[7]))];
    let store = server::StoreAt::Open(std::sync::Arc::new(store::Memory::new()));
    let config = server::Config { tls: Some(tls), ..server::Config::new(store, ([127, 0, 0, 1], 0).into()) };
    let error = server::Server::bind(config).err().unwrap().to_string();
    assert!(error.contains("revoked.pem") && error.contains("--client-ca"), "{error}");
}

#[test]
fn a_device_takes_new_files_up_at_its_next_handshake() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let [ours, theirs] = ["ours", "theirs"].map(|name| keys.authority(name));
    let rig = start(&tree, files(&keys.issue(&ours, "127.0.0.1", |_| ()), Some(&ours)));
    let own = keys.issue(&ours, "device", |_| ());
    let authorities = keys.file("trusted.pem", &std::fs::read_to_string(&ours.file).unwrap());
    let trust = Trust { authorities: Some(authorities.clone()), ..with_identity(&ours, &own) };
    let device = dialer(&rig, &trust);
    drop(greeted(&device).unwrap());

    let put = |from: &Path, to: &Path| std::fs::copy(from, to).map(drop).unwrap();
    let renew = |identity: &Identity| {
        put(&identity.key, &own.key);
        put(&identity.certificate, &own.certificate);
    };
    // Half of a pair, nonsense, and nothing: the old pair is still good.
    put(&keys.issue(&ours, "device", |_| ()).key, &own.key);
    drop(greeted(&device).unwrap());
    std::fs::write(&own.key, "no key\n").unwrap();
    drop(greeted(&device).unwrap());
    std::fs::remove_file(&own.certificate).unwrap();
    drop(greeted(&device).unwrap());

    renew(&keys.issue(&theirs, "device", |_| ()));
    assert!(refusal(&device).contains("refuses our certificate"));
    renew(&keys.issue(&ours, "device", |_| ()));
    drop(greeted(&device).unwrap());
    put(&theirs.file, &authorities);
    assert!(refusal(&device).contains("no authority in"));
}

#[test]
fn a_device_refuses_a_server_that_was_revoked() {
    let (keys, tree) = (Keys::new(), Tree::plain());
    let ours = keys.authority("ours");
    let rig = start(&tree, files(&keys.issue(&ours, "127.0.0.1", numbered(2)), None));
    let list = keys.file("revoked.pem", &ours.revoked(&[1]));
    let device = dialer(&rig, &Trust { revocations: vec![list.clone()], ..trusting(&ours.file) });
    drop(greeted(&device).unwrap());
    std::fs::write(&list, ours.revoked(&[1, 2])).unwrap();
    assert!(refusal(&device).contains("its certificate was revoked"));
    std::fs::write(&list, "no list\n").unwrap();
    assert!(refusal(&device).contains("its certificate was revoked"));
}
