//! `runnel-bench launch`: starts of local programs from slow disks, with and without prefetching.
//!
//! [`tree`] makes one Debian system with all programs and an ext4 image of it, once. The crate
//! `disk` serves that image as a disk whose reads take as long as a model says, and [`place`]
//! starts programs in it, cold or warm. [`touched`] learns exactly which pages a program touches,
//! in which order, on a disk without delay and without read-ahead; [`fetch`] prefetches such sets:
//! all of it in the best way we know (the bound that plans are compared with), whole files, or
//! mapped files. [`product`] is what `runnel` itself reaches, by its own command lines. [`results`]
//! keeps what was measured and makes rows of it, [`bar`] judges, [`report`] draws the page, [`run`]
//! puts the parts together.
//!
//! Times are seconds, sizes bytes, positions in files pages of 4 KiB.

pub mod bar;
pub mod fetch;
pub mod options;
pub mod place;
pub mod product;
pub mod program;
pub mod report;
pub mod results;
pub mod run;
pub mod touched;
pub mod tree;
