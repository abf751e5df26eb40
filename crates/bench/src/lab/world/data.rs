//! The trees of data files: one with all of them, and one with the game's program alone, which
//! becomes an image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

use super::super::data::case::PROGRAM_FILE;
use super::super::data::{GAME_TREE, TREE, VERSION, content};
use super::debian::RELEASE;
use super::stage::{Fingerprint, Stages, finish, unfinished};
use super::tree::Tree;

/// Makes both trees in `folder`; text and machine code come from the Debian system `minimal`.
pub fn prepare(minimal: &Path, folder: &Path, stages: &Stages) -> anyhow::Result<Vec<Tree>> {
    // The minimal system is made once and kept.
    let inputs = format!("data version {VERSION}\n{RELEASE}\n");
    let mut trees = Vec::new();
    for name in [TREE, GAME_TREE] {
        let root = folder.join(name);
        stages.run(&format!("tree-{name}"), &inputs, &root, || {
            let new = unfinished(&root)?;
            fs::create_dir_all(&new)?;
            for (file, bytes) in content::files(minimal)? {
                if name == GAME_TREE && file != PROGRAM_FILE {
                    continue;
                }
                let path = new.join(file);
                fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
                let mode = if file == PROGRAM_FILE { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            }
            finish(&root)
        })?;
        trees.push(Tree { name, folder: root, fingerprint: Fingerprint::EMPTY.and(inputs.as_bytes()) });
    }
    Ok(trees)
}
