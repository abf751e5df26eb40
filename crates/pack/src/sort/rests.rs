//! Cuts an order into blocks, and joins the last, partial blocks of groups.

use super::{Config, Item};

/// Cuts an order of items into blocks: each as many as fit.
pub(super) fn cut(order: &[u32], items: &[Item], block_bytes: u32) -> Vec<Vec<u32>> {
    let mut blocks: Vec<Vec<u32>> = Vec::new();
    let mut room = 0;
    for &item in order {
        let bytes = items[item as usize].bytes;
        match blocks.last_mut() {
            Some(open) if bytes <= room => open.push(item),
            _ => {
                blocks.push(vec![item]);
                room = block_bytes;
            }
        }
        room -= bytes.min(room);
    }
    blocks
}

/// The blocks of all groups in order, then those made of the last blocks of groups with the same
/// high byte. A rest stays whole: it goes into the open block if it fits, and else opens the next.
pub(super) fn join(groups: Vec<Vec<Vec<u32>>>, items: &[Item], config: &Config<'_>) -> Vec<Vec<u32>> {
    let high = |block: &[u32]| block.first().map(|item| items[*item as usize].group >> 8);
    let mut blocks = Vec::new();
    let mut joined: Vec<Vec<u32>> = Vec::new();
    let mut room = 0;
    for mut group in groups {
        let Some(rest) = group.pop() else { continue };
        blocks.append(&mut group);
        let kind = rest.first().map_or(0, |item| items[*item as usize].group);
        let bytes: u32 = rest.iter().map(|item| items[*item as usize].bytes).sum();
        match joined.last_mut() {
            Some(open) if bytes <= room && high(open) == high(&rest) => open.extend(rest),
            _ => {
                joined.push(rest);
                room = config.bytes_for(kind);
            }
        }
        room -= bytes.min(room);
    }
    blocks.append(&mut joined);
    blocks
}
