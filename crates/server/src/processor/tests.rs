//! Whose turn it is.

use std::cell::Cell;
use std::rc::Rc;

use tokio::task::LocalSet;

use super::*;

fn peer(host: u8) -> Peer {
    Peer::at(([192, 0, 2, host], 1).into())
}

/// Is ready again at once. The runtime's own `yield_now` says so only later.
async fn again() {
    let mut was_here = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut was_here, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Works without a pause, as the task of a connection on which there is always more.
async fn busy(turns: Rc<Cell<usize>>) {
    loop {
        let until = Instant::now() + SLICE;
        while Instant::now() < until {}
        turns.set(turns.get() + 1);
        again().await;
    }
}

/// How many turns fifty tasks of a peer have between two of another peer's only one; of some, the
/// one in the middle.
async fn turns_between(processor: &Processor) -> usize {
    let turns = Rc::new(Cell::new(0));
    for _ in 0..50 {
        tokio::task::spawn_local(Sharing::new(processor.turns(peer(1)), busy(turns.clone())));
    }
    let good = async move {
        let mut between = Vec::new();
        // The peer is known to be busy after its first hundred turns.
        while turns.get() < 200 {
            again().await;
        }
        for _ in 0..20 {
            let before = turns.get();
            again().await;
            between.push(turns.get() - before);
        }
        between.sort_unstable();
        between[between.len() / 2]
    };
    // It becomes ready as one that waited for bytes: it is not busy itself.
    tokio::task::spawn_local(Sharing::new(processor.turns(peer(2)), good)).await.unwrap()
}

#[tokio::test]
async fn a_peer_with_many_busy_tasks_has_a_turn_for_each_of_another_peer_and_no_more() {
    let processor = Processor::default();
    let between = LocalSet::new().run_until(turns_between(&processor)).await;
    assert_eq!(between, 1, "without a difference it is 50");
    assert_eq!(processor.queue.ready.load(Ordering::SeqCst), 0, "nobody is waited for that is gone");
    assert_eq!(locked(&processor.peers).values().filter(|usage| usage.strong_count() > 0).count(), 0);
}

#[tokio::test]
async fn a_busy_peer_has_all_turns_while_nobody_else_is_ready() {
    let turns = Processor::default().turns(peer(1));
    turns.is_busy();
    (0..100).for_each(|_| turns.used(TURN_MAX.as_nanos() as u64));
    assert!(turns.is_busy());
    let done = Sharing::new(turns, async {
        again().await;
        7
    });
    assert_eq!(done.await, 7);
}

#[test]
fn a_task_that_ended_is_not_waited_for() {
    let processor = Processor::default();
    let turns = processor.turns(peer(1));
    let task = Sharing::new(turns.clone(), std::future::pending::<()>());
    assert_eq!(processor.queue.ready.load(Ordering::SeqCst), 1, "it wants its first turn");
    drop(task);
    assert_eq!(processor.queue.ready.load(Ordering::SeqCst), 0);
    // A waker that somebody kept.
    turns.wake_up();
    assert_eq!(processor.queue.ready.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_turn_ends_though_there_is_more_to_read() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let turns = Processor::default().turns(peer(1));
    let (mut theirs, ours) = tokio::io::duplex(1 << 20);
    theirs.write_all(&vec![1; 1 << 20]).await.unwrap();
    let mut slices = Slices::new(turns.clone(), ours);
    let reads = Rc::new(Cell::new(0));
    let counted = reads.clone();
    let task = Sharing::new(turns, async move {
        let mut part = vec![0; 64];
        let mut bytes = 0;
        while bytes < 1 << 20 {
            bytes += slices.read(&mut part).await.unwrap();
            counted.set(counted.get() + 1);
            let until = Instant::now() + SLICE / 10;
            while Instant::now() < until && counted.get() < 200 {}
        }
        bytes
    });
    tokio::pin!(task);
    let mut context = Context::from_waker(Waker::noop());
    assert!(task.as_mut().poll(&mut context).is_pending());
    assert!((1..20).contains(&reads.get()), "{} reads in a turn", reads.get());
    assert_eq!(task.await, 1 << 20);
}
