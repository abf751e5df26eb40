//! Readahead beside a push.

use super::*;

const PROGRAM: Token = Token(9);

/// Far enough for guesses.
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// Has the program read one page, which the server answers with its block. Returns how many blocks
/// readahead asks for.
fn guesses_of_read(sim: &mut Sim, index: u32) -> usize {
    sim.schedule.read(sim.now, PROGRAM, sim.tree.big(), u64::from(index) * PAGE_BYTES as u64, 4096, Box::new(|_| ()));
    sim.settle();
    sim.now = sim.now.after(ROUND_TRIP);
    let mut guesses = 0;
    while let Some((_, command)) = sim.commands.pop() {
        match command {
            Command::Request { speculative: true, .. } => guesses += 1,
            Command::Request { key, wanted, .. } => {
                sim.answer(key, &wanted, true, true);
                sim.settle();
            }
            _ => {}
        }
    }
    guesses
}

/// A session whose server pushes to [`PROGRAM`].
fn pushed_to() -> (Sim, StreamKey) {
    let config = Config { granularity: Granularity::Block, ..Config::default() };
    let mut sim = Sim::new(Arc::new(Tree::plain()), 5, &config);
    sim.toggle_connection(0);
    let key = StreamKey { connection: 0, generation: 0, stream: StreamId(1) };
    sim.schedule.stream_started(key, StreamInfo { token: PROGRAM, audit: false, hinted: false });
    (sim, key)
}

#[test]
fn a_program_that_leaves_its_push_reads_ahead_as_if_nothing_had_been_learned() {
    let (mut sim, key) = pushed_to();
    assert_eq!([0, 96].map(|index| guesses_of_read(&mut sim, index)), [0, 0]);
    assert!(guesses_of_read(&mut sim, 48) > 0);
    // Nor is there a push to wait for once it is over.
    sim.schedule.stream_over(sim.now, key);
    let (mut sim, key) = pushed_to();
    assert_eq!([0, 96].map(|index| guesses_of_read(&mut sim, index)), [0, 0]);
    sim.schedule.stream_over(sim.now, key);
    assert!(guesses_of_read(&mut sim, 48) > 0);
}

#[test]
fn a_demand_that_the_push_brings_is_no_miss() {
    let (mut sim, key) = pushed_to();
    for index in [0, 16, 32] {
        sim.schedule.read(sim.now, PROGRAM, sim.tree.big(), index * PAGE_BYTES as u64, 4096, Box::new(|_| ()));
        sim.settle();
        sim.now = sim.now.after(ROUND_TRIP);
        for (_, command) in std::mem::take(&mut sim.commands) {
            let Command::Request { key: request, .. } = command else { continue };
            sim.schedule.on_the_way(sim.now, request, key);
        }
    }
    assert_eq!([96, 80].map(|index| guesses_of_read(&mut sim, index)), [0, 0]);
    assert!(guesses_of_read(&mut sim, 64) > 0, "these were");
}

#[test]
fn what_a_push_brings_is_not_guessed() {
    for pushed in [false, true] {
        let (mut sim, _) = pushed_to();
        sim.schedule.readahead.followers().pushed(PROGRAM);
        (0..9).for_each(|_| sim.schedule.readahead.followers().missed(PROGRAM));
        let pages: Vec<PageId> = (16..101).map(|index| PageId::new(sim.tree.big(), index)).collect();
        if pushed {
            sim.schedule.pushes().piece_received(pages.iter().copied());
        }
        assert_eq!(guesses_of_read(&mut sim, 0) == 0, pushed);
    }
}

#[test]
fn a_lone_page_ends_guessing_and_others_of_its_block_are_asked_for_by_themselves() {
    let config = Config { granularity: Granularity::Block, ..Config::default() };
    let mut sim = Sim::new(Arc::new(Tree::plain()), 5, &config);
    sim.toggle_connection(0);
    let big = sim.tree.big();
    for index in 0..3 {
        sim.schedule.read(sim.now, PROGRAM, big, index * PAGE_BYTES as u64, 4096, Box::new(|_| ()));
    }
    sim.settle();
    sim.now = sim.now.after(ROUND_TRIP);
    let (mut demands, mut guesses) = (Vec::new(), Vec::new());
    for (_, command) in std::mem::take(&mut sim.commands) {
        match command {
            Command::Request { key, speculative: true, .. } => guesses.push(key),
            Command::Request { key, wanted, .. } => demands.push((key, wanted)),
            _ => {}
        }
    }
    let [(key, Wanted::Block { page, .. })] = demands[..] else { panic!("{demands:?}") };
    assert!(!guesses.is_empty());
    sim.schedule.pages_arrived(sim.now, key, &[(page, Some(sim.tree.page(page)))]);
    guesses.into_iter().for_each(|key| sim.schedule.failed(sim.now, key, Failure::Later));
    sim.settle();
    let asked: Vec<Wanted> = std::mem::take(&mut sim.commands)
        .into_iter()
        .filter_map(|(_, command)| match command {
            Command::Request { wanted, speculative: false, .. } => Some(wanted),
            Command::Request { wanted, .. } => panic!("a guess: {wanted:?}"),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [Wanted::Pages(vec![PageId::new(big, 1), PageId::new(big, 2)])]);
}

/// Requests that wait to be answered: whose, what for, and whether they are guesses.
fn asked(sim: &mut Sim) -> Vec<(RequestKey, Token, Wanted, bool)> {
    let commands = std::mem::take(&mut sim.commands).into_iter();
    let requests = commands.filter_map(|(_, command)| match command {
        Command::Request { key, token, wanted, speculative, .. } => Some((key, token, wanted, speculative)),
        _ => None,
    });
    requests.collect()
}

#[test]
fn regress_each_program_asks_for_what_a_lone_page_leaves_in_its_own_name() {
    const OTHER: Token = Token(3);
    let config = Config { granularity: Granularity::Block, readahead_blocks: 0, ..Config::default() };
    let mut sim = Sim::new(Arc::new(Tree::plain()), 5, &config);
    sim.toggle_connection(0);
    let big = sim.tree.big();
    for (token, index) in [(PROGRAM, 0), (OTHER, 1), (PROGRAM, 2)] {
        sim.schedule.read(sim.now, token, big, index * PAGE_BYTES as u64, 4096, Box::new(|_| ()));
    }
    sim.settle();
    let [(key, PROGRAM, Wanted::Block { page, .. }, false)] = asked(&mut sim)[..] else { panic!("one demand") };
    sim.schedule.pages_arrived(sim.now, key, &[(page, Some(sim.tree.page(page)))]);
    sim.settle();
    let asked: Vec<_> = asked(&mut sim).into_iter().map(|(_, token, wanted, _)| (token, wanted)).collect();
    let of = |index| Wanted::Pages(vec![PageId::new(big, index)]);
    assert_eq!(asked, [(OTHER, of(1)), (PROGRAM, of(2))]);
}

#[test]
fn regress_a_refused_guess_is_asked_for_as_a_block_where_pages_cannot_be_verified() {
    // The chunk hashes have not come, and no proof of them is expected.
    let tree = Tree::large();
    let metadata = Arc::new(Metadata::open_early(&tree.bytes, &image::Limits::default()).unwrap());
    assert!(!metadata.takes_pages());
    let config = Config { granularity: Granularity::Block, ..Config::default() };
    let mut sim = Sim::new(Arc::new(Tree { metadata, ..tree }), 5, &config);
    sim.toggle_connection(0);
    let big = sim.tree.big();
    sim.schedule.read(sim.now, PROGRAM, big, 0, 4096, Box::new(|_| ()));
    sim.settle();
    let guess = asked(&mut sim).into_iter().find(|(.., is_guess)| *is_guess).expect("a guess");
    let (key, _, Wanted::Block { page, .. }, _) = guess else { panic!("{guess:?}") };
    sim.schedule.read(sim.now, PROGRAM, big, u64::from(page.index) * PAGE_BYTES as u64, 4096, Box::new(|_| ()));
    sim.settle();
    sim.commands.clear();
    let made = sim.schedule.readahead.made();
    sim.schedule.failed(sim.now, key, Failure::Later);
    assert_eq!(sim.schedule.readahead.made(), made - 1, "a refused guess is not judged");
    sim.pass_time(1_000_000);
    let again = asked(&mut sim);
    assert!(matches!(again[..], [(.., Wanted::Block { .. }, true)]), "{again:?}");
}

#[test]
fn regress_a_program_stays_with_its_connection_when_others_come_up() {
    let config = Config { granularity: Granularity::Block, readahead_blocks: 0, ..Config::default() };
    let mut sim = Sim::new(Arc::new(Tree::plain()), 5, &config);
    let connection_of = |sim: &mut Sim, index: u64| {
        sim.commands.clear();
        let offset = index * PAGE_BYTES as u64;
        sim.schedule.read(sim.now, PROGRAM, sim.tree.big(), offset, 4096, Box::new(|_| ()));
        sim.settle();
        let mut asked = sim.commands.iter().filter(|(_, command)| matches!(command, Command::Request { .. }));
        asked.next().map(|(connection, _)| *connection)
    };
    assert_eq!(PROGRAM.0 % CONNECTIONS as u128, 1);
    sim.toggle_connection(0);
    assert_eq!(connection_of(&mut sim, 0), Some(0));
    sim.toggle_connection(1);
    assert_eq!(connection_of(&mut sim, 96), Some(0), "the server pushes there");
    sim.schedule.end(PROGRAM);
    assert_eq!(connection_of(&mut sim, 48), Some(1), "another one of its number");
    sim.toggle_connection(1);
    assert_eq!(connection_of(&mut sim, 64), Some(0));
}
