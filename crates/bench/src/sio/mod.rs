//! `runnel-bench sio`: data files as in the SIO paper (Kuacharoen, Mooney, Madisetti), all systems
//! side by side in one run.
//!
//! A plan of the lab with the experiment `data` ([`crate::lab::data`]) and a report of its own.
//! [`run`] has the lab measure it; [`measured`] finds medians, [`limit`] says what is possible at
//! all, [`bar`] judges the project's bars, [`rows`] are what `--json` prints and the history keeps,
//! [`report`] is the page and the text. Times are seconds of the guest's clock.

pub mod bar;
pub mod limit;
pub mod measured;
pub mod report;
pub mod rows;
pub mod run;
