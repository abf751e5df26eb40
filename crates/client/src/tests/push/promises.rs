//! READs that were told to wait for a push.

use super::*;

/// Answers every pull that is not forced with `OnTheWay`.
fn promise(server: &FakeServer, stream: units::StreamId) {
    server.policy(move |_, machine, event| match event {
        ServerEvent::Request { request, ask: Request::PullBlock { force: false, .. } } => {
            machine.reply(*request, Reply::OnTheWay { stream }).unwrap();
            true
        }
        _ => false,
    });
}

#[test]
fn a_push_answers_the_reader_that_was_told_to_wait() {
    let rig = Rig::new();
    let stream = rig.start(false);
    promise(&rig.server, stream);
    let waiting = read_page(&rig.session, 1, rig.tree.big(), 40);
    rig.server.requests(1, is_pull);
    rig.server.push(0, stream, 0, &rig.pages(40..44), |_| ());
    assert_eq!(waiting.wait().unwrap(), rig.tree.page(rig.page(40)));
    rig.sink.wait_stored(rig.page(43));
    assert_eq!(rig.sink.pages(), rig.pages(41..44), "the page that was answered is not stored on top");
    assert_eq!(rig.session.counters().reads.late_pushes, 1);
}

#[test]
fn a_push_that_ends_without_the_promised_page_leads_to_a_forced_demand() {
    let rig = Rig::new();
    let stream = rig.start(false);
    promise(&rig.server, stream);
    let waiting = read_page(&rig.session, 1, rig.tree.big(), 40);
    rig.server.requests(1, is_pull);
    rig.server.push(0, stream, 0, &rig.pages(0..4), |_| ());
    rig.server.push_end(0, stream);
    assert_eq!(waiting.wait().unwrap(), rig.tree.page(rig.page(40)));
    let forced = rig.server.requests(2, is_pull);
    assert!(matches!(forced[1].2, Request::PullBlock { force: true, .. }), "{forced:?}");
}

#[test]
fn a_promise_that_is_not_kept_in_time_leads_to_a_forced_demand() {
    let rig = Rig::new();
    let stream = rig.start(false);
    promise(&rig.server, stream);
    rig.read(40);
    assert!(matches!(rig.server.pulls().last(), Some(Request::PullBlock { force: true, .. })));
}

#[test]
fn a_lost_connection_ends_its_streams_and_their_promises() {
    let rig = Rig::new();
    let stream = rig.start(false);
    promise(&rig.server, stream);
    let waiting = read_page(&rig.session, 1, rig.tree.big(), 40);
    rig.server.requests(1, is_pull);
    rig.server.be_honest();
    rig.server.cut();
    assert_eq!(waiting.wait().unwrap(), rig.tree.page(rig.page(40)));
}
