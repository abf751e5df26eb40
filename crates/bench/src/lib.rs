//! What `runnel bench` and `runnel demo` run.
//!
//! Both drive the product as a user would, through child processes of the `runnel` binary, over a shaped link inside this
//! process ([`link`]). Programs are real ones of Debian ([`workload`]), started the same way from a local folder, from our
//! mount ([`product`]) and from the mounts of other systems ([`peer`]); [`site`] is what these have in common. [`stream`]
//! and [`demo`] put the parts together, [`predictors`] compares predictors without a network; results are [`row`]s and
//! [`table`]s. Times are seconds, sizes bytes. The command line fills in [`options::Options`] or [`demo::Options`] and
//! calls `run`.

pub mod demo;
pub mod hostile;
pub mod html;
pub mod interrupt;
pub mod lab;
pub mod launch;
pub mod link;
pub mod options;
pub mod pack;
pub mod peer;
pub mod plan_report;
pub mod plot;
pub mod predictors;
pub mod process;
pub mod processor;
pub mod product;
mod results;
pub mod row;
pub mod sio;
pub mod site;
pub mod specialise;
pub mod stage;
pub mod statistic;
pub mod stream;
pub mod table;
pub mod text;
pub mod workload;
