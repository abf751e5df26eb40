//! Scenarios united.

use proptest::prelude::*;

use super::*;
use crate::blocks::union;
use crate::{CoverageError, ORDER_UNKNOWN, merge};

#[test]
fn phases_and_blocks_are_united_and_the_least_order_stays() {
    let more = function("vfs_read", 300, 7, &[block(30, 40, "b")]);
    let other = coverage("other", vec![function("panic", 9, ORDER_UNKNOWN, &[block(0, 9, "s")]), more]);
    let merged = merge(vec![sample(), other.clone()]).unwrap();
    assert_eq!(merged, merge(vec![other, sample()]).unwrap());
    let names: Vec<&str> = merged.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["panic", "start_kernel", "vfs_read"]);
    let blocks = [block(0, 30, "bs"), block(30, 10, "bs"), block(40, 20, "b"), block(60, 10, "bs")];
    let blocks = [block(0, 40, "bs"), blocks[2], blocks[3]];
    assert_eq!(merged.function("vfs_read").unwrap(), &function("vfs_read", 300, 1, &blocks));
    let scenarios: Vec<&str> = merged.scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
    assert_eq!(scenarios, ["other", "web server"]);
}

#[test]
fn a_coverage_merged_with_itself_is_the_same() {
    assert_eq!(merge(vec![sample(), sample()]).unwrap(), sample());
}

#[test]
fn functions_of_different_sizes_count_as_a_whole() {
    let other = coverage("reduced", vec![function("vfs_read", 280, 0, &[block(0, 8, "s")])]);
    let merged = merge(vec![sample(), other]).unwrap();
    assert_eq!(merged.function("vfs_read").unwrap(), &function("vfs_read", 300, 0, &[block(0, 300, "bs")]));
    let thawed = Function { service: true, ..function("start_kernel", 0, ORDER_UNKNOWN, &[]) };
    let merged = merge(vec![sample(), coverage("thawed", vec![thawed])]).unwrap();
    let whole = function("start_kernel", 1000, 2, &[block(0, 1000, "bs")]);
    assert_eq!(merged.function("start_kernel").unwrap(), &whole);
}

#[test]
fn other_releases_and_nothing_are_refused() {
    let other = Coverage { release: "6.12.1".to_string(), ..sample() };
    let error = merge(vec![sample(), other]).unwrap_err();
    assert!(error.to_string().contains("6.12.117") && error.to_string().contains("6.12.1 "), "{error}");
    assert_eq!(merge(Vec::new()), Err(CoverageError::Nothing));
}

proptest! {
    #[test]
    fn ref_a_union_is_that_of_each_byte(
        given in prop::collection::vec((0u32..60, 1u32..20, prop::sample::select(vec!["b", "s", "bs"])), 0..12)
    ) {
        let given: Vec<Block> = given.into_iter().map(|(offset, bytes, phases)| block(offset, bytes, phases)).collect();
        let flags = |blocks: &[Block], at: u32| {
            let here = blocks.iter().filter(|block| (block.offset..block.offset + block.bytes).contains(&at));
            here.fold((false, false), |(boot, service), block| (boot | block.boot, service | block.service))
        };
        let found = union(&given);
        for at in 0..90 {
            prop_assert_eq!(flags(&found, at), flags(&given, at), "byte {}", at);
        }
        for pair in found.windows(2) {
            let (end, next) = (pair[0].end(), u64::from(pair[1].offset));
            prop_assert!(end < next || end == next && (pair[0].boot, pair[0].service) != (pair[1].boot, pair[1].service));
        }
    }
}
