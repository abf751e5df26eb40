//! One file per subcommand: its arguments, and what it does with them.

#[cfg(feature = "full")]
pub mod bench;
pub mod cat;
pub mod check;
#[cfg(feature = "full")]
pub mod demo;
pub mod dump;
pub mod enter;
#[cfg(feature = "full")]
pub mod extract;
pub mod hot;
pub mod images;
pub mod ls;
pub mod mount;
#[cfg(feature = "full")]
pub mod pack;
pub mod push;
pub mod record;
pub mod redirect;
pub mod run;
#[cfg(feature = "full")]
pub mod serve;
pub mod session;
pub mod status;
pub mod trust;
pub mod umount;
