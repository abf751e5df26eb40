//! The server: publishes the images of a store, answers demands, learns what programs touch, and pushes ahead of them.
//!
//! One task serves one connection ([`session`]): it drives the wire's state machine and never waits for a disk or for a
//! prediction. Reading happens on blocking threads, in this order of importance: demands, pieces of pushes, reading
//! ahead, bundles. What the connections share is in `shared::Shared`:
//!
//! - `catalog`: names, tags, open images (`published`), uploads (`upload`);
//! - `push`: the streams of one connection, fed from bundles (`bundle`) or compressed live;
//! - `provider` and `blocks`: what is decoded in memory; `learned`: actions in the store; `device`: what each device has;
//! - `volumes`: folders of mutable files beside the images, and the order in which their files are used;
//! - `peer`: whom memory, reads, places and processor time are shared by (`budget`, `admission`,
//!   `processor`); `account`: memory of metadata and of what is learned (`learning`); `panics`:
//!   what ends with one connection;
//! - `metrics`, `admin`, `log`.
//!
//! Everything is bounded: see [`Config`]. A client can harm nothing but its own connection, and neither can a panic (`panics`).

mod accept;
mod access;
mod account;
mod admin;
mod admission;
mod advice;
mod blocks;
mod budget;
mod buffers;
mod builders;
mod bundle;
mod bundler;
mod catalog;
mod clock;
mod config;
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
mod metrics;
mod name;
mod panics;
mod peer;
mod processor;
mod provider;
mod published;
mod push;
mod readers;
mod record;
mod session;
mod shared;
mod slow;
mod storage;
mod tls;
mod upload;
pub mod volumes;

pub use accept::{Reloader, Server, serve_blocking};
pub use catalog::{ListedImage, Listing};
pub use config::{
    Config, ConnectionConfig, ImageConfig, LearningConfig, Provider, Shares, StoreAt, TlsFiles, UploadConfig, Uploads,
    VolumeConfig, WorkConfig,
};
pub use error::{Failure, ServerError};
pub use log::{Level, Logger};
pub use metrics::{Counter, Definition, Metrics};
pub use name::Name;

#[cfg(test)]
mod tests;
