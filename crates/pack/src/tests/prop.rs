//! Files of random shape come back byte for byte.

use proptest::prelude::*;

use super::build::*;
use crate::Options;
use crate::compare::{CompareOptions, compare};

/// A piece of a file: what it is made of and how long it is.
#[derive(Clone, Debug)]
enum Shape {
    Zeros(usize),
    Noise(u64, usize),
    Repeat(u8, usize),
}

fn shape() -> impl Strategy<Value = Shape> {
    // Around the borders of chunks and blocks, where mistakes live.
    let length = prop_oneof![Just(1usize), 4095..4098usize, 8190..8195usize, 1..70_000usize];
    prop_oneof![
        length.clone().prop_map(Shape::Zeros),
        (0..4u64, length.clone()).prop_map(|(seed, bytes)| Shape::Noise(seed, bytes)),
        (any::<u8>(), length).prop_map(|(byte, bytes)| Shape::Repeat(byte, bytes)),
    ]
}

fn contents(shapes: &[Shape]) -> Vec<u8> {
    shapes
        .iter()
        .flat_map(|shape| match shape {
            Shape::Zeros(bytes) => vec![0; *bytes],
            Shape::Noise(seed, bytes) => noise(*seed, *bytes),
            Shape::Repeat(byte, bytes) => vec![*byte; *bytes],
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn prop_files_of_any_shape_survive(
        files in proptest::collection::vec(proptest::collection::vec(shape(), 0..6), 1..8),
        pages in 1..=16u32,
    ) {
        let scratch = scratch();
        let source = scratch.path().join("source");
        for (index, shapes) in files.iter().enumerate() {
            write(&source.join(index.to_string()), contents(shapes));
        }
        let target = round_trip(directory(&source), scratch.path(), &Options { block_bytes: pages * 4096, ..quick() });
        let found = compare(&source, &target, &CompareOptions::default()).unwrap();
        prop_assert!(found.differences.is_empty(), "{:?}", found.differences);
    }
}
