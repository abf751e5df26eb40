//! TLS that lives for years: certificates that are made, renewed and revoked by `runnel trust tls`,
//! under clients that read all the time.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use client::{Config, Session};
use connection::{Clock, Connection, ConnectionError, Dialer, Identity, Target, Trust};
use units::{Rng, SplitMix64, Token};
use wire::{Reply, Request};

use crate::support::*;

/// How long one thing may take before it counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Rotations of the ordinary test. With `RUNNEL_ROTATIONS=1200` it takes some ten minutes.
const ROTATIONS: u32 = 10;

/// Of the one file of the image: much more than a session keeps.
const FILE_BYTES: usize = 16 << 20;

/// A folder of certificates, a store with the image `app`, and the server.
struct Secured {
    folder: tempfile::TempDir,
    file: Vec<u8>,
    server: Option<Server>,
}

impl Secured {
    fn start(devices: &[&str]) -> Secured {
        let folder = tempfile::tempdir().expect("a folder");
        let mut secured = Secured { folder, file: vec![0; FILE_BYTES], server: None };
        let mut rng = SplitMix64(5);
        secured.file.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_le_bytes()));
        std::fs::create_dir_all(secured.at("tree")).expect("a folder");
        std::fs::create_dir_all(secured.at("store")).expect("a folder");
        std::fs::write(secured.at("tree/file"), &secured.file).expect("written");
        let image = secured.at("store/app.rnl");
        ok(&["pack".as_ref(), secured.at("tree").as_os_str(), "-o".as_ref(), image.as_os_str()]);
        let devices: Vec<&str> = devices.iter().flat_map(|device| ["--device", device]).collect();
        let told = secured.trust(&[&["--server", "127.0.0.1,localhost"], &*devices].concat());
        // What it prints works.
        let line = told.lines().find(|line| line.starts_with("runnel serve")).expect("the server's command");
        let options = line.split_once("--read-only").expect("its options").1;
        let options: Vec<&str> = ["--read-only"].into_iter().chain(options.split_whitespace()).collect();
        secured.server = Some(Server::start_at(&secured.at("store"), "127.0.0.1:0", &options));
        secured
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `runnel trust tls`.
    fn trust(&self, arguments: &[&str]) -> String {
        ok(&words(&self.at("keys"), arguments))
    }

    fn target(&self) -> String {
        format!("runnels://{}/app", self.server.as_ref().expect("it runs").address)
    }

    fn trust_of(&self, device: &str) -> Trust {
        let at = |name: &str| self.at("keys").join(name);
        let identity = Identity { certificate: at(&format!("{device}.pem")), key: at(&format!("{device}.key")) };
        Trust { authorities: Some(at("ca.pem")), identity: Some(identity), ..Trust::default() }
    }

    fn dialer(&self, trust: &Trust) -> Dialer {
        let Ok(Target::Remote(target)) = Target::parse(&self.target()) else { panic!("an image") };
        Dialer::new(&target.server, trust).expect("certificates")
    }
}

/// The command `runnel trust tls`.
fn words<'a>(keys: &'a Path, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["trust", "tls", keys.to_str().expect("text")], arguments].concat()
}

/// Connects.
fn connect(dialer: &Dialer) -> Result<Connection, ConnectionError> {
    Connection::connect(dialer, connection::Config::default().wire(1), Clock::start(), TIMEOUT)
}

/// Has a question answered.
fn ask(connection: &mut Connection) -> Result<(), ConnectionError> {
    let until = connection.now().after(TIMEOUT);
    let request = connection.machine.request_until(connection.now(), Request::List, until);
    // It takes no more once it is closed, and says why by its next event.
    let Ok(request) = request else { return Err(connection.event(until).expect_err("it is closed")) };
    connection.answer(request, until).map(|reply| assert!(matches!(reply, Reply::Listing { .. })))
}

/// Clients that ask all the time. Each says after every answer how it went.
struct Load {
    stop: AtomicBool,
    answers: Vec<Receiver<Result<(), String>>>,
}

impl Load {
    /// Waits until each client has had an answer to a question that it asks from now on. How many
    /// answers there were since the last time.
    fn go_on(&self) -> u64 {
        let mut count = 0;
        for answers in &self.answers {
            let mut take = |outcome: Result<(), String>| outcome.map(|()| count += 1).expect("it may read");
            answers.try_iter().for_each(&mut take);
            // The first was perhaps under way before.
            for _ in 0..2 {
                take(answers.recv_timeout(TIMEOUT).expect("it goes on"));
            }
        }
        count
    }
}

/// Reads at random places over one session, whose connections must never be lost.
fn read_on(session: &Session, file: &[u8], stop: &AtomicBool, told: &Sender<Result<(), String>>) {
    let inode = session.metadata().resolve_following(b"/file").expect("it is there");
    let mut rng = SplitMix64(7);
    while !stop.load(Ordering::Relaxed) {
        let offset = rng.below((FILE_BYTES >> 12) as u64) << 12;
        let (sender, answer) = mpsc::channel();
        let done = Box::new(move |read: Result<&[u8], client::ReadError>| {
            let _ = sender.send(read.map(<[u8]>::to_vec));
        });
        session.read(Token(1), inode, offset, 4096, done);
        let read = answer.recv_timeout(TIMEOUT).expect("an answer");
        let read = read.map_err(|error| error.to_string());
        let _ = told.send(read.map(|bytes| assert!(bytes == file[offset as usize..][..4096])));
    }
    assert_eq!(session.counters().transfer.reconnects, 0, "the connection was lost");
}

/// Connects for each question.
fn return_on(dialer: &Dialer, stop: &AtomicBool, told: &Sender<Result<(), String>>) {
    while !stop.load(Ordering::Relaxed) {
        let asked = connect(dialer).and_then(|mut connection| ask(&mut connection));
        let _ = told.send(asked.map_err(|error| error.to_string()));
    }
}

#[test]
fn who_may_read_notices_nothing_while_certificates_are_rotated_and_revoked() {
    let rotations = std::env::var("RUNNEL_ROTATIONS").map_or(ROTATIONS, |count| count.parse().expect("a number"));
    let secured = Secured::start(&["steady", "returning", "victim-0"]);
    let target = Target::parse(&secured.target()).expect("an image");
    let own = connection::Config { trust: secured.trust_of("steady"), ..connection::Config::default() };
    let session = Session::open(&target, Config { connection: own, ..Config::default() }).expect("it may read");
    let returning = secured.dialer(&secured.trust_of("returning"));
    let (readers, answers): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel()).unzip();
    let load = Load { stop: AtomicBool::new(false), answers };
    let (mut count, mut longest) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        // However this ends, the readers end.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&load.stop);
        scope.spawn(|| read_on(&session, &secured.file, &load.stop, &readers[0]));
        scope.spawn(|| return_on(&returning, &load.stop, &readers[1]));
        for rotation in 0..rotations {
            let (victim, next) = (format!("victim-{rotation}"), format!("victim-{}", rotation + 1));
            let dialer = secured.dialer(&secured.trust_of(&victim));
            let mut connection = connect(&dialer).expect("it may still read");
            ask(&mut connection).expect("it may still read");
            secured.trust(&["--server", "127.0.0.1", "--device", "steady", "--device", "returning", "--device", &next]);
            secured.trust(&["--revoke", &victim]);
            let began = Instant::now();
            let error = loop {
                assert!(began.elapsed() < TIMEOUT, "{victim} is served for ever");
                if let Err(error) = ask(&mut connection) {
                    break error.to_string();
                }
                longest = longest.max(began.elapsed());
            };
            assert!(error.contains("your certificate was revoked"), "{error}");
            let refused = connect(&dialer).and_then(|mut connection| ask(&mut connection));
            assert!(refused.expect_err("it is revoked").to_string().contains("refuses our certificate"));
            count += load.go_on();
        }
    });
    eprintln!("{rotations} rotations, {count} answers; the last answer to a revoked device {longest:?} after that");
}

/// A device that knows which servers are revoked takes the new certificate once the server shows
/// it.
#[test]
fn a_server_that_is_revoked_is_trusted_again_with_its_new_certificate() {
    let secured = Secured::start(&["device"]);
    let trust = Trust { revocations: vec![secured.at("keys/revoked.pem")], ..secured.trust_of("device") };
    let dialer = secured.dialer(&trust);
    connect(&dialer).and_then(|mut connection| ask(&mut connection)).expect("it is good");
    let old = std::fs::read(secured.at("keys/server.pem")).expect("there");
    secured.trust(&["--revoke", "server"]);
    let error = connect(&dialer).err().expect("the server has the old one").to_string();
    assert!(error.contains("its certificate was revoked"), "{error}");
    secured.trust(&["--server", "127.0.0.1"]);
    assert_ne!(std::fs::read(secured.at("keys/server.pem")).expect("there"), old);
    let began = Instant::now();
    while let Err(error) = connect(&dialer) {
        assert!(began.elapsed() < TIMEOUT, "{error}");
    }
}

#[test]
fn fuse_a_mount_connects_again_with_its_new_certificate() {
    if !can_mount("fuse_a_mount_connects_again_with_its_new_certificate") {
        return;
    }
    let secured = Secured::start(&["camera"]);
    let Trust { authorities, identity: Some(identity), .. } = secured.trust_of("camera") else { panic!("a device") };
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (ca, cert, key) = (text(&authorities.expect("ours")), text(&identity.certificate), text(&identity.key));
    let options = ["--ca", &ca, "--cert", &cert, "--key", &key];
    for sandbox in [&[][..], &["--no-sandbox"]] {
        let mount = Mount::start(secured.target(), &[&options, sandbox].concat());
        let reconnects = || mount.status()["session"]["reconnects"].as_u64().expect("a number");
        assert_eq!(reconnects(), 0);
        // The old one first, or it would be revoked with the new one.
        secured.trust(&["--revoke", "camera", "--device", "camera"]);
        let began = Instant::now();
        while reconnects() == 0 {
            assert!(began.elapsed() < TIMEOUT, "it keeps the connection of a certificate that was revoked");
        }
        assert!(std::fs::read(mount.path.join("file")).expect("readable") == secured.file, "{sandbox:?}");
    }
}

#[test]
fn an_authority_is_kept_and_its_keys_are_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    let trust = |arguments: &[&'static str]| words(&keys, arguments);
    fails(&trust(&["--device", "camera"]), 2, "hint: name the server");
    assert!(!keys.exists());
    let told = ok(&trust(&["--server", "::1,server.example", "--device", "camera", "--days", "30"]));
    assert!(told.contains("runnel mount runnels://[::1]/IMAGE") && told.contains("--cert camera.pem"), "{told}");
    let read = |name: &str| std::fs::read(keys.join(name)).expect(name);
    let (authority, first) = (read("ca.pem"), read("camera.pem"));
    let told = ok(&trust(&["--device", "other-1", "--device", "camera"]));
    assert!(told.contains("runnel mount runnels://[::1]/IMAGE") && !told.contains("runnel serve"), "{told}");
    assert!(read("ca.pem") == authority && read("camera.pem") != first);
    for name in ["ca.key", "server.key", "camera.key", "other-1.key"] {
        let mode = keys.join(name).metadata().expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let revoked = read("revoked.pem");
    fails(&trust(&["--revoke", "nobody"]), 4, "nobody has no certificate");
    assert!(read("revoked.pem") == revoked);
    for name in ["ca", "../up", "", ".hidden", "a b"] {
        fails(&trust(&["--device", name]), 2, "--device");
    }
    fails(&trust(&["--server", "no name"]), 2, "--server");
    std::fs::write(keys.join("certificates.json"), "{").expect("written");
    fails(&trust(&["--device", "camera"]), 3, "certificates.json");
    std::fs::remove_file(keys.join("certificates.json")).expect("removed");
    fails(&trust(&["--server", "server"]), 2, "ca.key is not of this command");
}
