//! The passes, in their order.
//!
//! Most passes remove a few references or entries of tables and then walk the graph, which finds
//! what that frees. A pass is a value. To add one, write a file in `pass/` with its [`Pass`],
//! and name it in [`PASSES`].

mod blocks;
mod constants;
mod drivers;
mod duplicates;
mod initialisation;
mod names;
mod padding;
mod parameters;
mod quirks;
pub(crate) mod syscalls;
mod unreachable;

use crate::analysis::Analysis;
use crate::arch::Architecture;
use crate::graph::Graph;
use crate::schema::Schema;
use crate::{Options, SpecialiseError};

/// A pass.
pub(crate) struct Pass {
    /// Its name in reports.
    pub name: &'static str,
    /// Whether the options ask for it and have what it must know.
    is_on: fn(&Options) -> bool,
    /// Adds to what was decided.
    run: fn(&Context<'_, '_>, &mut Analysis) -> Result<(), SpecialiseError>,
}

/// All of them. The first one removes what the others free.
pub(crate) const PASSES: [&Pass; 11] = [
    &unreachable::PASS,
    &syscalls::PASS,
    &parameters::PASS,
    &quirks::PASS,
    &drivers::PASS,
    &constants::PASS,
    &blocks::PASS,
    &padding::PASS,
    &duplicates::PASS,
    &initialisation::PASS,
    &names::PASS,
];

/// What a pass may look at.
pub(crate) struct Context<'c, 'a> {
    /// The object, its atoms and their edges.
    pub graph: &'c Graph<'c, 'a>,
    /// Its processor.
    pub arch: &'static dyn Architecture,
    /// Its release.
    pub schema: &'static Schema,
    /// What the caller knows.
    pub options: &'c Options,
}

impl Pass {
    /// Whether it runs.
    pub fn is_on(&self, options: &Options) -> bool {
        options.passes.unreachable && (self.is_on)(options)
    }
}

/// Runs the passes that are on.
///
/// # Errors
/// The options name what the object does not have.
pub(crate) fn run(context: &Context<'_, '_>) -> Result<Analysis, SpecialiseError> {
    let mut analysis = Analysis::new(context.graph, context.options)?;
    for (number, pass) in PASSES.iter().enumerate().filter(|(_, pass)| pass.is_on(context.options)) {
        analysis.removals.begin(number);
        (pass.run)(context, &mut analysis)?;
    }
    Ok(analysis)
}
