//! Progress of long work; the command line draws bars from it.

/// A part of the work with a total of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Listing the source. Counted in entries; the total is not known (0).
    Scan,
    /// Reading and hashing. Counted in bytes of the source's files, holes included.
    Survey,
    /// Looking into deflate streams. Counted in bytes of files that may have one; the total is not
    /// known (0).
    Expand,
    /// Sorting chunks into blocks. Counted in distinct chunks.
    Sort,
    /// Learning dictionaries; the total is not known (0).
    Learn,
    /// Compressing and writing. Counted in bytes of distinct chunks.
    Pack,
    /// Compressing everything again with some stages only, up to the one named; as `Pack`.
    Explain(&'static str),
    /// Writing the metadata and making the output durable. Counted in bytes of metadata.
    Finish,
    /// Writing files out of an image. Counted in bytes of the files, holes included.
    Extract,
}

/// Receives progress. Called from the threads that do the work, up to some thousand times a second,
/// so it should be cheap.
pub trait Progress: Sync {
    /// A new phase begins; `total` is 0 if it is not known.
    fn phase(&self, phase: Phase, total: u64);

    /// `amount` more of the current phase is done.
    fn advance(&self, amount: u64);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn phase(&self, _phase: Phase, _total: u64) {}

    fn advance(&self, _amount: u64) {}
}
