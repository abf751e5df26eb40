//! The same hostile clients against a server that listens, by sockets and in real time, beside a
//! good client.
//!
//! `RUNNEL_FUZZ_SERVER=ADDRESS` attacks a server that runs already, the program itself for example.
//! It needs the images and the volume that [`contents`] writes into the folder given by
//! `RUNNEL_FUZZ_FOLDER`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use tokio::net::{TcpSocket, TcpStream};

use super::*;
use crate::tests::client::Client;
use crate::tests::rig::Rig;

/// Frames in all, in the test command.
const STEPS: u64 = 200_000;

/// Writes images and the volume below `folder`. Returns the image of programs, and the other.
fn contents(folder: &Path) -> [Vec<u8>; 2] {
    let images = [image(4), noise(40)];
    std::fs::create_dir_all(folder.join("store")).unwrap();
    std::fs::create_dir_all(folder.join("data")).unwrap();
    for (name, bytes) in ["app.rnl", "noise.rnl"].iter().zip(&images) {
        std::fs::write(folder.join("store").join(name), bytes).unwrap();
    }
    for file in 0..3 {
        std::fs::write(folder.join("data").join(format!("f{file}")), vec![file; 200_000]).unwrap();
    }
    images
}

async fn connect(address: SocketAddr, number: u8) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 1, number + 1], 0))).unwrap();
    socket.connect(address).await.ok()
}

/// Attacks until `steps` frames are sent, one round for each answer that the good client gets.
async fn attack(address: SocketAddr, seed: u64, steps: u64, world: &World, mut answered: watch::Receiver<u64>) {
    let mut rng = SplitMix64(seed);
    let mut peers: Vec<Option<Peer<TcpStream>>> = (0..PEERS).map(|_| None).collect();
    let mut sent = 0;
    while sent < steps {
        for (number, place) in peers.iter_mut().enumerate() {
            if place.is_none() {
                *place = connect(address, number as u8).await.map(|stream| Peer::new(stream, &mut rng));
            }
            let Some(peer) = place else { continue };
            for _ in 0..=rng.below(24) {
                peer.act(&mut rng, world);
                sent += 1;
            }
            if !peer.write() || !peer.read() || rng.below(400) == 0 {
                *place = None;
            }
        }
        // No faster than the server answers the good client, or most frames would go to connections
        // that it has closed. An error is the end of the good client, which the caller finds.
        if answered.changed().await.is_err() {
            return;
        }
    }
}

/// Demands pages and checks each until it is told to end. Counts them.
fn good(mut client: Client, program: &[PageId], ended: &AtomicBool, answered: &watch::Sender<u64>) {
    let handle = client.open("app");
    while !ended.load(Ordering::Relaxed) {
        for page in program {
            let ask = client.pull_request(handle, Token(9), *page, true);
            let Reply::Block { block, bytes } = client.ask(ask) else { panic!("no block") };
            client.metadata(handle).decode_block(block, &bytes, &mut Vec::new()).expect("right bytes");
            answered.send_modify(|count| *count += 1);
        }
    }
    let memory = |status: &serde_json::Value, name: &str| status["memory"][name].as_u64();
    client.status_until(|status| {
        let held = ["received_bytes", "pushes_bytes"].map(|name| memory(status, name));
        status["connections"] == 1 && held == [Some(0); 2]
    });
}

#[test]
fn fuzz_hostile_sessions_by_sockets_harm_nobody() {
    let folder = match std::env::var_os("RUNNEL_FUZZ_FOLDER") {
        Some(folder) => (std::path::PathBuf::from(folder), None),
        None => {
            let folder = tempfile::tempdir().unwrap();
            (folder.path().to_owned(), Some(folder))
        }
    };
    let [app, noise] = contents(&folder.0);
    let world = World::new(&app, &noise);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let told = failures.clone();
    let running = std::env::var("RUNNEL_FUZZ_SERVER").ok().map(|address| address.parse().expect("an address"));
    let rig = running.is_none().then(|| {
        Rig::start(Config {
            volumes: vec![VolumeConfig { writable: true, ..VolumeConfig::new("data", &folder.0.join("data")) }],
            memory_bytes_max: 64 << 20,
            log: Logger::new(move |_, line| {
                if line.contains("the server failed") {
                    told.lock().unwrap().push(line.to_owned());
                }
            }),
            ..config(StoreAt::Folder(folder.0.join("store")))
        })
    });
    let address = running.or(rig.as_ref().map(|rig| rig.address)).unwrap();
    let steps = variable("RUNNEL_FUZZ_STEPS").unwrap_or(STEPS);
    let seed = variable("RUNNEL_FUZZ_SEED").unwrap_or(1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = Client::connect_from([127, 0, 0, 1], address, 77);
        let (sender, answered) = watch::channel(0);
        let good = scope.spawn(|| {
            let answered = sender;
            good(client, &world.programs[0], &ended, &answered);
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(attack(address, seed, steps, &world, answered.clone()));
        // Connections end with it.
        drop(runtime);
        ended.store(true, Ordering::Relaxed);
        good.join().expect("the good client is served to the end");
        assert!(*answered.borrow() > 0);
    });
    assert_eq!(*failures.lock().unwrap(), [""; 0]);
    if let Some(rig) = rig {
        rig.stop();
    }
}
