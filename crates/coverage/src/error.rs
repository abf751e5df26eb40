//! Errors of reading or making a coverage.

/// Why there is no coverage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoverageError {
    /// The bytes are no coverage file.
    #[error("no coverage file")]
    NotCoverage,
    /// A version that is not known.
    #[error(
        "version {found:?} of the coverage file is not known; this program reads version {}",
        crate::format::VERSION
    )]
    Version {
        /// What the file says.
        found: String,
    },
    /// A line that is not understood.
    #[error("line {line}: {reason}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// There is more than a file may have.
    #[error("{what}: more than {max}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        max: u64,
    },
    /// A label that cannot be written.
    #[error("{what} '{text}': expected 1 to {max} printable characters", max = crate::format::LABEL_BYTES_MAX)]
    Label {
        /// What it is for.
        what: &'static str,
        /// The label.
        text: String,
    },
    /// Coverages of different kernels.
    #[error("coverage of Linux {one} and of Linux {other} cannot be merged")]
    Releases {
        /// One release.
        one: String,
        /// Another.
        other: String,
    },
    /// There is nothing to merge.
    #[error("there is no coverage to merge")]
    Nothing,
    /// The linked kernel cannot be read.
    #[error("no linked kernel for x86-64 or AArch64 with symbols: {reason}")]
    Kernel {
        /// What is wrong.
        reason: &'static str,
    },
    /// The map of an instrumented kernel cannot be read.
    #[error("map of an instrumented kernel: {reason}")]
    Map {
        /// What is wrong.
        reason: String,
    },
    /// The counters are not those of the map.
    #[error("{found} counters, but the map has {expected} blocks")]
    Counters {
        /// Blocks of the map.
        expected: usize,
        /// Counters.
        found: usize,
    },
}
