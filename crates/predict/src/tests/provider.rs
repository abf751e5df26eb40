//! The Provider's arithmetic on numbers worked out by hand.

use units::{ActionId, SegmentIndex};

use super::*;
use crate::provider::{normalised_variance, preload, segment_variance};

#[test]
fn variance_is_the_mean_squared_distance_from_the_average() {
    assert_eq!(segment_variance(&[]), 0.0);
    assert_eq!(segment_variance(&[7, 7, 7]), 0.0);
    assert_eq!(segment_variance(&[2, 4, 4, 4, 5, 5, 7, 9]), 4.0);
    let far = u64::MAX - 10;
    assert_eq!(segment_variance(&[far, far + 2]), 1.0, "large offsets lose no precision");
}

#[test]
fn variances_are_normalised_to_the_unit_interval() {
    assert_eq!(normalised_variance(&[2.0, 4.0, 10.0]), [0.0, 0.25, 1.0]);
    assert_eq!(normalised_variance(&[3.0, 3.0]), [0.0, 0.0]);
    assert_eq!(normalised_variance(&[]), [0.0; 0]);
}

#[test]
fn the_first_segments_and_the_scattered_ones_are_kept() {
    let scattered: Vec<u32> = (0..32).chain((0..32).map(|i| 1000 + i * 100)).chain(200..232).collect();
    let predictor = knowing(Config::default(), &[&scattered, &[5, 6, 7]]);
    let position = |page: PageId| (page.index != 6).then_some(u64::from(page.index));
    let kept = preload(predictor.actions().iter(), position, 0.5);
    let (one, two) = (ActionId(1), ActionId(2));
    assert_eq!(kept, [(one, SegmentIndex(0)), (one, SegmentIndex(1)), (two, SegmentIndex(0))]);
    assert_eq!(preload(predictor.actions().iter(), position, -1.0).len(), 4);
    assert_eq!(preload(predictor.actions().iter(), position, 1.0), [(one, SegmentIndex(0)), (two, SegmentIndex(0))]);
}
