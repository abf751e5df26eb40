//! The engine against a simulated server, link, clock and storage, by seed.

mod flip;
mod fuzz;
mod hostile;
mod model;
mod pushes;
mod sim;
mod writers;
