//! Resolves a path within a root directory, symlinks included, and remembers every step.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use crate::{ClosureError, Node, Root, SYMLINKS_MAX};

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The path without symlinks, `.` and `..`: `/usr/bin/python3.11` for `/bin/python3`.
    pub path: Vec<u8>,
    /// What lies there; never a symlink.
    pub node: Node,
    /// Everything that must exist for the path to lead there: directories, symlinks, the target
    /// itself; no duplicates.
    pub steps: Vec<Vec<u8>>,
}

/// Resolves paths in one [`Root`]. Symlinks, also absolute ones and `..`, never lead out of it.
pub struct Resolver<'a> {
    root: &'a dyn Root,
    /// Answers so far: a closure asks for the same directories thousands of times.
    known: RefCell<HashMap<Vec<u8>, Option<Node>>>,
}

impl<'a> Resolver<'a> {
    /// A resolver with nothing known yet.
    pub fn new(root: &'a dyn Root) -> Resolver<'a> {
        Resolver { root, known: RefCell::default() }
    }

    /// The root directory that paths are resolved in.
    pub fn root(&self) -> &'a dyn Root {
        self.root
    }

    /// What lies at `path`, whose parents must be directories, without following it.
    ///
    /// # Errors
    /// [`ClosureError::Read`].
    pub fn node(&self, path: &[u8]) -> Result<Option<Node>, ClosureError> {
        if let Some(node) = self.known.borrow().get(path) {
            return Ok(node.clone());
        }
        let read = |source| ClosureError::Read { path: path.to_vec(), source };
        let node = if path == b"/" { Some(Node::Directory) } else { self.root.node(path).map_err(read)? };
        self.known.borrow_mut().insert(path.to_vec(), node.clone());
        Ok(node)
    }

    /// Follows `path`, taken from `/` whether or not it begins with a slash. `None` if it leads
    /// nowhere.
    ///
    /// # Errors
    /// [`ClosureError::Read`], or too many symlinks.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<Resolved>, ClosureError> {
        let mut pending: VecDeque<Vec<u8>> = components(path).map(<[u8]>::to_vec).collect();
        let mut here = b"/".to_vec();
        let mut node = Node::Directory;
        let mut steps = vec![here.clone()];
        let mut symlinks = 0;
        while let Some(component) = pending.pop_front() {
            if node != Node::Directory {
                return Ok(None);
            }
            if component == b".." {
                here = parent(&here).to_vec();
                continue;
            }
            let next = join(&here, &component);
            let Some(found) = self.node(&next)? else { return Ok(None) };
            if !steps.contains(&next) {
                steps.push(next.clone());
            }
            if let Node::Symlink(target) = found {
                symlinks += 1;
                if symlinks > SYMLINKS_MAX {
                    return Err(ClosureError::SymlinkLoop { path: path.to_vec(), limit: SYMLINKS_MAX });
                }
                if target.first() == Some(&b'/') {
                    here = b"/".to_vec();
                }
                for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
                    pending.push_front(component.to_vec());
                }
            } else {
                here = next;
                node = found;
            }
        }
        Ok(Some(Resolved { path: here, node, steps }))
    }
}

/// Components of a path without empty ones and `.`.
pub(crate) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty() && *component != b".")
}

/// `directory/name` with a single slash.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The directory that holds `path`; `/` for itself.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        None | Some(0) => b"/",
        Some(slash) => &path[..slash],
    }
}
