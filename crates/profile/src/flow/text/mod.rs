//! The text form of a flow graph, to be written by hand.
//!
//! ```text
//! flow 1                            # the version of this form, always the first line
//! size 1048576                      # bytes of the file; default: up to the last block named
//! block 4096                        # bytes of a block (the default)
//! updates live                      # or static: use does not change the weights (default: live)
//! start -> 128 x10                  # block 128 comes first, 10 times; default: the first named
//! 128 -> 64 x5                      # after 128 came 64, 5 times
//! 128 -> 192 -> 224                 # a path is walked from left to right; x1 may be left out
//! 0..15 -> 16                       # so is a range: 0, 1, … 15, 16. Both ends belong to it
//! seq 0..63 x2                      # a path without arrows
//! used 70..80                       # used, and nothing known of the order
//! stage "intro" 0..99 share 80%     # a part of the file, its share of the link; by priority
//! stage "end" 200..230 250 rate 16000   # or bytes per second; with neither, what the others leave
//! ```
//!
//! Weights of one edge that is named twice add up. `#` begins a comment. What [`parse`] accepts and
//! [`print`] writes is the same graph; the print of a graph parsed is another spelling of the text,
//! without its comments.

mod parse;
mod print;
mod word;

pub use parse::parse;
pub use print::print;
