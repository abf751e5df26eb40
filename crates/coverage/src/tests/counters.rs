//! Counters of an instrumented kernel, and lists of thawed functions.

use super::*;
use crate::{BlockMap, CoverageError, ORDER_UNKNOWN, Phase, from_counters, from_thawed, write};

fn map() -> BlockMap {
    let functions = vec![
        ("vfs_read".to_string(), 100, vec![(0, 40), (40, 20), (64, 8)]),
        ("init".to_string(), 10, vec![(0, 10)]),
        ("quiet".to_string(), 7, vec![]),
        ("init".to_string(), 10, vec![(0, 4), (4, 6)]),
        ("show".to_string(), 30, vec![(0, 30)]),
        ("show".to_string(), 20, vec![(0, 10), (10, 10)]),
    ];
    BlockMap::new("6.12.117", functions).unwrap()
}

#[test]
fn a_counter_that_is_not_zero_is_a_block_that_ran() {
    let found = from_counters(&map(), &[1, 0, 255, 0, 0, 1, 0, 0, 0], Phase::Service, "device").unwrap();
    let read = function("vfs_read", 100, ORDER_UNKNOWN, &[block(0, 40, "s"), block(64, 8, "s")]);
    // Of the two functions of this name, which have one size, one ran partly.
    let init = function("init", 10, ORDER_UNKNOWN, &[block(4, 6, "s")]);
    // One that has no counter may have run, in service too.
    let quiet = function("quiet", 7, ORDER_UNKNOWN, &[block(0, 7, "s")]);
    assert_eq!(found.functions, [init, quiet, read]);
    let expected = Scenario { name: "device".to_string(), how: How::Instrumented, functions: 3, blocks: 4 };
    assert_eq!(found.scenarios, [expected]);
    assert!(write(&found).unwrap().contains("function init 10 - s 4+6s\n"));
}

#[test]
fn names_of_functions_of_different_sizes_count_as_a_whole() {
    let found = from_counters(&map(), &[0, 0, 0, 0, 0, 0, 0, 1, 0], Phase::Whole, "device").unwrap();
    let show = function("show", 30, ORDER_UNKNOWN, &[block(0, 30, "bs")]);
    assert_eq!(found.functions[1..], [show]);
}

#[test]
fn neighbours_are_one_block() {
    let found = from_counters(&map(), &[9, 9, 9, 0, 0, 0, 0, 0, 0], Phase::Boot, "device").unwrap();
    let blocks = [block(0, 60, "b"), block(64, 8, "b")];
    let quiet = function("quiet", 7, ORDER_UNKNOWN, &[block(0, 7, "bs")]);
    assert_eq!(found.functions, [quiet, function("vfs_read", 100, ORDER_UNKNOWN, &blocks)]);
}

#[test]
fn counters_of_another_map_are_refused() {
    for count in [0, 8, 10] {
        let error = from_counters(&map(), &vec![1; count], Phase::Boot, "device").unwrap_err();
        assert_eq!(error, CoverageError::Counters { expected: 9, found: count });
    }
}

#[test]
fn a_map_is_read_as_it_was_written_and_never_damaged() {
    let text = map().write();
    assert_eq!(BlockMap::read(text.as_bytes()).unwrap(), map());
    assert_eq!((map().blocks(), map().functions().len(), map().release()), (9, 6, "6.12.117"));
    for length in 0..text.trim_end().len() {
        assert!(BlockMap::read(&text.as_bytes()[..length]).is_err(), "{length} bytes");
    }
    for (good, bad) in [
        ("block map 1", "block map 2"),
        ("\"release\":", "\"more\":1,\"release\":"),
        ("[40,20]", "[30,20]"),
        ("[64,8]", "[64,0]"),
        ("[64,8]", "[64,37]"),
        ("[64,8]", "[64,-1]"),
        ("[64,8]", "[64,8,1]"),
        ("vfs_read", "vfs read"),
        ("6.12.117", ""),
        ("\"bytes\":100", "\"bytes\":100000000"),
    ] {
        assert!(text.contains(good), "{good}");
        let error = BlockMap::read(text.replacen(good, bad, 1).as_bytes()).unwrap_err();
        assert!(matches!(error, CoverageError::Map { .. }), "{good} -> {bad}: {error}");
    }
}

#[test]
fn thawed_functions_ran_in_service_as_a_whole() {
    let text =
        "# page thaws first\n0xffffffff81234000 3 vfs_read+0x1c/0x40\n\nvfs_write\n  7 show+0x8  \n0x1 1 show/0x9\n";
    for wrong in ["0x10 0xffffffff81\n", "vfs_read+0x10/0x200 [ext4]\n"] {
        let error = from_thawed(wrong, "6.12.117", None, "device").unwrap_err();
        assert!(matches!(error, CoverageError::Line { line: 1, .. }));
    }
    let data = "0x2 1 kallsyms_names+0x4/0x2d468\n0x3 1 __frozen_text_data+0x0/0x1bcc0\n";
    let text = format!("{data}{}", text.replace("show/0x9", "show"));
    let found = from_thawed(&text, "6.12.117", None, "device").unwrap();
    let unknown = |name: &str| Function { service: true, ..function(name, 0, ORDER_UNKNOWN, &[]) };
    let read = function("vfs_read", 0x40, ORDER_UNKNOWN, &[block(0, 0x40, "s")]);
    assert_eq!(found.functions, [unknown("show"), read, unknown("vfs_write")]);
    assert_eq!(found.scenarios[0].how, How::Thawed);
    assert!(from_thawed("", "6.12.117", None, "").is_err(), "a scenario has a name");
}
