//! The text form: what it means, mistakes, fuzzing.

use super::properties::check;
use super::*;

#[test]
fn the_text_of_the_documentation_means_what_it_says() {
    let graph = graph(
        "size 1048576   # bytes of the file\nblock 4096\n\nupdates static\nstart -> 128 x10\n128 -> 64 x5\n128->192->224\n\
         0..15 -> 16\nseq 0..63 x2\n  used 70..80 # no order\nstage \"intro\" 0..99 share 80%\n\
         stage \"end\" 200..230 250 rate 16000\nstage \"# last\" 255",
    );
    assert_eq!(
        printed(&graph),
        "flow 1\nsize 1048576\nblock 4096\nupdates static\nstart -> 128 x10\nseq 0..16 x3\nseq 16..63 x2\n\
         128 -> 64 x5\n128 -> 192\n192 -> 224\nused 70..80\nstage \"intro\" 0..99 share 80%\n\
         stage \"end\" 200..230 250 rate 16000\nstage \"# last\" 255\n"
    );
    assert_eq!(graph.entry(), [Edge { to: 128, weight: 10 }]);
    let short = text::parse("flow 1\n5 -> 7").unwrap();
    assert_eq!((short.layout().file_bytes(), short.traversal()), (8 * 4096, vec![5, 7]));
    assert_eq!(short.updates, Updates::Live);
    assert_eq!(text::parse("flow 1").unwrap(), FlowGraph::new(layout(0)));
    assert_eq!(printed(&text::parse("flow 1\n1 -> 0\n0 -> 1").unwrap()).lines().last(), Some("1 -> 0"));
}

#[test]
fn mistakes_are_told_with_line_column_and_remedy() {
    let many = format!("flow 1\n{}", "used 0..1023\n".repeat(9300));
    let fan = "flow 1\n0 -> 1\n0 -> 2\n0 -> 3\n0 -> 4\n0 -> 5";
    for (text, place, problem, instead) in [
        ("", (1, 1), "empty", "`flow 1`"),
        ("# only a comment", (1, 1), "empty", "`flow 1`"),
        ("seq 0..3", (1, 1), "`seq` stands where the text should begin", "`flow 1`"),
        ("flow 2", (1, 6), "version is unknown", "`flow 1`"),
        ("flow 1 2", (1, 8), "`2` stands where the line should end", "line of its own"),
        ("flow 1\nfoo 3", (2, 1), "no line begins with `foo`", "`seq 0..63`"),
        ("flow 1\n\n  12 40", (3, 6), "`40` stands where `->` should", "12 -> 40"),
        ("flow 1\n12 -> x3", (2, 7), "`x3` stands where a block should", "0..15"),
        ("flow 1\n12 ->", (2, 6), "the line ends where a block should", "0..15"),
        ("flow 1\n12 -> 40 3", (2, 10), "`3` stands where the line should end", "take it away"),
        ("flow 1\n12 -> 40 x0", (2, 10), "`x0` is no weight", "x1 to x4096"),
        ("flow 1\n12 -> 40 times", (2, 10), "`times` is no weight", "x1 to x4096"),
        ("flow 1\n5..3 -> 9", (2, 1), "goes down", "write 3..5"),
        ("flow 1\n5 -> 5", (2, 1), "leads nowhere", "take it away"),
        ("flow 1\n5 -> 1048576", (2, 6), "block 1048576", "larger blocks"),
        ("flow 1\nä", (2, 1), "`ä` means nothing", "comment after `#`"),
        ("flow 1\nä -> 3", (2, 1), "means nothing", "numbers"),
        ("flow 1\nstage intro 0", (2, 7), "where a name should", "in quotes"),
        ("flow 1\nstage \"ä\" 0 share 80", (2, 19), "no percentage", "share 80%"),
        ("flow 1\nstage \"a\" 0 share 101%", (2, 19), "no percentage", "share 80%"),
        ("flow 1\nstage \"a\" 0 fast", (2, 13), "where a share should", "rate 16000"),
        ("flow 1\nstage \"a 0", (2, 7), "closing quote", "\"name\""),
        ("flow 1\nstage \"a\" 0\nstage \"b\" 0..2", (3, 7), "block 0 is in an earlier stage", "correct"),
        ("flow 1\nsize 4097\n0 -> 2", (3, 6), "no block 2: 4097 bytes make 2 blocks", "size 12288"),
        ("flow 1\nsize 5\nsize 5", (3, 6), "a second size", "keep one"),
        ("flow 1\nblock 1000", (2, 7), "blocks of 1000 bytes", "power of two"),
        ("flow 1\nupdates sometimes", (2, 9), "`sometimes` stands", "`updates live`"),
        ("flow 1\nsize 99999999999999999999", (2, 6), "more than 64 bits", "smaller"),
        ("flow 1\nsize 18446744073709551615", (2, 1), "take larger blocks", "change `block`"),
        (fan, (6, 1), "0 leads to more than 4 blocks", "`used`"),
        ("flow 1\n0 -> 1 x4000\n0 -> 1 x97", (3, 1), "add up to 4097", "halve"),
        (&many, (9218, 1), "too many steps", "weight"),
    ] {
        let error = text::parse(text).unwrap_err();
        assert_eq!((error.line, error.column), place, "{:?}: {error}", &text[..text.len().min(99)]);
        assert!(error.problem.contains(problem), "{text:?}: {error}");
        assert!(error.instead.contains(instead), "{text:?}: {error}");
    }
}

/// The invariant: no text makes the parser panic; what it accepts keeps all rules and is the same
/// graph when printed and parsed, and encoded and decoded.
fn fuzz_one(text: &str) -> bool {
    let graph = match text::parse(text) {
        Ok(graph) => graph,
        Err(error) => {
            assert!(error.line >= 1 && error.column >= 1 && !error.instead.is_empty());
            assert!(error.line as usize <= text.lines().count().max(1), "{error}");
            return false;
        }
    };
    check(&graph);
    assert_eq!(text::parse(&printed(&graph)).as_ref(), Ok(&graph), "{text:?}");
    assert_eq!(decode(&graph.encode()).as_ref(), Ok(&graph), "{text:?}");
    true
}

#[test]
fn fuzz_text() {
    const PIECES: [&str; 34] = [
        "flow 1\n", "\n", " ", "start", "->", "..", "seq", "used", "stage", "\"a\"", "\"b c\"", "share", "rate", "%",
        "size", "block", "updates", "live", "static", "x3", "x4096", "0", "1", "7", "15", "40", "200", "4096",
        "500000", "#", "\"", "ä", "x", "1048576",
    ];
    let good = printed(&sample());
    let mut rng = SplitMix64(3);
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut text = if round % 3 == 0 { "flow 1\n".to_string() } else { good.clone() };
        for _ in 0..1 + rng.below(if round % 3 == 0 { 20 } else { 3 }) {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let at = places[rng.below(places.len() as u64) as usize];
            let piece = PIECES[rng.below(PIECES.len() as u64) as usize];
            match rng.below(4) {
                _ if round % 3 == 0 => text.push_str(&format!("{piece} ")),
                0 => text.truncate(at),
                1 => text.replace_range(at..at + text[at..].chars().next().map_or(0, char::len_utf8), piece),
                _ => text.insert_str(at, &format!(" {piece} ")),
            }
        }
        accepted += usize::from(fuzz_one(&text));
    }
    assert!(accepted > 500, "only {accepted} texts were accepted");
}
