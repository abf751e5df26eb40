//! Padding: drops the padding before functions, and the list of calls that a mitigation would patch
//! to go through it.

use std::collections::HashSet;

use super::{Context, Pass};
use crate::analysis::Analysis;
use crate::{Options, SpecialiseError};

pub(super) const PASS: Pass = Pass { name: "padding", is_on: Options::drops_padding, run };

/// The list of calls for tracking them.
const CALL_SITES: &[u8] = b".call_sites";

/// Removes the padding of live functions, and the entries that describe it.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let graph = context.graph;
    let liveness = analysis.removals.liveness();
    let mut spare = HashSet::new();
    for id in graph.atoms.padding.iter().filter(|id| !liveness.is_live(**id) && liveness.is_live(**id + 1)) {
        spare.insert(*id);
        graph.add_dependents(*id, &mut spare);
    }
    for (section, range) in graph.object.sections.iter().zip(&graph.atoms.of_section) {
        if section.name == CALL_SITES {
            spare.extend(range.clone().filter(|id| liveness.is_live(*id)));
        }
    }
    for id in spare {
        analysis.removals.remove(id);
    }
    Ok(())
}
