//! Paths, hard links and whiteouts within the tree.

use super::*;

fn file() -> Node {
    Node { attributes: Attributes::implied_directory(), body: Body::File { size: 0, content: Content::Hole } }
}

fn directory() -> Node {
    Node::directory(Attributes { permissions: 0o700, ..Attributes::implied_directory() })
}

fn symlink(target: &str) -> Node {
    Node { attributes: Attributes::implied_directory(), body: Body::Symlink(target.into()) }
}

fn put(tree: &mut Tree, path: &str, node: Node) -> NodeId {
    tree.place_at(path.as_bytes(), node).unwrap()
}

/// All paths, directories with a slash at the end.
fn paths(tree: &Tree) -> Vec<String> {
    let mut prefixes = std::collections::HashMap::from([(Tree::ROOT, String::new())]);
    let mut found = Vec::new();
    tree.walk(|parent, name, node| {
        let mut path = format!("{}{}", prefixes[&parent], String::from_utf8_lossy(name));
        if tree.node(node).is_directory() {
            path.push('/');
            prefixes.insert(node, path.clone());
        }
        found.push(path);
    });
    found
}

#[test]
fn paths_are_split_at_their_last_component() {
    let split = |path: &'static str| {
        split_last(path.as_bytes()).map(|(parent, name)| {
            (String::from_utf8_lossy(parent).into_owned(), String::from_utf8_lossy(name).into_owned())
        })
    };
    let pair = |parent: &str, name: &str| Some((parent.to_string(), name.to_string()));
    assert_eq!(split("a/b"), pair("a/", "b"));
    assert_eq!(split("a"), pair("", "a"));
    assert_eq!(split("/a/./b/.//"), pair("/a/./", "b"));
    assert_eq!(split("./a/."), pair("./", "a"));
    assert_eq!(split("a/a/a"), pair("a/a/", "a"));
    assert_eq!(split("a/.."), None);
    assert_eq!(split("./"), None);
    assert_eq!(split(""), None);
}

#[test]
fn nothing_is_placed_outside_the_root() {
    let mut tree = Tree::new();
    put(&mut tree, "../../etc/passwd", file());
    put(&mut tree, "/abs", file());
    put(&mut tree, "up", symlink("../../.."));
    put(&mut tree, "up/x", file());
    put(&mut tree, "root", symlink("/"));
    put(&mut tree, "root/y", file());
    put(&mut tree, "deep/./../z", file());
    assert_eq!(paths(&tree), ["abs", "root", "up", "x", "y", "z", "deep/", "etc/", "etc/passwd"]);
}

#[test]
fn parents_behind_symlinks_are_followed_within_the_tree() {
    let mut tree = Tree::new();
    put(&mut tree, "usr/lib", directory());
    put(&mut tree, "lib", symlink("usr/lib"));
    put(&mut tree, "lib/a", file());
    put(&mut tree, "dangling", symlink("made/later"));
    put(&mut tree, "dangling/b", file());
    assert_eq!(
        paths(&tree),
        ["dangling", "lib", "made/", "usr/", "made/later/", "made/later/b", "usr/lib/", "usr/lib/a"]
    );
    put(&mut tree, "loop", symlink("loop"));
    assert_eq!(tree.place_at(b"loop/x", file()).unwrap_err(), PathError::SymlinkLoop);
    put(&mut tree, "plain", file());
    assert_eq!(tree.place_at(b"plain/x", file()).unwrap_err(), PathError::NotADirectory);
    assert_eq!(tree.place_at(b"/", file()).unwrap_err(), PathError::Root);
}

#[test]
fn a_later_entry_replaces_an_earlier_one_and_directories_merge() {
    let mut tree = Tree::new();
    put(&mut tree, "d/inside", file());
    put(&mut tree, "d", directory());
    let Body::Directory(_) = &tree.node(tree.find(b"d").unwrap()).body else { panic!("still a directory") };
    assert_eq!(tree.node(tree.find(b"d").unwrap()).attributes.permissions, 0o700);
    assert_eq!(paths(&tree), ["d/", "d/inside"]);
    put(&mut tree, "d", file());
    assert_eq!(paths(&tree), ["d"]);
    put(&mut tree, "d", directory());
    assert_eq!(paths(&tree), ["d/"]);
}

#[test]
fn hard_links_are_several_names_of_one_node() {
    let mut tree = Tree::new();
    let first = put(&mut tree, "a", file());
    let target = tree.link_target(b"./a").unwrap();
    assert_eq!(target, first);
    tree.link_at(b"d/b", target).unwrap();
    assert_eq!(tree.find(b"d/b"), Some(first));
    // The other name keeps the old file when the first one is replaced.
    let second = put(&mut tree, "a", file());
    assert_eq!((tree.find(b"a"), tree.find(b"d/b")), (Some(second), Some(first)));
    assert_eq!(tree.link_target(b"none"), Err(PathError::NoTarget));
    let directory = tree.find(b"d").unwrap();
    assert_eq!(tree.link_at(b"e", directory), Err(PathError::LinkToDirectory));
}

#[test]
fn whiteouts_hide_lower_layers_only() {
    let mut tree = Tree::new();
    for path in ["keep", "gone", "dir/old", "dir/sub/old", "opaque/old", "opaque/sub/deep/old", "mixed/old"] {
        put(&mut tree, path, file());
    }
    tree.begin_layer();
    put(&mut tree, "gone2", file());
    tree.whiteout(Tree::ROOT, b"gone");
    tree.whiteout(Tree::ROOT, b"gone2");
    tree.whiteout(Tree::ROOT, b"never");
    tree.whiteout(Tree::ROOT, b"dir");
    put(&mut tree, "opaque/new", file());
    put(&mut tree, "opaque/sub/deep/new", file());
    let opaque = tree.find(b"opaque").unwrap();
    tree.whiteout_all(opaque);
    put(&mut tree, "mixed/new", file());
    tree.whiteout(Tree::ROOT, b"mixed");
    assert_eq!(
        paths(&tree),
        [
            "gone2",
            "keep",
            "mixed/",
            "opaque/",
            "mixed/new",
            "opaque/new",
            "opaque/sub/",
            "opaque/sub/deep/",
            "opaque/sub/deep/new"
        ]
    );
}

#[test]
fn files_of_a_directory_come_before_those_of_its_subdirectories() {
    let mut tree = Tree::new();
    for path in ["b/x", "a/y", "a/c/z", "a/d", "e"] {
        put(&mut tree, path, file());
    }
    assert_eq!(paths(&tree), ["e", "a/", "b/", "a/d", "a/y", "a/c/", "a/c/z", "b/x"].map(String::from));
}
