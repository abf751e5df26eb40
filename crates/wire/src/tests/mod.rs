//! Tests of the protocol as a whole. `rig` is the simulated link, `samples` makes messages at
//! random.

mod deadlines;
mod frames;
mod fuzz;
mod hostile;
mod pieces;
mod push;
mod rig;
mod samples;
mod session;
mod sim;
mod upload;
mod volume;
