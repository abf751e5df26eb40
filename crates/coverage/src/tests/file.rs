//! The file and its dump.

use proptest::prelude::*;

use super::*;
use crate::format::{FIRST_LINE, MAGIC};
use crate::{CoverageError, ORDER_UNKNOWN, dump, read, write};

const TEXT: &str = "runnel coverage 1
release 6.12.117
scenario qemu 2 3 web server
function start_kernel 1000 2 b 0+1000b
function vfs_read 300 1 bs 0+40bs 60+10s
end 2
";

#[test]
fn a_file_is_a_line_for_each_function() {
    assert_eq!(write(&sample()).unwrap(), TEXT);
    assert_eq!(read(TEXT.as_bytes()).unwrap(), sample());
    assert!(TEXT.as_bytes().starts_with(&MAGIC) && TEXT.starts_with(FIRST_LINE));
}

#[test]
fn what_is_not_known_is_written_as_such() {
    let mut thawed = sample();
    thawed.functions[1] = Function { service: true, ..function("vfs_read", 0, ORDER_UNKNOWN, &[]) };
    let text = write(&thawed).unwrap();
    assert!(text.contains("function vfs_read 0 - s\n"), "{text}");
    assert_eq!(read(text.as_bytes()).unwrap(), thawed);
}

#[test]
fn a_dump_is_in_the_order_of_execution() {
    let mut text = String::new();
    dump(&sample(), &mut text).unwrap();
    let expected = "coverage of Linux 6.12.117
scenario web server (qemu): functions 2 blocks 3
in all: functions 2 with bytes 1300, of which executed 1050
in service: functions 1 with bytes 300, of which executed 50
only before: functions 1 with bytes 1000, of which executed 1000
 order ran  executed     bytes blocks function
     1 bs         50       300      2 vfs_read
     2 b        1000      1000      1 start_kernel
";
    assert_eq!(text, expected);
}

#[test]
fn other_versions_and_other_files_are_refused() {
    assert_eq!(read(b""), Err(CoverageError::NotCoverage));
    assert_eq!(read(b"runnel c"), Err(CoverageError::NotCoverage));
    let newer = TEXT.replacen("coverage 1", "coverage 2", 1);
    let error = read(newer.as_bytes()).unwrap_err();
    assert_eq!(error, CoverageError::Version { found: "2".to_string() });
    assert!(error.to_string().contains("reads version 1"), "{error}");
}

#[test]
fn lines_that_are_not_understood_are_named() {
    for (good, bad, line) in [
        ("release 6.12.117", "release ", 2),
        ("qemu 2", "strace 2", 3),
        ("2 3 web server", "2 3", 3),
        ("2 3 web", "2 -3 web", 3),
        ("function start_kernel 1000 2 b", "function start_kernel 1000 2 x", 4),
        ("1000 2 b", "1000 4294967295 b", 4),
        ("1000 2 b", "01000 2 b", 4),
        ("1000 2 b", "1000000000 2 b", 4),
        ("0+1000b", "0+1001b", 4),
        ("0+1000b", "0+1000s", 4),
        ("0+1000b", "0+1000", 4),
        ("0+1000b", "0+0b", 4),
        ("0+1000b", "0+1000b more", 4),
        ("0+40bs 60+10s", "0+40bs 30+10s", 5),
        ("0+40bs 60+10s", "60+10s 0+40bs", 5),
        ("vfs_read", "a_read", 5),
        ("vfs_read", "start_kernel", 5),
        ("function vfs_read", "option vfs_read", 5),
        ("end 2", "end 3", 6),
        ("end 2\n", "end 2", 6),
        ("end 2\n", "end 2\nend 2\n", 7),
        ("web server", "web\u{7}server", 3),
    ] {
        assert!(TEXT.contains(good), "{good}");
        match read(TEXT.replacen(good, bad, 1).as_bytes()) {
            Err(CoverageError::Line { line: found, .. }) => assert_eq!(found, line, "{good} -> {bad}"),
            other => panic!("{good} -> {bad}: {other:?}"),
        }
    }
    let mut bytes = TEXT.as_bytes().to_vec();
    bytes[20] = 0xff;
    assert!(matches!(read(&bytes), Err(CoverageError::Line { line: 2, .. })));
}

#[test]
fn a_file_that_ends_early_is_refused() {
    for length in 0..TEXT.len() {
        assert!(read(&TEXT.as_bytes()[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn what_would_not_be_read_is_not_written() {
    let refused = |change: &dyn Fn(&mut Coverage)| {
        let mut coverage = sample();
        change(&mut coverage);
        assert!(write(&coverage).is_err(), "{coverage:?}");
    };
    refused(&|coverage| coverage.functions.reverse());
    refused(&|coverage| coverage.functions[0].name = "two words".to_string());
    refused(&|coverage| coverage.functions[0].name.clear());
    refused(&|coverage| coverage.functions[0].bytes = 999);
    refused(&|coverage| coverage.functions[0].boot = false);
    refused(&|coverage| coverage.functions[1].blocks.reverse());
    refused(&|coverage| coverage.release = "6\n12".to_string());
    refused(&|coverage| coverage.scenarios[0].name = "x".repeat(300));
}

proptest! {
    #[test]
    fn prop_a_damaged_file_is_refused_or_another_good_one(
        changes in prop::collection::vec((0..TEXT.len(), prop::sample::select(b" \n+-bs0129xq\xff".to_vec())), 1..4),
        cut in 0..TEXT.len() * 2,
    ) {
        let mut bytes = TEXT.as_bytes().to_vec();
        changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        bytes.truncate(cut);
        if let Ok(coverage) = read(&bytes) {
            // Every file has one form: what is accepted is written the same.
            prop_assert_eq!(write(&coverage).unwrap().into_bytes(), bytes);
        }
    }
}
