use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;

fn owner(peer: u8, connection: u64) -> Owner {
    Owner { peer: Peer::Address(IpAddr::V4(Ipv4Addr::new(192, 0, 2, peer))), connection }
}

/// Takes until there is no more at once.
fn take_all(budget: &Budget, owner: Owner, bytes: usize) -> Vec<Room> {
    std::iter::from_fn(|| budget.try_take(owner, bytes)).collect()
}

#[tokio::test]
async fn room_comes_back_when_it_shrinks_or_drops() {
    let budget = Budget::memory(1000 * UNIT_BYTES);
    let mut held = budget.take(owner(1, 1), 4 * UNIT_BYTES).await;
    held.merge(budget.take(owner(1, 1), 3 * UNIT_BYTES + 1).await);
    assert_eq!((held.amount(), budget.taken()), (8 * UNIT_BYTES, 8 * UNIT_BYTES));
    held.shrink_to(UNIT_BYTES + 1);
    assert_eq!(budget.taken(), 2 * UNIT_BYTES);
    held.shrink_to(5 * UNIT_BYTES);
    assert_eq!(held.amount(), 2 * UNIT_BYTES, "shrinking never takes more");
    drop(held);
    assert_eq!(budget.taken(), 0);
    assert!(locked(&budget.inner.state).peers.is_empty(), "nothing is kept for those who left");
}

#[tokio::test]
async fn who_finds_no_room_waits_until_there_is_some() {
    let budget = Budget::memory(4 * UNIT_BYTES);
    let held = budget.take(owner(1, 1), 3 * UNIT_BYTES).await;
    let waiting = tokio::spawn({
        let budget = budget.clone();
        async move { budget.take(owner(2, 2), usize::MAX / 4).await.amount() }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    drop(held);
    assert_eq!(waiting.await.unwrap(), 4 * UNIT_BYTES, "an impossible wish is cut to the whole budget");
}

/// Connections end, and uploads wait only so long. What they wished for kept the next room from
/// others.
#[tokio::test(start_paused = true)]
async fn regress_a_wish_that_nobody_waits_for_is_forgotten() {
    let budget = Budget::memory(8 * UNIT_BYTES);
    let held = budget.take(owner(1, 1), 6 * UNIT_BYTES).await;
    let waiting = tokio::spawn({
        let budget = budget.clone();
        async move { budget.take(owner(2, 2), 8 * UNIT_BYTES).await }
    });
    assert!(budget.take_soon(owner(3, 3), 4 * UNIT_BYTES, Duration::from_secs(10)).await.is_none());
    assert!(budget.is_lacking(), "the second still waits");
    let small = budget.take(owner(4, 4), UNIT_BYTES);
    tokio::pin!(small);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut small).await.is_err(), "the next room is for the second");
    waiting.abort();
    assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    let small = tokio::time::timeout(Duration::from_secs(1), small).await;
    assert_eq!(small.ok().map(|room| room.amount()), Some(UNIT_BYTES));
    assert!(!budget.is_lacking());
    drop(held);
    assert!(locked(&budget.inner.state).peers.is_empty() && locked(&budget.inner.state).turns.is_empty());
}

/// One peer with 40 connections that keep all they get: nobody else waits, nor does a good
/// connection of the same peer.
#[test]
fn a_peer_that_gives_nothing_back_leaves_room_for_the_others() {
    let budget = Budget::memory(128 << 20);
    let bad: Vec<_> = (0..40).flat_map(|connection| take_all(&budget, owner(1, connection), 128 << 10)).collect();
    let held: usize = bad.iter().map(Room::amount).sum();
    assert!((32 << 20..=64 << 20).contains(&held), "{held}");
    assert!(budget.try_take(owner(1, 99), 256 << 10).is_some(), "another connection of the same peer");
    let good: Vec<_> = (2..22).map(|peer| budget.try_take(owner(peer, u64::from(peer)), 1 << 20)).collect();
    assert!(good.iter().all(Option::is_some), "twenty peers with a block each");
}

/// A connection that asks for more than its share makes nobody give way.
#[tokio::test]
async fn who_waits_for_its_own_share_lacks_nothing() {
    let budget = Budget::memory(64 * UNIT_BYTES);
    let _held = budget.try_take(owner(1, 1), 2 * UNIT_BYTES).unwrap();
    let mut more = Box::pin(budget.take(owner(1, 1), 4 * UNIT_BYTES));
    assert!(tokio::time::timeout(Duration::ZERO, &mut more).await.is_err() && !budget.is_lacking());
    let others = budget.try_take(owner(2, 2), 32 * UNIT_BYTES);
    drop((more, others));
    let _others = budget.take(owner(2, 2), 60 * UNIT_BYTES).await;
    let mut little = Box::pin(budget.take(owner(3, 3), 4 * UNIT_BYTES));
    assert!(tokio::time::timeout(Duration::ZERO, &mut little).await.is_err() && budget.is_lacking());
}

/// A frame comes behind requests that hold some memory already.
#[test]
fn a_connection_may_hold_a_frame_behind_requests() {
    for (budget, may) in [(Budget::frames(16 << 20), true), (Budget::memory(16 << 20), false)] {
        let requests = budget.try_take(owner(1, 1), 20 << 10).unwrap();
        assert_eq!(requests.try_more((1 << 20) + 8192).is_some(), may);
    }
}

#[test]
fn a_peer_has_few_reads_at_once() {
    let budget = Budget::reads(64);
    let bad: Vec<_> = (0..40).flat_map(|connection| take_all(&budget, owner(1, connection), 1)).collect();
    assert_eq!(bad.len(), 7);
    let good: Vec<_> = (2..22).map(|peer| budget.try_take(owner(peer, u64::from(peer)), 1)).collect();
    assert!(good.iter().all(Option::is_some), "twenty peers with a read each");
    let least = Budget::reads(1);
    assert!(least.try_take(owner(1, 1), 1).is_some());
}

#[tokio::test]
async fn those_who_wait_are_served_by_peer_in_turn() {
    let budget = Budget::turns(1);
    let held = budget.take(owner(1, 1), 1).await;
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    let wait = |peer| {
        let (budget, sender) = (budget.clone(), sender.clone());
        tokio::spawn(async move {
            let slot = budget.take(owner(peer, 1), 1).await;
            sender.send(peer).unwrap();
            drop(slot);
        })
    };
    for peer in [1, 1, 1, 1, 2, 2, 3] {
        wait(peer);
        tokio::task::yield_now().await;
    }
    drop(held);
    let mut order = Vec::new();
    while order.len() < 7 {
        order.push(served.recv().await.unwrap());
    }
    assert_eq!(order, [1, 2, 3, 1, 2, 1, 1]);
}

/// Who gave way comes again at once, from as many addresses as he has. He has a half then, and a
/// turn of eight.
#[tokio::test]
async fn slow_peers_go_last_and_hold_a_half_together() {
    let slow = SlowPeers::for_time(Duration::from_secs(600));
    let budget = Budget::memory(64 * UNIT_BYTES).with_slow(&slow);
    (1..=40).for_each(|peer| slow.add(owner(peer, 1).peer));
    let bad: Vec<_> = (1..=40).filter_map(|peer| budget.try_take(owner(peer, 1), 4 * UNIT_BYTES)).collect();
    assert_eq!(bad.len(), 8);
    assert!(!budget.is_lacking_for_others() && budget.try_take(owner(101, 1), 8 * UNIT_BYTES).is_some());
    drop(bad);
    let large = budget.try_take(owner(1, 1), 40 * UNIT_BYTES);
    assert!(large.is_some(), "one of them may hold what it needs, or it would wait for ever");
    drop(large);

    let held = budget.try_take(owner(100, 1), 30 * UNIT_BYTES).unwrap();
    let rest = budget.try_take(owner(102, 1), 17 * UNIT_BYTES).unwrap();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for peer in (1..=3).chain(111..=130) {
        let (wanted, sender) = (budget.clone(), sender.clone());
        tokio::spawn(async move {
            let room = wanted.take(owner(peer, 1), 20 * UNIT_BYTES).await;
            sender.send(peer).unwrap();
            drop(room);
        });
        tokio::task::yield_now().await;
        let others = peer > 100;
        assert_eq!((budget.is_lacking(), budget.is_lacking_for_others()), (true, others));
    }
    drop((held, rest));
    let mut order = Vec::new();
    while order.len() < 23 {
        order.push(served.recv().await.unwrap());
    }
    let turns: Vec<_> = (0..23).filter(|index| order[*index] <= 3).collect();
    assert_eq!(turns, [7, 15, 22], "{order:?}");
    assert_eq!(locked(&budget.inner.state).slow_held, 0);
}

#[tokio::test]
async fn room_of_one_who_waits_no_longer_goes_to_the_next() {
    let budget = Budget::turns(1);
    let held = budget.take(owner(1, 1), 1).await;
    let wait = |peer| {
        let budget = budget.clone();
        tokio::spawn(async move { drop(budget.take(owner(peer, 1), 1).await) })
    };
    let (gone, next) = (wait(2), wait(3));
    tokio::task::yield_now().await;
    gone.abort();
    assert!(gone.await.is_err());
    drop(held);
    next.await.unwrap();
    assert_eq!(budget.taken(), 0);
}

#[test]
fn a_large_wish_of_one_who_holds_nothing_is_not_overtaken_for_ever() {
    let budget = Budget::memory(8 * UNIT_BYTES);
    let small = budget.try_take(owner(1, 1), 2 * UNIT_BYTES).unwrap();
    let mut large = Box::pin(budget.take(owner(2, 2), 8 * UNIT_BYTES));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(large.as_mut().poll(&mut context).is_pending());
    assert!(budget.try_take(owner(3, 3), UNIT_BYTES).is_none(), "the next room is kept for the large wish");
    drop(small);
    assert!(large.as_mut().poll(&mut context).is_ready());
}

proptest! {
    /// Whatever is taken and given back, the sums agree, no peer exceeds its share, and all comes
    /// back.
    #[test]
    fn prop_sums_agree(steps in prop::collection::vec((1u8..5, 0u64..3, 0usize..40, any::<bool>()), 0..200)) {
        let slow = SlowPeers::for_time(Duration::from_secs(600));
        let budget = Budget::memory(64 * UNIT_BYTES).with_slow(&slow);
        let mut rooms: Vec<Room> = Vec::new();
        for (peer, connection, amount, drops) in steps {
            if drops && amount == 0 {
                slow.add(owner(peer, connection).peer);
            } else if drops && !rooms.is_empty() {
                rooms.swap_remove(amount % rooms.len());
            } else {
                rooms.extend(budget.try_take(owner(peer, connection), amount * UNIT_BYTES));
            }
            let sum: usize = rooms.iter().map(Room::amount).sum();
            prop_assert_eq!(budget.taken(), sum);
            prop_assert!(sum <= 64 * UNIT_BYTES);
        }
        rooms.clear();
        prop_assert_eq!(budget.taken(), 0);
        let state = locked(&budget.inner.state);
        prop_assert!(state.peers.is_empty() && state.slow_held == 0);
    }
}
