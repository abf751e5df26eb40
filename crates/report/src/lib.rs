//! What reports are made of: parts of a page ([`html`]), drawings ([`plot`]), text for people
//! ([`text`], [`table`]), and measured rows ([`row`], [`results`]) with their medians
//! ([`statistic`]).
//!
//! Knows nothing of what is reported. `bench` measures and reports with all of it; of the product,
//! `report` and `specialise` write pages.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod html;
pub mod plot;
pub mod results;
pub mod row;
pub mod statistic;
pub mod table;
pub mod text;
