//! Variables that never change: no live code writes them, and no live code takes their address.

use std::collections::{BTreeMap, HashMap};

use crate::SpecialiseError;
use crate::abi;
use crate::arch::Use;
use crate::atom::AtomId;
use crate::class::class;
use crate::graph::{Changes, Graph, Liveness};
use crate::object::{Section, SymbolPlace};
use crate::reference;
use crate::schema::Role;
use crate::value::Value;

/// The longest variable that is followed.
const BYTES_MAX: u64 = 8;

/// Classes of sections whose variables only the kernel's own code changes.
const CLASSES: [&[u8]; 6] =
    [b".data", b".bss", b".data..read_mostly", b".data..ro_after_init", b".init.data", b".rodata"];

/// Whether an atom may be a variable that is followed: small, ordinary, and a number.
fn is_candidate(graph: &Graph<'_, '_>, id: AtomId) -> bool {
    let atom = &graph.atoms.atoms[id as usize];
    let section = &graph.object.sections[atom.section as usize];
    is_ordinary(section)
        && matches!(graph.atoms.roles[atom.section as usize], Role::Parts)
        && matches!(atom.end - atom.start, 1 | 2 | 4 | BYTES_MAX)
        && graph.atoms.references_of(id).is_empty()
}

fn is_ordinary(section: &Section<'_>) -> bool {
    let class = class(section);
    !section.is_code() && section.flags & abi::SHF_MERGE == 0 && CLASSES.contains(&&class[..])
}

/// Who may change an atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changer {
    Nobody,
    /// This atom refers to it so.
    Atom(AtomId),
    /// The linker script or the policy names it.
    Outside,
}

/// Who may change each atom.
fn changed(graph: &Graph<'_, '_>, liveness: &Liveness, changes: &Changes) -> Vec<Changer> {
    let mut changed = vec![Changer::Nobody; graph.atoms.atoms.len()];
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
        for reference in graph.references(id, changes) {
            let Some((section, offset)) = reference::exact(graph.object, reference) else { continue };
            if graph.object.sections[section as usize].is_code() {
                continue;
            }
            let Some(target) = graph.atoms.at(section, offset) else { continue };
            let atom = &graph.atoms.atoms[target as usize];
            let is_read = match reference.how {
                Use::Read(bytes) => offset == atom.start as i64 && u64::from(bytes) <= atom.end - atom.start,
                _ => false,
            };
            if !is_read {
                changed[target as usize] = Changer::Atom(id);
            }
        }
    }
    for (id, _) in &graph.roots {
        changed[*id as usize] = Changer::Outside;
    }
    for (symbol, _) in &changes.roots {
        if let Some(id) = graph.atom_of_symbol(*symbol) {
            changed[id as usize] = Changer::Outside;
        }
    }
    changed
}

/// The variables that never change, with what they hold.
pub(super) fn constants(graph: &Graph<'_, '_>, liveness: &Liveness, changes: &Changes) -> HashMap<AtomId, Value> {
    let changed = changed(graph, liveness, changes);
    let mut found = HashMap::new();
    for id in (0..graph.atoms.atoms.len() as AtomId).filter(|id| liveness.is_live(*id)) {
        if changed[id as usize] == Changer::Nobody
            && is_candidate(graph, id)
            && let Some(value) = initial(graph, id)
        {
            found.insert(id, Value::One(value));
        }
    }
    found
}

/// What a variable holds at the start.
fn initial(graph: &Graph<'_, '_>, id: AtomId) -> Option<u64> {
    let atom = &graph.atoms.atoms[id as usize];
    let section = &graph.object.sections[atom.section as usize];
    if section.kind == abi::SHT_NOBITS {
        return Some(0);
    }
    let bytes = section.data.get(atom.start as usize..atom.end as usize)?;
    let mut number = [0; 8];
    number.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(number))
}

/// The variables that the caller fixes, by atom.
///
/// # Errors
/// There is no such variable, it has another size than a number has, the value does not fit, or it
/// may be changed.
pub(super) fn fixed(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &Changes,
    wanted: &BTreeMap<String, u64>,
) -> Result<HashMap<AtomId, u64>, SpecialiseError> {
    let mut found = HashMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    let changed = changed(graph, liveness, changes);
    let names = graph.names();
    for (name, value) in wanted {
        let refused = |reason: String| SpecialiseError::Fixed { name: name.clone(), reason };
        let mut symbols = graph.object.symbols.iter().filter(|symbol| {
            symbol.name == name.as_bytes()
                && symbol.kind == abi::STT_OBJECT
                && matches!(symbol.place, SymbolPlace::Section(_))
        });
        let not_found = || SpecialiseError::NotFound { what: "variable", name: name.clone() };
        let symbol = symbols.next().ok_or_else(not_found)?;
        if symbols.next().is_some() {
            return Err(refused("there are several variables of this name".to_string()));
        }
        if !matches!(symbol.size, 1 | 2 | 4 | BYTES_MAX) {
            return Err(refused(format!("it has {} bytes; a number has 1, 2, 4 or 8", symbol.size)));
        }
        let bits = symbol.size as u32 * 8;
        // A negative number has ones above.
        let above = (*value as i64) >> (bits - 1);
        if bits < 64 && value >> bits != 0 && above != -1 {
            return Err(refused(format!("{value} does not fit into {} bytes", symbol.size)));
        }
        let SymbolPlace::Section(section) = symbol.place else { return Err(not_found()) };
        let id = graph.atoms.at(section, symbol.value as i64).ok_or_else(not_found)?;
        let atom = &graph.atoms.atoms[id as usize];
        if atom.start != symbol.value || atom.end - atom.start != symbol.size || !is_candidate(graph, id) {
            return Err(refused("it is not an ordinary variable that lies by itself and holds a number".to_string()));
        }
        match changed[id as usize] {
            Changer::Atom(user) => {
                let user = names[user as usize].map(|symbol| graph.object.symbols[symbol as usize].name);
                let user = String::from_utf8_lossy(user.unwrap_or(b"a table"));
                return Err(refused(format!("{user} writes it or takes its address")));
            }
            Changer::Outside => return Err(refused("the linker script or the policy names it".to_string())),
            Changer::Nobody => found.insert(id, if bits < 64 { value & ((1 << bits) - 1) } else { *value }),
        };
    }
    Ok(found)
}

/// Variables whose contents at the start are to be others.
pub(super) fn differing(graph: &Graph<'_, '_>, mut fixed: HashMap<AtomId, u64>) -> HashMap<AtomId, u64> {
    fixed.retain(|id, value| initial(graph, *id) != Some(*value));
    fixed
}
