//! Parameters: drops boot parameters, entries of `.init.setup` and `__param`, that the command line
//! does not use.

use std::collections::BTreeSet;

use super::{Context, Pass};
use crate::SpecialiseError;
use crate::analysis::Analysis;
use crate::atom::AtomId;
use crate::graph::Graph;
use crate::reference;
use crate::schema::{PARAM, SETUP};

pub(super) const PASS: Pass =
    Pass { name: "parameters", is_on: |options| options.passes.parameters && options.command_line.is_some(), run };

/// Longest name that is read.
const NAME_BYTES_MAX: usize = 256;

/// Drops what the command line does not use.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let graph = context.graph;
    let Some(command_line) = &context.options.command_line else { return Ok(()) };
    let words: Vec<String> = command_line.split_whitespace().map(|word| normal(word.trim_matches('"'))).collect();
    let mut dropped = BTreeSet::new();
    for (index, section) in graph.object.sections.iter().enumerate() {
        let is_setup = section.name == SETUP.as_bytes();
        if !is_setup && section.name != PARAM.as_bytes() {
            continue;
        }
        for id in graph.atoms.of_section[index].clone() {
            let Some(name) = name_of(graph, id) else { continue };
            let wanted = normal(&name);
            // As the kernel compares: what `__setup` names is a beginning of the word, a
            // parameter's name ends at `=`.
            let is_used = words.iter().any(|word| match is_setup {
                true => word.starts_with(&wanted),
                false => word.split('=').next() == Some(&wanted),
            });
            if !is_used {
                analysis.changes.dropped.insert(id);
                dropped.insert(name);
            }
        }
    }
    analysis.device.parameters_removed = dropped.into_iter().collect();
    analysis.walk(graph);
    Ok(())
}

/// The kernel takes dashes and underscores for the same.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// The string that the first pointer of an entry goes to.
fn name_of(graph: &Graph<'_, '_>, id: AtomId) -> Option<String> {
    let atom = graph.atoms.atoms.get(id as usize)?;
    let pointer = graph.atoms.references_of(id).first().filter(|reference| reference.offset == atom.start)?;
    let (section, offset) = reference::place(graph.object, pointer)?;
    // By name, the addend counts from the symbol; by section it is contained already.
    let offset = match pointer.target {
        reference::Target::Symbol(_) => offset.checked_add(pointer.addend)?,
        reference::Target::Place { .. } => offset,
    };
    let bytes = graph.object.sections.get(section as usize)?.data.get(usize::try_from(offset).ok()?..)?;
    let end = bytes.iter().take(NAME_BYTES_MAX).position(|byte| *byte == 0)?;
    (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}
