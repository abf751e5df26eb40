//! Memory of this process that nobody uses.

#![allow(unsafe_code)]

/// Gives the pages back that the allocator keeps free. The C library of Debian gives back only what
/// lies at the end of its heap by itself, so that one block there keeps all the free ones below it.
/// That of musl gives back at once.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers; it takes the allocator's locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("read");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("there");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn free_blocks_below_one_in_use_go_back() {
        let mut blocks: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 1000]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = resident();
        give_back();
        let after = resident();
        assert!(before > after + 30_000, "{before} KiB, then {after} KiB");
        drop(last);
    }
}
