//! Linux readahead and majority trend do what their papers say, and no more than their bounds
//! allow.

use super::*;
use crate::{LinuxReadahead, MajorityTrend};

fn pushed(predictor: &mut dyn Predictor, number: u32) -> Vec<u32> {
    let verdict = predictor.touch(Token(1), page(number), Moment(0));
    let order = verdict.push;
    order.map_or(Vec::new(), |order| predictor.pages(Token(1), &order).iter().map(|page| page.index).collect())
}

#[test]
fn readahead_doubles_along_a_sequential_file() {
    let mut linux = LinuxReadahead::new(|_| 100);
    assert_eq!(pushed(&mut linux, 0), [1, 2, 3, 4]);
    assert_eq!(pushed(&mut linux, 1), (5..13).collect::<Vec<_>>());
    assert_eq!(pushed(&mut linux, 2), [0; 0]);
    assert_eq!(pushed(&mut linux, 5), (13..29).collect::<Vec<_>>());
    assert_eq!(pushed(&mut linux, 13), (29..61).collect::<Vec<_>>());
    assert_eq!(pushed(&mut linux, 29), (61..93).collect::<Vec<_>>());
    assert_eq!(pushed(&mut linux, 61), (93..100).collect::<Vec<_>>(), "not past the end of the file");
}

#[test]
fn readahead_closes_its_window_at_random_reads() {
    let mut linux = LinuxReadahead::new(|_| 1000);
    assert_eq!(pushed(&mut linux, 500), [0; 0]);
    assert_eq!(pushed(&mut linux, 20), [0; 0]);
    assert_eq!(pushed(&mut linux, 21), [22, 23, 24, 25]);
    assert_eq!(pushed(&mut linux, 700), [0; 0]);
    assert_eq!(pushed(&mut linux, 22), [0; 0]);
    linux.end(Token(1), Moment(0));
    assert_eq!(pushed(&mut linux, 0), [1, 2, 3, 4]);
}

#[test]
fn trend_follows_a_stride_in_spite_of_noise() {
    let mut leap = MajorityTrend::new();
    for number in [0, 3, 6, 9, 500, 503, 506] {
        pushed(&mut leap, number);
    }
    assert_eq!(pushed(&mut leap, 509), [512, 515, 518, 521]);
    // A run of hits opens the window to eight pages.
    let mut widest = 0;
    for step in 0..60 {
        widest = widest.max(pushed(&mut leap, 512 + 3 * step).len());
    }
    assert_eq!(widest, 8);
}

#[test]
fn trend_orders_nothing_without_a_majority() {
    let mut leap = MajorityTrend::new();
    let mut number = 1u32;
    let total: usize = (0..200)
        .map(|_| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            pushed(&mut leap, number >> 8).len()
        })
        .sum();
    assert_eq!(total, 0);
}

#[test]
fn an_old_order_has_no_pages() {
    let mut linux = LinuxReadahead::new(|_| 100);
    let order = linux.touch(Token(1), page(0), Moment(0)).push.unwrap();
    assert_eq!(linux.pages(Token(1), &order).len(), 4);
    assert_eq!(linux.pages(Token(2), &order).len(), 0);
    linux.touch(Token(1), page(1), Moment(0));
    assert_eq!(linux.pages(Token(1), &order).len(), 0);
}
