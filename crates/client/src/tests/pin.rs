//! Pins with the real server: all of an image is there, and no more is fetched than is missing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cache::{Cache, Kind};
use connection::{Remote, Target, Waiting};
use store::{Memory, Store};
use units::{ImageId, PAGE_BYTES};

use super::cached::{Device, end, pages, soft};
use super::plain;
use super::real_server::{Rig, open_at};
use super::tree::Tree;
use crate::Config;
use crate::pin::{News, Pin, PinError, PinStop, Progress, pin, pinned_images, unpin};

/// Longer than a busy machine takes to decode a file that is here.
const ALONE: Waiting = Waiting::Soft(Duration::from_secs(20));

/// What a test asks for beside the image.
#[derive(Default)]
struct Options {
    rate: Option<u64>,
    budget: Option<u64>,
}

fn remote(device: &Device) -> Remote {
    match Target::parse(&format!("runnel://{}/app", device.address)) {
        Ok(Target::Remote(remote)) => remote,
        other => panic!("{other:?}"),
    }
}

/// Pins the image of the device; `tell` hears how it goes.
fn pin_with(
    device: &Device,
    cache: &Arc<Cache>,
    options: &Options,
    tell: &mut dyn FnMut(Progress, &PinStop),
) -> Result<(ImageId, Progress), PinError> {
    let (remote, config, stop) = (remote(device), Config::default(), PinStop::new().unwrap());
    let Options { rate, budget } = *options;
    let wanted = Pin { remote: &remote, target: "app", config: &config, rate, budget, stop: &stop };
    pin(&wanted, cache, &mut |news| match news {
        News::Progress(progress) => tell(progress, &stop),
        News::Interrupted(_) => {}
    })
}

fn pin_all(device: &Device) -> Progress {
    let cache = device.cache();
    let (id, progress) = pin_with(device, &cache, &Options::default(), &mut |_, _| ()).unwrap();
    assert_eq!(id, device.tree.metadata.id());
    assert_eq!(progress.bytes, progress.pinned_bytes);
    let pins = pinned_images(&cache);
    assert!(pins.len() == 1 && pins[0].is_complete && pins[0].target == "app", "{pins:?}");
    progress
}

/// Reads every byte without the server.
fn reads_alone(device: &mut Device, config: Config) {
    let rig = device.rig.take();
    let address = rig.as_ref().map_or(device.address, |rig| rig.address);
    drop(rig);
    let cache = device.cache();
    let (session, _sink) = open_at(device.address, Config { waiting: ALONE, ..soft(config) }, Some(&cache)).unwrap();
    for (inode, contents) in device.tree.files.iter().filter(|(_, contents)| !contents.is_empty()) {
        let bytes = contents.len().next_multiple_of(PAGE_BYTES) as u32;
        assert_eq!(super::read(&session, 5, *inode, 0, bytes).wait().as_ref(), Ok(contents));
    }
    end(session, cache);
    device.rig = Some(serve(&device.tree, address));
}

fn serve(tree: &Tree, address: std::net::SocketAddr) -> Rig {
    let store = Memory::new();
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    Rig::start_with(&store, |config| config.listen = address)
}

#[test]
fn what_is_pinned_is_read_without_its_server() {
    for tree in [Tree::plain(), Tree::scattered(), Tree::large()] {
        let mut device = Device::with(tree);
        let all = pin_all(&device);
        assert!(all.blocks_present == 0 && all.blocks == device.tree.metadata.block_count());
        for config in [pages(), plain(), Config::default()] {
            reads_alone(&mut device, config);
        }
        // The server is there again, and is asked for nothing.
        let counters = device.run(Config::default());
        assert_eq!((counters.demand.pages_demanded, counters.demand.requests), (0, 0));
        let again = pin_all(&device);
        assert_eq!(again.blocks_present, all.blocks);
        assert!(again.transferred_bytes * 20 < all.transferred_bytes, "{again:?} after {all:?}");
    }
}

#[test]
fn what_a_run_left_is_not_fetched_again() {
    let mut device = Device::with(Tree::plain());
    device.run(plain());
    let fetched = device.cache().records(&cache::Owner(device.tree.metadata.id().0), Kind::Block).len();
    assert!(fetched > 2);
    let progress = pin_all(&device);
    assert!(progress.transferred_bytes < progress.bytes, "{progress:?}");
    reads_alone(&mut device, pages());
}

#[test]
fn a_pin_that_ended_early_goes_on() {
    let mut device = Device::with(Tree::large());
    let cache = device.cache();
    let stopped = pin_with(&device, &cache, &Options::default(), &mut |progress, stop| {
        if progress.pinned_bytes * 3 > progress.bytes {
            stop.stop();
        }
    });
    assert!(matches!(stopped, Err(PinError::Stopped)), "{stopped:?}");
    let pins = pinned_images(&cache);
    assert!(pins.len() == 1 && !pins[0].is_complete && pins[0].pinned_bytes > 0, "{pins:?}");
    drop(cache);
    let rest = pin_all(&device);
    assert!(rest.blocks_present > 0 && rest.transferred_bytes < rest.bytes * 9 / 10, "{rest:?}");
    reads_alone(&mut device, Config::default());
}

#[test]
fn a_server_that_comes_back_is_asked_for_the_rest() {
    let mut device = Device::with(Tree::large());
    let cache = device.cache();
    let (tree, address) = (Arc::clone(&device.tree), device.address);
    let mut rig = device.rig.take();
    let mut restarts = 0;
    let done = pin_with(&device, &cache, &Options::default(), &mut |progress, _| {
        if progress.pinned_bytes * 3 > progress.bytes && restarts == 0 {
            restarts += 1;
            drop(rig.take());
            rig = Some(serve(&tree, address));
        }
    });
    let (_, progress) = done.unwrap();
    assert_eq!((restarts, progress.pinned_bytes), (1, progress.bytes));
    // What was under way is fetched again, and nothing else.
    assert!(progress.transferred_bytes < 2 * progress.bytes, "{progress:?}");
    drop((cache, rig));
    device.rig = Some(serve(&device.tree, address));
    reads_alone(&mut device, Config::default());
}

#[test]
fn what_does_not_fit_is_told_before_it_is_fetched() {
    let device = Device::with(Tree::large());
    let cache = Arc::new(Cache::open(&device.folder(), Some(512 << 10)).unwrap());
    let error = pin_with(&device, &cache, &Options::default(), &mut |_, _| ()).unwrap_err();
    let PinError::TooLarge { needed, pinned: 0, max } = error else { panic!("{error}") };
    assert!(max == 512 << 10 && needed > 1 << 20 && error.to_string().contains("--cache-size"), "{error}");
    assert!(cache.pins().is_empty() && cache.status().unwrap().records == 0);
    // What it says is enough.
    drop(cache);
    for share in [3, 2, 1] {
        let cache = Arc::new(Cache::open(&device.folder(), Some(needed)).unwrap());
        let outcome = pin_with(&device, &cache, &Options::default(), &mut |progress, stop| {
            if share > 1 && progress.pinned_bytes * share > progress.bytes {
                stop.stop();
            }
        });
        assert!(matches!(outcome, Ok(_) | Err(PinError::Stopped)) && outcome.is_ok() == (share == 1), "{outcome:?}");
    }
    let cache = Arc::new(Cache::open(&device.folder(), Some(needed)).unwrap());
    assert!(cache.status().unwrap().bytes <= needed);
}

#[test]
fn the_budget_of_a_month_ends_a_pin() {
    let mut device = Device::with(Tree::large());
    let all = device.tree.bytes.len() as u64;
    let budget = all / 2;
    let ended = |budget| {
        let cache = device.cache();
        let mut last = Progress::default();
        let options = Options { budget: Some(budget), ..Options::default() };
        let outcome = pin_with(&device, &cache, &options, &mut |progress, _| last = progress);
        (outcome, last)
    };
    let (outcome, first) = ended(budget);
    let Err(PinError::Budget { spent, missing, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(spent <= budget && spent > budget / 2 && missing == first.bytes - first.pinned_bytes, "{spent} {first:?}");
    assert!(first.transferred_bytes <= spent && first.pinned_bytes > budget / 3, "{first:?}");
    // Nothing is left of it.
    let (outcome, second) = ended(budget);
    assert!(matches!(outcome, Err(PinError::Budget { .. })), "{outcome:?}");
    assert!(second.transferred_bytes < all / 10, "{second:?}");
    let (_, rest) = ended(2 * all).0.unwrap();
    assert!(rest.blocks_present > 0 && rest.transferred_bytes < all * 9 / 10, "{rest:?}");
    reads_alone(&mut device, Config::default());
}

#[test]
fn a_rate_holds_on_average() {
    let device = Device::with(Tree::plain());
    let cache = device.cache();
    let rate = 400 << 10;
    let began = Instant::now();
    let options = Options { rate: Some(rate), ..Options::default() };
    let (_, progress) = pin_with(&device, &cache, &options, &mut |_, _| ()).unwrap();
    // The last block is requested when all before it have had their time.
    let last = progress.bytes / u64::from(progress.blocks) * 2;
    let least = Duration::from_secs_f64((progress.bytes - last) as f64 / rate as f64);
    assert!(began.elapsed() >= least, "{:?} for {progress:?}", began.elapsed());
}

#[test]
fn a_new_version_takes_the_place_of_the_old_one() {
    let device = Device::with(Tree::plain());
    let cache = device.cache();
    pin_with(&device, &cache, &Options::default(), &mut |_, _| ()).unwrap();
    let other = Device::with(Tree::scattered());
    let (remote, config, stop) = (remote(&other), Config::default(), PinStop::new().unwrap());
    let wanted = Pin { remote: &remote, target: "app", config: &config, rate: None, budget: None, stop: &stop };
    let (id, _) = pin(&wanted, &cache, &mut |_| ()).unwrap();
    let pins = pinned_images(&cache);
    assert_eq!(pins.iter().map(|pin| (pin.id, pin.is_complete)).collect::<Vec<_>>(), [(id, true)]);
    assert_eq!(unpin(&cache, &remote, "other").unwrap(), 0);
    assert_eq!(unpin(&cache, &remote, "app").unwrap(), 1);
    assert!(pinned_images(&cache).is_empty());
}
