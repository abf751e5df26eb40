//! What a plan needs of the world: trees, images, tools. Set-up makes only this.

use std::collections::BTreeSet;

use super::super::data;
use super::super::data::case::{Case, Work};
use super::super::plan::{Entry, Row};
use super::super::program::{LEARNED_FROM, Program, TREES};

/// Packages of the guest whatever is measured.
const GUEST_PACKAGES: [&str; 9] =
    ["kmod", "iproute2", "ethtool", "nfs-kernel-server", "nfs-common", "util-linux", "procps", "fuse3", "attr"];

/// A system or an experiment and what the guest needs for it besides.
const MORE_PACKAGES: [(&str, &[&str]); 9] = [
    ("squashfs", &["nbd-client", "nbdkit"]),
    ("erofs", &["nbd-client", "nbdkit"]),
    ("nydus", &["busybox-static"]),
    ("casync", &["casync", "busybox-static"]),
    ("sshfs", &["sshfs", "openssh-server", "openssh-client"]),
    ("httpdirfs", &["httpdirfs", "busybox-static"]),
    ("rclone", &["rclone"]),
    ("energy", &["tcpdump"]),
    ("profile", &["linux-perf"]),
];

/// Modes of Runnel that begin with an empty memory.
const UNLEARNED: [&str; 2] = ["none", "once"];

/// The mode of Runnel in which an image is replaced by its next version.
const UPDATED: &str = "updated";

/// A form in which a tree is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// An image of Runnel.
    Runnel,
    /// squashfs, zstd.
    Squashfs,
    /// The same with the highest level, for a card.
    SmallSquashfs,
    /// EROFS, LZ4 HC.
    Erofs,
    /// RAFS of Nydus.
    Nydus,
    /// An index and a store of casync.
    Casync,
}

impl Form {
    /// The form that the system of `row` delivers; none if it delivers the tree itself.
    fn of(row: &Row) -> Option<Form> {
        match row.system.as_str() {
            "runnel" => Some(Form::Runnel),
            "squashfs" if !row.mode.is_empty() => Some(Form::SmallSquashfs),
            "squashfs" => Some(Form::Squashfs),
            "erofs" => Some(Form::Erofs),
            "nydus" => Some(Form::Nydus),
            "casync" => Some(Form::Casync),
            _ => None,
        }
    }
}

/// What a plan needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Names of trees.
    pub trees: BTreeSet<&'static str>,
    /// Trees in other forms.
    pub images: BTreeSet<(&'static str, Form)>,
    /// Names of programs that are learned on the host, in the order of the name.
    pub learned: BTreeSet<&'static str>,
    /// Whether the trees of data files are needed.
    pub data: bool,
    /// Debian packages of the guest.
    pub guest_packages: BTreeSet<String>,
}

impl Needs {
    /// What `entries` need.
    pub fn of(entries: &[Entry]) -> anyhow::Result<Needs> {
        let mut needs = Needs::default();
        needs.guest_packages.extend(GUEST_PACKAGES.map(str::to_string));
        for Entry { row, .. } in entries {
            let wanted =
                MORE_PACKAGES.iter().filter(|(name, _)| [&row.system, &row.experiment].contains(&&name.to_string()));
            needs.guest_packages.extend(wanted.flat_map(|(_, packages)| packages.iter().map(|name| name.to_string())));
            if row.experiment == data::EXPERIMENT {
                needs.data = true;
                if row.system == "runnel" && Case::named(&row.program)?.work == Work::Game {
                    needs.images.insert((data::GAME_TREE, Form::Runnel));
                }
                continue;
            }
            let program = Program::named(&row.program)?;
            needs.trees.insert(program.tree);
            if let Some(form) = Form::of(row) {
                needs.images.insert((program.tree, form));
            }
            let unlearned = UNLEARNED.contains(&row.mode.as_str()) || row.mode.starts_with(LEARNED_FROM);
            let remembers = row.system == "runnel" && !unlearned;
            let by_page = ["mount", "touch", "set", "page"].contains(&row.experiment.as_str());
            if let Some(next) = program.next_tree().filter(|_| row.mode == UPDATED) {
                needs.trees.insert(next);
                needs.images.insert((next, Form::Runnel));
            }
            if remembers || by_page {
                needs.images.insert((program.tree, Form::Runnel));
                needs.learned.insert(program.name);
            }
        }
        Ok(needs)
    }

    /// Debian packages of the trees.
    pub fn tree_packages(&self) -> BTreeSet<String> {
        let wanted = TREES.iter().filter(|(name, _)| self.trees.contains(name));
        wanted.flat_map(|(_, packages)| packages.iter().map(|name| name.to_string())).collect()
    }

    /// True if images of squashfs or EROFS are made.
    pub fn newest_tools(&self) -> bool {
        self.images.iter().any(|(_, form)| [Form::Squashfs, Form::SmallSquashfs, Form::Erofs].contains(form))
    }

    /// True if the plan has rows of Nydus.
    pub fn nydus(&self) -> bool {
        self.images.iter().any(|(_, form)| *form == Form::Nydus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan;

    #[test]
    fn a_small_plan_needs_little() -> anyhow::Result<()> {
        let needs = Needs::of(&plan::parse("start - local perl 1\nstart wifi runnel:none busybox 1\n")?)?;
        assert_eq!(needs.trees, BTreeSet::from(["busybox", "perl"]));
        assert_eq!(needs.images, BTreeSet::from([("busybox", Form::Runnel)]));
        assert!(needs.learned.is_empty() && !needs.nydus());
        assert_eq!(needs.guest_packages.len(), GUEST_PACKAGES.len());
        assert_eq!(needs.tree_packages(), BTreeSet::from(["busybox-static".to_string(), "perl".to_string()]));
        Ok(())
    }

    #[test]
    fn systems_bring_their_tools_and_experiments_their_lists() -> anyhow::Result<()> {
        let text = "touch wifi nfs python 1\nstart wifi squashfs gcc 1\nenergy lan runnel:learned jvm 1\nstart lan nydus perl 1\n";
        let needs = Needs::of(&plan::parse(text)?)?;
        assert_eq!(needs.learned, BTreeSet::from(["jvm", "python"]));
        assert!(needs.images.contains(&("python", Form::Runnel)) && needs.images.contains(&("gcc", Form::Squashfs)));
        for package in ["nbdkit", "tcpdump", "nfs-common"] {
            assert!(needs.guest_packages.contains(package), "{package}");
        }
        assert!(needs.nydus());
        assert!(Needs::of(&plan::parse("start lan nfs emacs 1")?).is_err());
        Ok(())
    }
}
