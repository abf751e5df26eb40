//! The sites of a launch by file, and what is known of the files that processes map.

use std::collections::HashMap;
use std::path::Path;

use nix::unistd::Pid;

use crate::linker::Hook;
use crate::maps::{self, Mapping};
use crate::memory::Code;
use crate::{FileId, Site};

/// Index of a site in the table.
pub(crate) type SiteIndex = usize;

/// See the module.
#[derive(Debug)]
pub(crate) struct Table {
    sites: Vec<Entry>,
    by_file: HashMap<FileId, Vec<SiteIndex>>,
    left: usize,
    /// What stat calls the files that the kernel's maps name otherwise: with layers and subvolumes
    /// they differ.
    stat_names: HashMap<FileId, Option<FileId>>,
    hooks: HashMap<FileId, Option<Hook>>,
}

#[derive(Debug)]
struct Entry {
    site: Site,
    is_hit: bool,
    /// What stands there in every process, once it is known: forked processes inherit the
    /// breakpoint in its place.
    code: Option<Code>,
}

impl Table {
    pub(crate) fn new(sites: &[Site]) -> Table {
        let mut by_file: HashMap<FileId, Vec<SiteIndex>> = HashMap::new();
        for (index, site) in sites.iter().enumerate() {
            by_file.entry(site.file).or_default().push(index);
        }
        let sites: Vec<Entry> = sites.iter().map(|site| Entry { site: *site, is_hit: false, code: None }).collect();
        let left = sites.len();
        Table { sites, by_file, left, stat_names: HashMap::new(), hooks: HashMap::new() }
    }

    /// Sites not hit yet.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn site(&self, index: SiteIndex) -> &Site {
        &self.sites[index].site
    }

    pub(crate) fn is_hit(&self, index: SiteIndex) -> bool {
        self.sites[index].is_hit
    }

    /// Notes a hit; false if there was one before.
    pub(crate) fn set_hit(&mut self, index: SiteIndex) -> bool {
        let entry = &mut self.sites[index];
        if !std::mem::replace(&mut entry.is_hit, true) {
            self.left -= 1;
            return true;
        }
        false
    }

    /// Notes hits of all other sites at the same place with the same condition, and returns them.
    pub(crate) fn hit_twins(&mut self, index: SiteIndex) -> Vec<SiteIndex> {
        let Site { file, offset, executable, .. } = self.sites[index].site;
        let is_twin = |other: &Site| (other.file, other.offset, other.executable) == (file, offset, executable);
        let same_file = self.by_file.get(&file).cloned().unwrap_or_default();
        same_file.into_iter().filter(|other| is_twin(&self.sites[*other].site) && self.set_hit(*other)).collect()
    }

    pub(crate) fn code(&self, index: SiteIndex) -> Option<Code> {
        self.sites[index].code
    }

    pub(crate) fn set_code(&mut self, index: SiteIndex, code: Code) {
        self.sites[index].code = Some(code);
    }

    /// Sites that a process which executes `executable` may still come to.
    pub(crate) fn open_in(&self, executable: Option<FileId>) -> impl Iterator<Item = SiteIndex> {
        let may =
            move |entry: &Entry| !entry.is_hit && entry.site.executable.is_none_or(|wanted| Some(wanted) == executable);
        self.sites.iter().enumerate().filter(move |(_, entry)| may(entry)).map(|(index, _)| index)
    }

    /// Sites in a mapping of a process, hit ones too, with their addresses.
    pub(crate) fn in_mapping(&mut self, pid: Pid, mapping: &Mapping) -> Vec<(SiteIndex, u64)> {
        let file = self.stat_name(pid, mapping);
        let sites = self.by_file.get(&file).map_or(&[][..], Vec::as_slice);
        sites.iter().filter_map(|index| Some((*index, mapping.address_of(self.sites[*index].site.offset)?))).collect()
    }

    /// Whether there are sites in the library that a process has loaded from this path. Names
    /// without a directory are those of no file; relative ones cannot be looked up from here, so
    /// there may be.
    pub(crate) fn has_sites(&self, pid: Pid, path: &Path) -> bool {
        if !path.is_absolute() {
            return path.as_os_str().as_encoded_bytes().contains(&b'/');
        }
        FileId::of(&maps::from_outside(pid, path)).map_or(true, |file| self.by_file.contains_key(&file))
    }

    /// The file of a mapping, as stat names it.
    fn stat_name(&mut self, pid: Pid, mapping: &Mapping) -> FileId {
        if self.by_file.contains_key(&mapping.file) {
            return mapping.file;
        }
        let found = self.stat_names.entry(mapping.file).or_insert_with(|| {
            // Layers and subvolumes change the device; a path that now leads to another file shows
            // by the inode.
            let stat = FileId::of(&mapping.path_from_outside(pid)).ok()?;
            (stat.inode == mapping.file.inode).then_some(stat)
        });
        found.unwrap_or(mapping.file)
    }

    /// The hook of the dynamic linker in a mapping, if the file is known to be one.
    pub(crate) fn known_hook(&self, mapping: &Mapping) -> Option<Hook> {
        self.hooks.get(&mapping.file).copied().flatten()
    }

    /// Looks into the file of a mapping for the hook.
    pub(crate) fn find_hook(&mut self, pid: Pid, mapping: &Mapping) -> Option<Hook> {
        let find = |path: &Path| Hook::find(path).ok().flatten();
        *self.hooks.entry(mapping.file).or_insert_with(|| find(&mapping.path_from_outside(pid)))
    }
}
