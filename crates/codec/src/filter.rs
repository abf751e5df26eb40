//! Reversible filters that make machine code compress better.
//!
//! A call stores the distance to its target, so two calls of one function differ in their bytes. A
//! filter replaces such a distance by the target itself; equal targets then become equal bytes. A
//! filter never changes the number of bytes, and handles every chunk alone, so any chunk of a block
//! can be read by itself.
//!
//! Both directions walk the bytes forward and take the same decisions, because a decision depends
//! only on bytes that no filter step changes: opcodes, never operands. So each filter is a
//! bijection on every input, code or not. `position` is where the chunk stood in the file it was
//! first seen in.

mod aarch64;
mod delta;
mod x86_64;

/// What was done to a chunk before it was compressed. The discriminant is what stands on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Filter {
    /// Nothing.
    None = 0,
    /// Calls, jumps and instruction-relative operands of x86-64 hold their targets.
    X86_64 = 1,
    /// Calls and page addresses of AArch64 hold their targets.
    Aarch64 = 2,
    /// Records of 24 bytes, such as relocations, hold by how much they are above the one before.
    Records24 = 3,
    /// Records of 8 bytes, such as the index of exception tables, likewise.
    Records8 = 4,
    /// Deflate streams were expanded to their texts: not chunk by chunk but the block as a whole,
    /// by [`crate::deflate`].
    Deflate = 5,
}

impl Filter {
    /// Every filter, in the order of their numbers.
    pub const ALL: [Filter; 6] =
        [Filter::None, Filter::X86_64, Filter::Aarch64, Filter::Records24, Filter::Records8, Filter::Deflate];

    /// The filter with this number on disk, or `None` if this version knows none.
    pub const fn from_u8(number: u8) -> Option<Filter> {
        match number {
            0 => Some(Filter::None),
            1 => Some(Filter::X86_64),
            2 => Some(Filter::Aarch64),
            3 => Some(Filter::Records24),
            4 => Some(Filter::Records8),
            5 => Some(Filter::Deflate),
            _ => None,
        }
    }

    /// Whether it works chunk by chunk.
    pub const fn is_of_chunks(self) -> bool {
        !matches!(self, Filter::None | Filter::Deflate)
    }

    /// The number on disk.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// The name users type and dumps print.
    pub const fn name(self) -> &'static str {
        match self {
            Filter::None => "none",
            Filter::X86_64 => "x86-64",
            Filter::Aarch64 => "aarch64",
            Filter::Records24 => "records-24",
            Filter::Records8 => "records-8",
            Filter::Deflate => "deflate",
        }
    }

    /// The filter of this name, as printed by [`Filter::name`].
    pub fn from_name(name: &str) -> Option<Filter> {
        Filter::ALL.into_iter().find(|filter| filter.name() == name)
    }
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Applies `filter` to the chunk `bytes`, which began at byte `position` of its file. [`decode`]
/// undoes it. What works on whole blocks does nothing here.
#[cfg(feature = "encode")]
pub fn encode(filter: Filter, position: u64, bytes: &mut [u8]) {
    match filter {
        Filter::None | Filter::Deflate => {}
        Filter::X86_64 => x86_64::convert::<true>(position, bytes),
        Filter::Aarch64 => aarch64::convert::<true>(position, bytes),
        Filter::Records24 => delta::encode::<24>(position, bytes),
        Filter::Records8 => delta::encode::<8>(position, bytes),
    }
}

/// Undoes [`encode`] for the same whole chunk and `position`. Any bytes decode to something; none
/// fail.
pub fn decode(filter: Filter, position: u64, bytes: &mut [u8]) {
    match filter {
        Filter::None | Filter::Deflate => {}
        Filter::X86_64 => x86_64::convert::<false>(position, bytes),
        Filter::Aarch64 => aarch64::convert::<false>(position, bytes),
        Filter::Records24 => delta::decode::<24>(position, bytes),
        Filter::Records8 => delta::decode::<8>(position, bytes),
    }
}
