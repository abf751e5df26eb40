use super::*;
use crate::abi::opcode;
use crate::request::tests::message;

#[test]
fn the_next_daemon_finds_what_was_not_answered() {
    let memory = create().expect("a memory");
    set_note(&memory, &[7; NOTE_BYTES]).expect("written");
    let (first, mut handshake) = Handover::map(&memory).expect("mapped");
    assert!(first.left().is_empty() && first.init(&mut handshake).is_none() && first.agreed().is_none());
    let requests: Vec<Vec<u8>> = (0..4).map(|node| message(opcode::READ, node, &[&[1; 40]])).collect();
    let slots: Vec<Place> = (10..).zip(&requests).filter_map(|(n, bytes)| first.keep(n, bytes, 3)).collect();
    assert_eq!(slots, [0, 1, 2, 3].map(Place::Slot));
    first.release(slots[1]);
    first.interrupt(slots[2]);
    let init = InitIn { major: 7, minor: 40, max_readahead: 1, flags: 2, flags2: 3, unused: [0; 11] };
    first.keep_init(2, &init);

    let (next, mut handshake) = Handover::map(&memory).expect("mapped");
    let left = next.left();
    let found: Vec<_> = left.iter().map(|left| (left.place, left.device, left.interrupted)).collect();
    assert_eq!(found, [(slots[0], 3, false), (slots[2], 3, true), (slots[3], 3, false)]);
    assert!(left[1].bytes == requests[2] && left.iter().all(|left| left.answer.is_none()));
    assert_eq!(next.init(&mut handshake), Some((2, init)));
    assert_eq!(note(&memory).expect("read"), [7; NOTE_BYTES]);
    // A free slot is taken, and none of those that are not.
    assert_eq!(next.keep(50, &requests[0], 0), Some(slots[1]));
    assert_eq!(next.keep(52, &requests[0], 0), Some(Place::Slot(4)));
    assert!(next.left().iter().any(|left| left.place == Place::Slot(4)));
}

/// Reads a request into an area, as a serving thread does.
fn receive(memory: &Handover, device: usize, request: &[u8]) -> (Area, usize) {
    let mut area = memory.take_area().expect("an area");
    memory.begins(&mut area, device);
    area.bytes()[..request.len()].copy_from_slice(request);
    let index = area.index().expect("a shared one");
    (area, index)
}

#[test]
fn what_stands_in_an_area_is_found_unless_it_is_settled() {
    let memory = create().expect("a memory");
    let (first, _) = Handover::map(&memory).expect("mapped");
    let write = message(opcode::WRITE, 9, &[&[5; 100_000]]);
    let (_, long) = receive(&first, 4, &write);
    let (mut short, _) = receive(&first, 5, &message(opcode::LOOKUP, 9, &[b"name\0"]));
    let (_, forgotten) = receive(&first, 6, &message(opcode::FORGET, 9, &[&1u64.to_le_bytes()]));
    first.settle(forgotten);
    first.interrupt(Place::Read(long));

    let (next, _) = Handover::map(&memory).expect("mapped");
    let left = next.left();
    let found: Vec<_> = left.iter().map(|left| (left.device, left.interrupted, left.bytes.len())).collect();
    assert_eq!(found, [(4, true, write.len()), (5, false, 45)]);
    assert_eq!(left[0].bytes, write);
    // Nobody reads into them before they are answered.
    let free = next.take_area().and_then(|area| area.index());
    assert_eq!(free, Some(forgotten));
    next.release(left[0].place);
    assert_eq!(next.take_area().and_then(|area| area.index()), Some(long));
    short.clear();
    assert!(next.left().is_empty());
}

#[test]
fn an_answer_that_may_have_been_sent_is_found_with_its_request() {
    let memory = create().expect("a memory");
    let (first, _) = Handover::map(&memory).expect("mapped");
    let request = message(opcode::CREATE, 9, &[&[1; 16], b"name\0"]);
    let places: Vec<Place> = (10..14).filter_map(|unique| first.keep(unique, &request, 0)).collect();
    first.answer(places[0], 0, &[&[7; size_of::<EntryOut>()], &[8; size_of::<OpenOut>()]]);
    first.answer(places[1], 17, &[&[], &[]]);
    first.answer(places[2], 0, &[&[1; ANSWER_BYTES_MAX + 1], &[]]);
    let left = Handover::map(&memory).expect("mapped").0.left();
    let created = [vec![7; size_of::<EntryOut>()], vec![8; size_of::<OpenOut>()]].concat();
    let answers: Vec<_> = left.into_iter().map(|left| left.answer).collect();
    assert_eq!(answers, [Some((0, created)), Some((17, vec![])), None, None]);
    // The next request in the same slot has none.
    first.release(places[1]);
    first.keep(20, &request, 0).expect("a slot");
    assert_eq!(Handover::map(&memory).expect("mapped").0.left()[1].answer, None);
}

/// A daemon was killed after it had copied a request to a slot, and before it said so.
#[test]
fn a_request_that_stands_in_two_places_is_found_once() {
    let memory = create().expect("a memory");
    let (first, _) = Handover::map(&memory).expect("mapped");
    let request = message(opcode::MKDIR, 9, &[&[1; 8], b"name\0"]);
    receive(&first, 0, &request);
    first.keep(42, &request, 0).expect("a slot");
    let left = Handover::map(&memory).expect("mapped").0.left();
    assert_eq!(left.iter().map(|left| left.place).collect::<Vec<_>>(), [Place::Slot(0)]);
}

#[test]
fn areas_that_are_not_used_often_give_their_memory_back() {
    let memory = create().expect("a memory");
    let (first, _) = Handover::map(&memory).expect("mapped");
    assert!(first.left().is_empty());
    let held = || rustix::fs::fstat(&memory).expect("a file").st_blocks * 512;
    assert!(held() <= 16 << 10, "{} bytes are held by nothing", held());
    let mut areas: Vec<Area> = std::iter::from_fn(|| first.take_area()).collect();
    assert_eq!(areas.len(), AREAS - 1);
    for area in &mut areas {
        Handover::warm(area, 1 << 16);
        area.bytes()[..1 << 16].fill(1);
    }
    assert!(held() >= (AREAS as i64 - 1) << 16);
    areas.into_iter().for_each(|area| first.release_area(area));
    assert!(held() <= (AREAS_WARM as i64) << 17, "{} bytes are held", held());
    assert_eq!(first.take_area().and_then(|area| area.index()), Some(1));
}

#[test]
fn what_is_no_memory_of_a_daemon_is_refused() {
    let short = memfd_create("short", MemfdFlags::CLOEXEC).expect("a memory");
    assert!(Handover::map(&short).is_err());
    let other = create().expect("a memory");
    rustix::io::pwrite(&other, &[9; 8], 0).expect("written");
    assert!(Handover::map(&other).is_err());
}
