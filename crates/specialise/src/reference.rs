//! References: the real target of each relocation, and of each branch that the assembler resolved.

use crate::SpecialiseError;
use crate::arch::{Architecture, Code, Use};
use crate::atom::AtomId;
use crate::object::{Object, Section, SymbolPlace};

/// What a reference goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A symbol by its index: the name decides.
    Symbol(u32),
    /// A place: section and offset, which may lie outside.
    Place {
        /// Index of the section.
        section: u32,
        /// Bytes from its start.
        offset: i64,
    },
}

/// A reference from one place of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The field, in bytes from the start of its section.
    pub offset: u64,
    /// Kind of its relocation.
    pub kind: u32,
    /// How it is used.
    pub how: Use,
    /// What it goes to.
    pub target: Target,
    /// What is added to the address of the target.
    pub addend: i64,
    /// How far behind its target what is meant lies; 0 for a place, which is exact.
    pub beyond: i64,
    /// Whether there is no relocation for it: needed only if the distance changes.
    pub implied: bool,
    /// The atom that it goes to, once the object is divided; `None` for what the object does not
    /// define.
    pub atom: Option<AtomId>,
}

/// The references of the section with this index, by offset.
///
/// # Errors
/// A relocation of unknown kind, or one whose field does not fit into the section.
pub(crate) fn of_section(
    object: &Object<'_>,
    index: usize,
    code: Option<&Code>,
    arch: &dyn Architecture,
) -> Result<Vec<Reference>, SpecialiseError> {
    let section = &object.sections[index];
    let locals = code.map_or(&[][..], |code| &code.locals);
    let mut references = Vec::with_capacity(section.relocations.len() + locals.len());
    for (number, relocation) in section.relocations.iter().enumerate() {
        let unknown = || SpecialiseError::Relocation {
            kind: relocation.kind,
            section: section.shown(),
            offset: relocation.offset,
        };
        let field = arch.field(relocation.kind).ok_or_else(unknown)?;
        if relocation.offset + u64::from(field.bytes) > section.size {
            return Err(SpecialiseError::Damaged {
                what: "relocation",
                section: section.shown(),
                reason: format!("offset {:#x}: the field does not fit", relocation.offset),
            });
        }
        if field.bytes == 0 {
            continue;
        }
        let operand = code.and_then(|code| code.operands.get(number));
        let how = operand.map_or(Use::Address, |operand| operand.how);
        let to_end = match operand {
            Some(operand) if field.relative => i64::from(operand.to_end),
            _ => 0,
        };
        let symbol = &object.symbols[relocation.symbol as usize];
        let (target, addend, beyond) = match symbol.place {
            SymbolPlace::Section(section) if symbol.is_section() => {
                let offset = (symbol.value as i64).wrapping_add(relocation.addend).wrapping_add(to_end);
                (Target::Place { section, offset }, -to_end, 0)
            }
            _ => (Target::Symbol(relocation.symbol), relocation.addend, relocation.addend.wrapping_add(to_end)),
        };
        references.push(Reference {
            offset: relocation.offset,
            kind: relocation.kind,
            how,
            target,
            addend,
            beyond,
            implied: false,
            atom: None,
        });
    }
    for local in locals.iter().filter(|local| local.bytes == 4 && local.target <= section.size) {
        let how = if local.branch { Use::Branch } else { Use::Address };
        let target = Target::Place { section: index as u32, offset: local.target as i64 };
        let addend = local.offset as i64 - local.end as i64;
        let kind = arch.relative_kind();
        let (offset, implied, atom) = (local.offset, true, None);
        references.push(Reference { offset, kind, how, target, addend, beyond: 0, implied, atom });
    }
    if !locals.is_empty() {
        references.sort_by_key(|reference| reference.offset);
    }
    Ok(references)
}

/// The references with fields in `range`.
pub(crate) fn within(references: &[Reference], range: std::ops::Range<u64>) -> &[Reference] {
    let from = references.partition_point(|reference| reference.offset < range.start);
    let to = references.partition_point(|reference| reference.offset < range.end);
    &references[from..to.max(from)]
}

/// Where a reference goes: section and offset. `None` for what the object does not define.
pub(crate) fn place(object: &Object<'_>, reference: &Reference) -> Option<(u32, i64)> {
    match reference.target {
        Target::Place { section, offset } => Some((section, offset)),
        Target::Symbol(symbol) => match object.symbols[symbol as usize].place {
            SymbolPlace::Section(section) => Some((section, object.symbols[symbol as usize].value as i64)),
            _ => None,
        },
    }
}

/// The very place that is meant: section and offset. `None` for what the object does not define.
pub(crate) fn exact(object: &Object<'_>, reference: &Reference) -> Option<(u32, i64)> {
    let (section, offset) = place(object, reference)?;
    Some((section, offset.checked_add(reference.beyond)?))
}

/// Whether references into the section are to be looked at closely: data in which several objects
/// lie.
pub(crate) fn is_data(section: &Section<'_>) -> bool {
    !section.is_code() && !section.is_strings() && section.is_loaded()
}
