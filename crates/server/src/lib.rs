//! The server: publishes the images of a store, answers demands, learns what programs touch, and
//! pushes ahead of them.
//!
//! One task serves one connection (`session`). It drives the wire's state machine and never waits
//! for a disk or for a prediction. Blocking threads read, in this order of importance: demands,
//! pieces of pushes, reading ahead, bundles. What all connections share is in `shared::Shared`.
//! Modules, from the top down; none imports one above it:
//!
//! - `accept`: listens, admits connections, ends the server in good order; `access`: who may do
//!   what;
//! - `session`: one connection; `done`: what comes back to it; `handles`: what it has open;
//! - `push`: the streams of one connection, fed from bundles (`bundle`, `bundler`) or compressed
//!   live (`builders`); `advice`: what the predictor wants pushed;
//! - `upload`: images that arrive; `catalog`: names, tags, open images (`published`); `collect`:
//!   which images stay;
//! - `volumes`: folders of mutable files, and the order in which their files are used;
//! - `device`, `record`: what each device has; `learned`, `learning`: what programs touch;
//!   `provider`, `blocks`: what is decoded in memory;
//! - `budget`, `buffers`, `readers`, `admission`, `processor`: memory, slots and processor time,
//!   shared fairly among peers (`peer`, `slow`); `account`: memory of metadata;
//! - `config`, `storage`, `metrics`, `admin`, `audit`, `log`, `panics`.
//!
//! Everything is bounded: see [`Config`]. A client can harm nothing but its own connection, and
//! neither can a panic.

mod accept;
mod access;
mod account;
mod admin;
mod admission;
mod advice;
mod audit;
mod blocks;
mod budget;
mod buffers;
mod builders;
mod bundle;
mod bundler;
mod catalog;
mod clock;
mod collect;
mod config;
mod decoded;
mod decoder;
mod demand;
mod descriptors;
mod device;
mod done;
mod error;
mod handles;
mod learned;
mod learning;
mod lock;
mod log;
mod lru;
mod manage;
mod mapping;
mod metrics;
mod name;
mod panics;
mod pattern;
mod peer;
mod processor;
mod proofs;
mod provider;
mod published;
mod push;
mod readers;
mod record;
mod session;
mod shared;
mod signed;
mod slow;
mod speed;
mod storage;
mod timestamp;
mod tls;
mod upload;
mod uses;
pub mod volumes;
mod warm;

pub use accept::{Reloader, Server, serve_blocking};
pub use access::{AccessError, IssuedToken, TokenFile, TokenInfo};
pub use catalog::{ListedImage, Listing};
pub use config::{
    AccessConfig, AuditConfig, Config, ConnectionConfig, ImageConfig, LearningConfig, Provider, Shares, StoreAt,
    TimestampKey, TlsFiles, UploadConfig, Uploads, VolumeConfig, WorkConfig,
};
pub use error::{Failure, ServerError};
pub use log::{Level, Logger};
pub use metrics::{Counter, Definition, Metrics};
pub use name::Name;

#[cfg(test)]
mod tests;
