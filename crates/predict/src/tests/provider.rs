//! The Provider's arithmetic on numbers worked out by hand.

use units::{ActionId, SegmentIndex};

use super::*;
use crate::provider::{normalised_variance, preload};

#[test]
fn block_indices_are_normalised_before_their_variance_is_taken() {
    assert_eq!(normalised_variance(&[], &(0..=9)), 0.0);
    assert_eq!(normalised_variance(&[7, 7, 7], &(0..=9)), 0.0);
    assert_eq!(normalised_variance(&[3], &(3..=3)), 0.0, "one block is no range");
    assert_eq!(normalised_variance(&[10, 20], &(10..=20)), 0.25, "the two ends");
    assert_eq!(normalised_variance(&[10, 15, 20], &(10..=20)), 1.0 / 6.0);
    let (one, far) = (normalised_variance(&[0, 5], &(0..=10)), u64::MAX - 10);
    assert_eq!(normalised_variance(&[far, far + 5], &(far..=far + 10)), one, "where the range lies is no matter");
    assert_eq!(normalised_variance(&[0, 500], &(0..=1000)), one, "nor how large it is");
}

#[test]
fn the_first_segments_and_the_scattered_ones_are_kept() {
    let scattered: Vec<u32> = (0..32).chain((0..32).map(|i| 1000 + i * 100)).chain(200..232).collect();
    let predictor = knowing(Config::default(), &[&scattered, &[5, 6, 7]]);
    let block = |page: PageId| (page.index != 6).then_some(u64::from(page.index));
    let (one, two) = (ActionId(1), ActionId(2));
    // The second segment is spread over three quarters of the range: 0.74 squared / 12.
    let kept = |threshold: f64| preload(predictor.actions().iter(), block, threshold);
    assert_eq!(kept(0.04), [(one, SegmentIndex(0)), (one, SegmentIndex(1)), (two, SegmentIndex(0))]);
    assert_eq!(kept(0.06), [(one, SegmentIndex(0)), (two, SegmentIndex(0))]);
    assert_eq!(kept(-1.0).len(), 4);
}
