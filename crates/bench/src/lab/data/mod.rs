//! The experiment `data`: files instead of programs, as in the SIO paper (Kuacharoen, Mooney,
//! Madisetti). Host and guest share these tables and what follows from them.
//!
//! A row is `data LINK SYSTEM CASE RUNS`. [`case`] says which cases there are, [`pattern`] where
//! each of them reads or what it writes, [`content`] what the files hold, and [`game`] makes a
//! program whose pages and scenes are used in a known order. The host lays the files into [`TREE`],
//! a tree as those of programs, so that every system of the lab delivers them without being
//! changed; the guest's side is [`super::guest::data`].

pub mod case;
pub mod content;
pub mod game;
pub mod pattern;

/// Name of the experiment in plans.
pub const EXPERIMENT: &str = "data";

/// Name of the tree with all files.
pub const TREE: &str = "data";

/// Name of the tree with the game's program alone, from which its image is packed.
pub const GAME_TREE: &str = "game";

/// Changes when files or patterns are made in another way: results of different versions cannot be
/// compared.
pub const VERSION: u32 = 1;
