//! Notes for the user that do not stop the work.

/// Notes kept in full; the rest is only counted.
const NOTES_MAX: usize = 100;

/// A bounded list of sentences.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    kept: Vec<String>,
    dropped: u64,
}

impl Notes {
    /// Adds one.
    pub(crate) fn add(&mut self, note: String) {
        if self.kept.len() < NOTES_MAX {
            self.kept.push(note);
        } else {
            self.dropped += 1;
        }
    }

    /// All that were kept, in order; the last says how many were not.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let rest = (self.dropped > 0).then(|| format!("and {} more notes", self.dropped));
        self.kept.iter().cloned().chain(rest)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}
