//! The table as records of a journal.

use super::{Inodes, Node, TOP};
use crate::volume::record::{NodeRecord, Record};

impl Inodes {
    /// Adds what has changed since the last call.
    pub fn take_changes(&mut self, records: &mut Vec<Record>) {
        if self.changed.is_empty() {
            return;
        }
        let changed = std::mem::take(&mut self.changed);
        records.push(Record::Next(self.next));
        records.extend(changed.into_iter().map(|number| self.record(number)));
    }

    /// All that is true.
    pub fn all(&self, records: &mut Vec<Record>) {
        records.push(Record::Next(self.next));
        records.extend(self.nodes.keys().map(|number| self.record(*number)));
    }

    fn record(&self, number: u64) -> Record {
        let node = self.nodes.get(&number).map(|node| NodeRecord {
            names: node.names.iter().map(|(folder, name)| (*folder, name.to_vec())).collect(),
            file: node.file,
            is_found_by_file: self.by_file.get(&node.file) == Some(&number),
            kind: node.kind,
            lookups: node.lookups,
            handles: node.handles.clone(),
        });
        Record::Inode { number, node }
    }

    /// Takes a record of an earlier daemon. [`Inodes::resume`] has to follow the last one.
    pub fn replay(&mut self, number: u64, node: Option<NodeRecord>) {
        let Some(node) = node else {
            self.nodes.remove(&number);
            return;
        };
        if node.is_found_by_file {
            self.by_file.insert(node.file, number);
        }
        let names = node.names.into_iter().map(|(folder, name)| (folder, name.into())).collect();
        let NodeRecord { file, kind, lookups, handles, .. } = node;
        self.nodes.insert(
            number,
            Node { names, file, kind, lookups, children: 0, handles, told: None, is_doubtful: number != TOP },
        );
    }

    /// The last provisional number that an earlier daemon gave away.
    pub fn replay_next(&mut self, next: u64) {
        self.next = next;
    }

    /// All records were taken.
    pub fn resume(&mut self) {
        let Inodes { nodes, by_file, by_name, .. } = self;
        by_file.retain(|file, number| nodes.get(number).is_some_and(|node| node.file == *file));
        let names = nodes.iter().flat_map(|(number, node)| node.names.iter().map(|name| (name.clone(), *number)));
        *by_name = names.collect();
        for (folder, _) in by_name.keys() {
            if let Some(folder) = nodes.get_mut(folder) {
                folder.children += 1;
            }
        }
    }
}
