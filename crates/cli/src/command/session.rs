//! The options that every command with a mounted image shares.

use std::time::Duration;

use clap::ValueEnum;
use client::{Ablation, Config, Granularity};
use connection::Waiting;

use crate::command::signed::NameArgs;
use crate::command::trust::TrustArgs;

/// How a session talks to its server.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    /// TCP connections to the server (0: one per core)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub connections: usize,

    /// What a miss asks the server for
    #[arg(long, value_enum, default_value_t = Unit::Auto, hide = true)]
    pub granularity: Unit,

    /// Largest readahead window for programs the server does not know yet, in blocks (0: off)
    #[arg(long, value_name = "BLOCKS", default_value_t = Config::default().readahead_blocks)]
    pub readahead: u32,

    /// Give reads an error after SECONDS without a server, instead of waiting for its return
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "30")]
    pub soft: Option<u64>,

    /// Wait for the server's return (the default)
    #[arg(long, conflicts_with = "soft")]
    pub hard: bool,

    /// Refuse pushed pages: the server sends only what is asked for
    #[arg(long)]
    pub no_push: bool,

    /// Leave out a part of the I/O path, to measure what it is worth; may be given several times
    #[arg(long, value_enum, value_name = "PART", hide = true)]
    pub ablation: Vec<Part>,

    #[command(flatten)]
    pub names: NameArgs,

    #[command(flatten)]
    pub trust: TrustArgs,
}

/// See [`Ablation`].
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A connection of its own for each demand
    Short,
    /// Page buffers from the system instead of the pool
    Alloc,
}

/// See [`Granularity`].
#[derive(Clone, Copy, ValueEnum)]
pub enum Unit {
    /// Blocks, but pages on links so thin that a block takes much longer
    Auto,
    /// The whole compressed block
    Block,
    /// Single pages
    Page,
}

impl SessionArgs {
    /// As the client takes them.
    ///
    /// # Errors
    /// The configuration of the device is wrong.
    pub fn config(&self) -> anyhow::Result<Config> {
        Ok(Config {
            connections: self.connections,
            granularity: match self.granularity {
                Unit::Auto => Granularity::Auto,
                Unit::Block => Granularity::Block,
                Unit::Page => Granularity::Page,
            },
            readahead_blocks: self.readahead,
            waiting: self.soft.map_or(Waiting::Hard, |seconds| Waiting::Soft(Duration::from_secs(seconds))),
            ablation: Ablation {
                short_connections: self.ablation.contains(&Part::Short),
                allocated_pages: self.ablation.contains(&Part::Alloc),
            },
            connection: connection::Config { push: !self.no_push, ..self.trust.connection()? },
            signed: self.names.signed()?,
            ..Config::default()
        })
    }
}
