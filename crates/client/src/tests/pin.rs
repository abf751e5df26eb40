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
use crate::pin::{
    Change, Claim, Done, News, Pin, PinError, PinStop, Pinned, Progress, RollbackError, RolledBack, Verdict, pin,
    pinned, rollback, unpin,
};
use crate::{Config, Session};

/// Longer than a busy machine takes to decode a file that is here.
const ALONE: Waiting = Waiting::Soft(Duration::from_secs(20));

/// So few blocks are under way that the last ones cannot be there when the pin is stopped before.
const SLOW: Options = Options { rate: Some(4 << 20), budget: None, is_forced: false, is_checked: false };

/// What a test asks for beside the image.
#[derive(Default)]
struct Options {
    rate: Option<u64>,
    budget: Option<u64>,
    is_forced: bool,
    is_checked: bool,
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
    pin_it(device, cache, options, tell).map(|done| (done.id, done.progress))
}

fn pin_it(
    device: &Device,
    cache: &Arc<Cache>,
    options: &Options,
    tell: &mut dyn FnMut(Progress, &PinStop),
) -> Result<Done, PinError> {
    let (remote, config, stop) = (remote(device), Config::default(), PinStop::new().unwrap());
    let Options { rate, budget, is_forced, is_checked } = *options;
    let wanted = Pin { remote: &remote, config: &config, rate, budget, is_forced, is_checked, stop: &stop };
    let claim = Claim::new(cache, &remote, "app")?;
    pin(&wanted, &claim, &mut |news| match news {
        News::Progress(progress) => tell(progress, &stop),
        News::Interrupted(_) | News::GivenUp(_) => {}
    })
}

/// The only name that is pinned.
fn name(cache: &Cache) -> Pinned {
    let (mut names, _) = pinned(cache).unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0)
}

pub(super) fn pin_all(device: &Device) -> Progress {
    let cache = device.cache();
    let (id, progress) = pin_with(device, &cache, &Options::default(), &mut |_, _| ()).unwrap();
    assert_eq!(id, device.tree.metadata.id());
    assert_eq!(progress.bytes, progress.pinned_bytes);
    let name = name(&cache);
    assert!(name.target == "app" && name.current.is_some_and(|version| version.id == id && version.is_complete()));
    assert_eq!((name.next, name.bad.len()), (None, 0));
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

pub(super) fn serve(tree: &Tree, address: std::net::SocketAddr) -> Rig {
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
    let Pinned { current, next, .. } = name(&cache);
    assert!(current.is_none() && next.is_some_and(|next| !next.is_complete() && next.pinned_bytes > 0), "{next:?}");
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
        let outcome = pin_with(&device, &cache, &SLOW, &mut |progress, stop| {
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

/// Two versions of one image, on a server and on a device.
struct Versions {
    device: Device,
    old: Arc<Tree>,
    new: Arc<Tree>,
}

impl Versions {
    /// The server has the old one, which is pinned.
    fn pinned() -> Versions {
        let (device, new) = (Device::with(Tree::plain()), Arc::new(Tree::scattered()));
        pin_all(&device);
        Versions { old: Arc::clone(&device.tree), device, new }
    }

    /// The server has this one from now on.
    fn publish(&mut self, tree: &Arc<Tree>) {
        drop(self.device.rig.take());
        self.device.tree = Arc::clone(tree);
        self.device.rig = Some(serve(tree, self.device.address));
    }

    fn remote(&self) -> Remote {
        remote(&self.device)
    }

    /// Pins what the server has, and tells the change.
    fn update(&self, options: &Options) -> Change {
        pin_it(&self.device, &self.device.cache(), options, &mut |_, _| ()).unwrap().change
    }

    /// The version that programs start from without the server, and the one to return to.
    fn in_force(&self) -> (ImageId, Option<ImageId>) {
        let name = name(&self.device.cache());
        (name.current.unwrap().id, name.previous.map(|version| version.id))
    }

    /// A program starts now. Nobody is at the address of its server.
    fn start(&self) -> (Arc<Session>, Arc<Cache>) {
        let cache = self.device.cache();
        let config = Config { waiting: ALONE, ..soft(Config::default()) };
        let (session, _sink) = open_at(self.device.address, config, Some(&cache)).unwrap();
        (session, cache)
    }
}

/// Reads every byte, and compares it.
fn reads_all(session: &Arc<Session>, tree: &Tree) {
    assert_eq!(session.metadata().id(), tree.metadata.id());
    for (inode, contents) in tree.files.iter().filter(|(_, contents)| !contents.is_empty()) {
        let bytes = contents.len().next_multiple_of(PAGE_BYTES) as u32;
        let found = super::read(session, 5, *inode, 0, bytes).wait();
        assert!(found.as_ref() == Ok(contents), "{:?}", found.map(|bytes| bytes.len()));
    }
}

#[test]
fn a_new_version_takes_the_place_of_the_old_one_when_it_is_complete() {
    let mut versions = Versions::pinned();
    let (old, new) = (Arc::clone(&versions.old), Arc::clone(&versions.new));
    let (running, its_cache) = versions.start();
    versions.publish(&new);
    let began = pin_it(&versions.device, &versions.device.cache(), &SLOW, &mut |progress, stop| {
        if progress.pinned_bytes * 2 > progress.bytes {
            stop.stop();
        }
    });
    assert!(matches!(began, Err(PinError::Stopped)), "{began:?}");
    // The server is there and has another version. A start needs neither.
    assert_eq!(versions.in_force(), (old.metadata.id(), None));
    let (session, cache) = versions.start();
    reads_all(&session, &old);
    end(session, cache);

    assert_eq!(versions.update(&Options::default()), Change::Switched(Some(old.metadata.id())));
    versions.device.rig = None;
    assert_eq!(versions.in_force(), (new.metadata.id(), Some(old.metadata.id())));
    let (session, cache) = versions.start();
    reads_all(&session, &new);
    end(session, cache);
    reads_all(&running, &old);
    end(running, its_cache);

    let cache = versions.device.cache();
    assert!(matches!(unpin(&cache, &versions.remote(), "app"), Ok(1)));
    assert!(matches!(unpin(&cache, &versions.remote(), "app"), Ok(0)));
    assert_eq!(pinned(&cache).unwrap(), (Vec::new(), Vec::new()));
    // As long as there is room, what it stood for starts without a server.
    let (session, _cache) = versions.start();
    reads_all(&session, &new);
}

#[test]
fn a_version_stays_as_long_as_a_program_runs_from_it() {
    let mut versions = Versions::pinned();
    let (old, new) = (Arc::clone(&versions.old), Arc::clone(&versions.new));
    let (running, its_cache) = versions.start();
    versions.publish(&new);
    versions.update(&Options::default());
    let third = Arc::new(Tree::large());
    versions.publish(&third);
    versions.update(&Options::default());
    assert_eq!(versions.in_force(), (third.metadata.id(), Some(new.metadata.id())));
    let others = || pinned(&versions.device.cache()).unwrap().1;
    assert_eq!(others().iter().map(|version| version.id).collect::<Vec<_>>(), [old.metadata.id()]);
    versions.device.cache().clear().unwrap();
    versions.device.rig = None;
    reads_all(&running, &old);
    end(running, its_cache);
    versions.device.cache().unpin_unnamed().unwrap();
    assert_eq!(pinned(&versions.device.cache()).unwrap().1, []);
}

#[test]
fn what_was_rolled_back_from_does_not_come_again() {
    let mut versions = Versions::pinned();
    let (old, new) = (versions.old.metadata.id(), versions.new.metadata.id());
    let roll = |versions: &Versions| rollback(&versions.device.cache(), &versions.remote(), "app");
    assert!(matches!(roll(&versions), Err(RollbackError::NoPrevious(_))));
    let tree = Arc::clone(&versions.new);
    versions.publish(&tree);
    versions.update(&Options::default());
    versions.device.rig = None;
    assert_eq!(roll(&versions).unwrap(), RolledBack { from: new, to: old });
    assert!(matches!(roll(&versions), Err(RollbackError::NoPrevious(_))));
    assert_eq!(name(&versions.device.cache()).bad, [new]);
    let (session, cache) = versions.start();
    reads_all(&session, &versions.old);
    end(session, cache);

    versions.publish(&tree);
    assert_eq!(versions.update(&Options::default()), Change::HeldBack);
    assert_eq!(versions.in_force(), (old, None));
    // Yet another one is taken, and so is this one if somebody insists.
    let third = Arc::new(Tree::large());
    versions.publish(&third);
    assert_eq!(versions.update(&Options::default()), Change::Switched(Some(old)));
    versions.publish(&tree);
    assert_eq!(versions.update(&Options::default()), Change::HeldBack);
    let forced = Options { is_forced: true, ..Options::default() };
    assert_eq!(versions.update(&forced), Change::Switched(Some(third.metadata.id())));
    assert_eq!(name(&versions.device.cache()).bad, []);
    let nowhere = Remote { image: connection::ImageName::Id(old), ..versions.remote() };
    let outcome = rollback(&versions.device.cache(), &nowhere, "other");
    assert!(matches!(outcome, Err(RollbackError::NotPinned(_))));
}

#[test]
fn a_version_that_does_not_work_goes_by_itself() {
    let mut versions = Versions::pinned();
    let (old, new) = (versions.old.metadata.id(), versions.new.metadata.id());
    let tree = Arc::clone(&versions.new);
    versions.publish(&tree);
    let checked = Options { is_checked: true, ..Options::default() };
    assert_eq!(versions.update(&checked), Change::Switched(Some(old)));
    // The power went off before it was checked.
    let (cache, remote) = (versions.device.cache(), versions.remote());
    let claim = Claim::new(&cache, &remote, "app").unwrap();
    assert!(matches!(Claim::new(&versions.device.cache(), &remote, "app"), Err(PinError::Running(_))));
    assert_eq!(claim.unchecked().unwrap(), Some(new));
    assert_eq!(claim.checked(old, false).unwrap(), Verdict::Other);
    assert_eq!(claim.checked(new, false).unwrap(), Verdict::Returned(old));
    assert_eq!((claim.unchecked().unwrap(), versions.in_force()), (None, (old, None)));
    drop(claim);
    drop(cache);
    assert_eq!(versions.update(&checked), Change::HeldBack);

    let third = Arc::new(Tree::large());
    versions.publish(&third);
    versions.update(&checked);
    let (cache, third) = (versions.device.cache(), third.metadata.id());
    let claim = Claim::new(&cache, &remote, "app").unwrap();
    assert_eq!(claim.checked(third, true).unwrap(), Verdict::Good);
    assert_eq!((claim.unchecked().unwrap(), versions.in_force()), (None, (third, Some(old))));
}

#[test]
fn the_previous_version_goes_if_the_new_one_needs_its_room() {
    let mut versions = Versions::pinned();
    let (old, new) = (Arc::clone(&versions.old), Arc::clone(&versions.new));
    versions.publish(&new);
    versions.update(&Options::default());
    let third = Arc::new(Tree::large());
    versions.publish(&third);
    // As large as two of them.
    let cache = versions.device.cache();
    let sizes: u64 = cache.pins().values().sum();
    drop(cache);
    let try_in = |bytes: u64| {
        let cache = Arc::new(Cache::open(&versions.device.folder(), Some(bytes)).unwrap());
        pin_it(&versions.device, &cache, &Options::default(), &mut |_, _| ()).map(|done| done.change)
    };
    let least = versions.device.cache().pinned_bytes().unwrap();
    let error = try_in(least + 1000).unwrap_err();
    let PinError::TooLarge { needed, .. } = error else { panic!("{error}") };
    assert!(sizes > 0 && needed > 0);
    assert_eq!(versions.in_force(), (new.metadata.id(), Some(old.metadata.id())), "nothing is given up in vain");
    // A program runs from the previous version: it stays, and the new one does not fit.
    let limit = least + needed - 1000;
    let cache = versions.device.cache();
    assert!(cache.use_pinned(&cache::Owner(old.metadata.id().0)));
    assert!(matches!(try_in(limit), Err(PinError::TooLarge { .. })));
    assert_eq!(versions.in_force().1, Some(old.metadata.id()));
    drop(cache);
    assert_eq!(try_in(limit).unwrap(), Change::Switched(Some(new.metadata.id())));
    assert_eq!(versions.in_force(), (third.metadata.id(), Some(new.metadata.id())));
    assert!(Cache::open(&versions.device.folder(), Some(limit)).unwrap().status().unwrap().bytes <= limit);
}

#[test]
fn a_version_whose_metadata_is_damaged_is_fetched_and_no_other() {
    let mut versions = Versions::pinned();
    let (old, new) = (Arc::clone(&versions.old), Arc::clone(&versions.new));
    for log in std::fs::read_dir(versions.device.folder()).unwrap().map(|entry| entry.unwrap().path()) {
        if log.extension().is_some_and(|found| found == "log") {
            let file = std::fs::OpenOptions::new().write(true).open(log).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[9; 64 << 10], 0).unwrap();
        }
    }
    versions.publish(&new);
    let cache = versions.device.cache();
    assert!(!name(&cache).current.unwrap().is_complete());
    let opened = open_at(versions.device.address, soft(Config::default()), Some(&cache));
    assert!(opened.is_err(), "the server has another version");
    versions.publish(&old);
    let (session, _sink) = open_at(versions.device.address, soft(Config::default()), Some(&cache)).unwrap();
    reads_all(&session, &old);
    drop(session);
    // A return to it is refused, and the next pin makes it whole.
    drop(cache);
    assert_eq!(versions.update(&Options::default()), Change::None);
    versions.device.rig = None;
    let (session, _cache) = versions.start();
    reads_all(&session, &old);
}
