//! Code assembled and compiled when the tests run, with known answers; real libraries; damage.

mod build;
mod fuzz;
mod reference;
mod tables;
mod trace;
