//! The unit with the highest key, while keys change all the time.
//!
//! A tree of maxima with 64 children a node: raising a key touches one word a level, and lowering
//! one looks at 64. A heap would keep an outdated entry for every raise.

/// Children of a node, as a shift.
const FAN_OUT: u32 = 6;

/// Keys of the units `0..n`, 0 for those that are out of the race.
pub(super) struct Ranking {
    /// The keys, then the maxima of each 64 of them, and so on up to one word.
    levels: Vec<Vec<u32>>,
}

impl Ranking {
    pub(super) fn new(units: usize) -> Ranking {
        let mut levels = vec![vec![0; units.max(1)]];
        while levels[levels.len() - 1].len() > 1 {
            let nodes = levels[levels.len() - 1].len().div_ceil(1 << FAN_OUT);
            levels.push(vec![0; nodes]);
        }
        Ranking { levels }
    }

    pub(super) fn set(&mut self, unit: u32, key: u32) {
        let mut at = unit as usize;
        let old = std::mem::replace(&mut self.levels[0][at], key);
        let mut value = key;
        for level in 1..self.levels.len() {
            let parent = at >> FAN_OUT;
            let known = self.levels[level][parent];
            if value < old && known == old {
                let first = parent << FAN_OUT;
                let below = &self.levels[level - 1];
                let children = &below[first..below.len().min(first + (1 << FAN_OUT))];
                value = children.iter().copied().max().unwrap_or(0);
            } else if value <= known {
                return;
            }
            self.levels[level][parent] = value;
            at = parent;
        }
    }

    /// The unit with the highest key, the lowest of equals, or `None` if all keys are 0.
    pub(super) fn best(&self) -> Option<u32> {
        let (top, levels) = self.levels.split_last()?;
        let highest = top[0];
        if highest == 0 {
            return None;
        }
        let mut at = 0;
        for level in levels.iter().rev() {
            let first = at << FAN_OUT;
            at = first + level[first..].iter().position(|key| *key == highest)?;
        }
        Some(at as u32)
    }
}
