//! `runnel-bench pack`: our packer beside SquashFS, EROFS, DwarFS and one compressed stream, in one
//! run.
//!
//! [`tree`] makes the trees, [`plan`] says which images are made of each, [`packer`] and [`peer`]
//! make them as child processes whose cost [`measure`] takes, [`row`] keeps what came out. Every
//! image of ours is decoded back and compared with its tree. [`startup`] measures what a start
//! reads: [`read_set`] records which pages, [`layout`] tells from our metadata which blocks they
//! need, [`extent`] does so for others, and [`device`] counts what a loop device really gives.
//! [`sorter`] compares ways to sort chunks. [`bar`] judges, [`report`] draws the page,
//! [`text_report`] prints. [`run`] puts the parts together.

pub mod bar;
pub mod device;
pub mod extent;
pub mod layout;
pub mod measure;
pub mod options;
pub mod packer;
pub mod peer;
pub mod plan;
pub mod read_set;
pub mod reference;
pub mod report;
pub mod result;
pub mod row;
pub mod run;
pub mod sorter;
pub mod startup;
pub mod text_report;
pub mod tree;
