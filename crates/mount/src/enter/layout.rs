//! The layout of the new root: a tree that is decided before anything is mounted.
//!
//! Directories of the image are bound whole wherever possible. The image may lack a path of the
//! caller (say `/usr/src/app`). Then the directories on the way are *spread*: made anew, with each
//! of their entries bound singly. That needs no overlay, so it works on every kernel that has user
//! namespaces, and reads through it cost nothing extra.
//!
//! Pure planning over file names: it reads directories of the image and mounts nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::MountError;

/// Entries of one directory that may be bound singly. A mount costs the kernel some kilobytes and
/// microseconds.
const SPREAD_MAX: usize = 2000;

/// Symbolic links followed inside the image before it counts as a loop, as in Linux.
const LINKS_MAX: usize = 40;

/// An entry of the new root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A new directory with these entries.
    Directory(BTreeMap<OsString, Node>),
    /// A directory bound from `source` in the old root, with all mounts below it.
    BindDirectory(PathBuf),
    /// A file (or device, socket, pipe) bound from `source` in the old root.
    BindFile(PathBuf),
    /// A symbolic link.
    Link(PathBuf),
}

/// A path in the new root, and the caller's file or directory that is bound there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// In the caller's root: absolute, exists, free of symlinks.
    pub(crate) source: PathBuf,
    /// In the new root: absolute.
    pub(crate) target: PathBuf,
    /// Whether the source is a directory.
    pub(crate) is_directory: bool,
    /// Whether the user asked for it, so that it must appear.
    pub(crate) is_explicit: bool,
}

/// The new root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Its root directory.
    pub(crate) root: BTreeMap<OsString, Node>,
    /// Binds to make when the tree stands, at places inside directories of the caller; these must
    /// exist there.
    pub(crate) late: Vec<Bind>,
}

/// Plans the root directory: the entries of `image`, then `binds` over them in order, later ones
/// over earlier ones.
pub(crate) fn plan(image: &Path, binds: &[Bind]) -> Result<Layout, MountError> {
    let mut layout = Layout { root: spread(image)?, late: Vec::new() };
    for bind in binds {
        let in_tree = place(&mut layout.root, image, bind)?;
        if !in_tree && bind.is_explicit {
            layout.late.push(bind.clone());
        }
    }
    Ok(layout)
}

/// The entries of an image directory, each bound singly.
fn spread(folder: &Path) -> Result<BTreeMap<OsString, Node>, MountError> {
    let fail = |error| MountError::step("list", folder, error);
    let mut nodes = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let path = entry.path();
        let kind = entry.file_type().map_err(fail)?;
        let node = if kind.is_dir() {
            Node::BindDirectory(path)
        } else if kind.is_symlink() {
            Node::Link(fs::read_link(&path).map_err(fail)?)
        } else {
            Node::BindFile(path)
        };
        if nodes.len() >= SPREAD_MAX {
            return Err(MountError::Step {
                step: "make room for a bind in",
                path: folder.to_path_buf(),
                source: io::Error::from(io::ErrorKind::FileTooLarge),
                hint: "the directory has over 2000 entries; choose a target elsewhere",
            });
        }
        nodes.insert(entry.file_name(), node);
    }
    Ok(nodes)
}

/// Puts one bind into the tree, spreading directories of the image on the way where its place does
/// not exist yet. `false` if its place lies in a directory of the caller, which is not spread: it
/// shows there already what it holds.
fn place(root: &mut BTreeMap<OsString, Node>, image: &Path, bind: &Bind) -> Result<bool, MountError> {
    let mut names = components(&bind.target);
    let mut links = 0;
    let mut at: usize = 0;
    // Links on the way are followed as the kernel would inside the new root.
    while at < names.len() {
        let Some(target) = link_at(root, &names[..=at]) else {
            at += 1;
            continue;
        };
        links += 1;
        if links > LINKS_MAX {
            return Err(MountError::step("bind to", &bind.target, io::Error::from(io::ErrorKind::InvalidInput)));
        }
        let mut followed = if target.is_absolute() { Vec::new() } else { names[..at].to_vec() };
        push_components(&mut followed, &target);
        followed.extend_from_slice(&names[at + 1..]);
        (names, at) = (followed, 0);
    }
    let Some((last, way)) = names.split_last() else { return Ok(true) };
    let mut nodes = root;
    for name in way {
        let node = nodes.entry(name.clone()).or_insert_with(|| Node::Directory(BTreeMap::new()));
        if let Node::BindDirectory(source) = node {
            if !source.starts_with(image) {
                return Ok(false);
            }
            *node = Node::Directory(spread(source)?);
        }
        match node {
            Node::Directory(inner) => nodes = inner,
            _ => {
                let error = io::Error::from(io::ErrorKind::NotADirectory);
                return Err(MountError::step("bind to", &bind.target, error));
            }
        }
    }
    let node =
        if bind.is_directory { Node::BindDirectory(bind.source.clone()) } else { Node::BindFile(bind.source.clone()) };
    nodes.insert(last.clone(), node);
    Ok(true)
}

/// The target of the symbolic link at `names`, if there is one, in the tree or in an image
/// directory bound by it.
fn link_at(root: &BTreeMap<OsString, Node>, names: &[OsString]) -> Option<PathBuf> {
    let mut nodes = root;
    for (depth, name) in names.iter().enumerate() {
        match nodes.get(name)? {
            Node::Directory(inner) => nodes = inner,
            Node::Link(target) if depth + 1 == names.len() => return Some(target.clone()),
            Node::BindDirectory(source) => {
                let path = names[depth + 1..].iter().fold(source.clone(), |path, name| path.join(name));
                return if depth + 1 == names.len() { None } else { fs::read_link(path).ok() };
            }
            _ => return None,
        }
    }
    None
}

/// The file at `path` in the image, links followed inside it; `None` if there is none.
pub(crate) fn resolve(image: &Path, path: &Path) -> Option<PathBuf> {
    let mut names = components(path);
    names.reverse();
    let mut at: Vec<OsString> = Vec::new();
    let mut links = 0;
    let on_disk = |names: &[OsString]| names.iter().fold(image.to_path_buf(), |path, name| path.join(name));
    while let Some(name) = names.pop() {
        at.push(name);
        let here = on_disk(&at);
        let metadata = fs::symlink_metadata(&here).ok()?;
        if metadata.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            let target = fs::read_link(&here).ok()?;
            at.pop();
            let mut followed = if target.is_absolute() { Vec::new() } else { std::mem::take(&mut at) };
            push_components(&mut followed, &target);
            at.clear();
            names.extend(followed.into_iter().rev());
        }
    }
    Some(on_disk(&at))
}

fn components(path: &Path) -> Vec<OsString> {
    let mut names = Vec::new();
    push_components(&mut names, path);
    names
}

/// Appends the names of a path; `..` takes one away, as it does in a root nobody can leave.
fn push_components(names: &mut Vec<OsString>, path: &Path) {
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(OsStr::to_os_string(name)),
            Component::ParentDir => drop(names.pop()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn image() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("tempdir");
        let at = |path: &str| folder.path().join(path);
        for path in ["usr/bin", "usr/lib/deep", "etc", "home", "srv"] {
            fs::create_dir_all(at(path)).expect("mkdir");
        }
        for path in ["usr/bin/tool", "etc/hosts", "vmlinuz"] {
            fs::write(at(path), b"x").expect("write");
        }
        symlink("usr/bin", at("bin")).expect("symlink");
        symlink("/home", at("people")).expect("symlink");
        symlink("loop", at("loop")).expect("symlink");
        folder
    }

    fn bind(source: &str, target: &str) -> Bind {
        Bind { source: source.into(), target: target.into(), is_directory: true, is_explicit: false }
    }

    fn get<'a>(layout: &'a Layout, path: &str) -> Option<&'a Node> {
        let mut names = path.split('/');
        let first = layout.root.get(OsStr::new(names.next()?))?;
        names.try_fold(first, |node, name| match node {
            Node::Directory(inner) => inner.get(OsStr::new(name)),
            _ => None,
        })
    }

    #[test]
    fn the_image_is_bound_by_its_top_level() {
        let folder = image();
        let root = plan(folder.path(), &[bind("/tmp", "/tmp")]).expect("planned");
        assert_eq!(get(&root, "usr"), Some(&Node::BindDirectory(folder.path().join("usr"))));
        assert_eq!(get(&root, "vmlinuz"), Some(&Node::BindFile(folder.path().join("vmlinuz"))));
        assert_eq!(get(&root, "bin"), Some(&Node::Link("usr/bin".into())));
        assert_eq!(get(&root, "tmp"), Some(&Node::BindDirectory("/tmp".into())));
    }

    #[test]
    fn only_directories_on_the_way_are_spread() {
        let folder = image();
        let root = plan(folder.path(), &[bind("/src", "/usr/src/app")]).expect("planned");
        assert_eq!(get(&root, "usr/src/app"), Some(&Node::BindDirectory("/src".into())));
        assert_eq!(get(&root, "usr/lib"), Some(&Node::BindDirectory(folder.path().join("usr/lib"))));
        assert!(matches!(get(&root, "etc"), Some(Node::BindDirectory(_))));
    }

    #[test]
    fn links_of_the_image_are_followed_inside_it() {
        let folder = image();
        let root = plan(folder.path(), &[bind("/a", "/people/ann"), bind("/b", "/bin/extra")]).expect("planned");
        assert_eq!(get(&root, "home/ann"), Some(&Node::BindDirectory("/a".into())));
        assert_eq!(get(&root, "usr/bin/extra"), Some(&Node::BindDirectory("/b".into())));
        assert_eq!(get(&root, "usr/bin/tool"), Some(&Node::BindFile(folder.path().join("usr/bin/tool"))));
        assert!(plan(folder.path(), &[bind("/a", "/loop/x")]).is_err());
    }

    #[test]
    fn what_lies_in_a_bind_of_the_caller_needs_no_bind_of_its_own() {
        let folder = image();
        let mut binds = [bind("/home/ann", "/home/ann"), bind("/home/ann/work", "/home/ann/work")];
        let root = plan(folder.path(), &binds).expect("planned");
        assert_eq!(get(&root, "home/ann"), Some(&Node::BindDirectory("/home/ann".into())));
        assert!(root.late.is_empty());
        // Unless the user asked for it.
        binds[1].is_explicit = true;
        assert_eq!(plan(folder.path(), &binds).expect("planned").late, &binds[1..]);
    }

    #[test]
    fn a_file_on_the_way_is_an_error() {
        let folder = image();
        assert!(plan(folder.path(), &[bind("/a", "/vmlinuz/x")]).is_err());
        assert!(plan(folder.path(), &[bind("/a", "/etc/hosts/x")]).is_err());
    }

    #[test]
    fn paths_resolve_inside_the_image_only() {
        let folder = image();
        assert_eq!(resolve(folder.path(), Path::new("/bin/tool")), Some(folder.path().join("usr/bin/tool")));
        assert_eq!(resolve(folder.path(), Path::new("/people")), Some(folder.path().join("home")));
        assert_eq!(resolve(folder.path(), Path::new("/../../etc/hosts")), Some(folder.path().join("etc/hosts")));
        assert_eq!(resolve(folder.path(), Path::new("/etc/none")), None);
        assert_eq!(resolve(folder.path(), Path::new("/loop")), None);
    }
}
