//! Unused memory of this process.

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

/// Gives the pages of files back that are mapped and were never written: code and constants. The
/// kernel reads them again, mostly from its cache, when they are used. For a process that did much
/// once, and waits from then on.
pub fn give_back_code() {
    let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for (begin, end) in unwritten(&mappings) {
        let address = std::ptr::without_provenance_mut(begin);
        // SAFETY: nothing in the range differs from its file, which is what is read again.
        let _ = unsafe { rustix::mm::madvise(address, end - begin, rustix::mm::Advice::LinuxDontNeed) };
    }
}

/// Ranges of files that cannot be written to and have no page that was written before, such as one
/// that the loader has relocated.
fn unwritten(mappings: &str) -> Vec<(usize, usize)> {
    let (mut ranges, mut current) = (Vec::new(), None);
    for line in mappings.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Anonymous:", "0", "kB"] => ranges.extend(current.take()),
            // Addresses, rights, offset, device, inode, path.
            [range, rights, _, _, inode, path, ..] if range.contains('-') => {
                let is_fixed =
                    rights.starts_with('r') && !rights.contains('w') && *inode != "0" && path.starts_with('/');
                let number = |text: &str| usize::from_str_radix(text, 16).ok();
                let range = range.split_once('-').and_then(|(begin, end)| Some((number(begin)?, number(end)?)));
                current = range.filter(|_| is_fixed);
            }
            _ => {}
        }
    }
    ranges
}

/// Keeps the allocator to as many heaps as there are processors; call it before threads start. The
/// C library of Debian makes eight times as many for a process with many threads, and each keeps
/// free pages between blocks in use: a server that had 14 MB in use after a storm of requests
/// stayed at 86 MB, with two heaps at 25 MB.
pub fn limit_heaps() {
    #[cfg(target_env = "gnu")]
    {
        let heaps = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        // SAFETY: no pointers; it sets a limit of the allocator. Refused only for numbers that make
        // no sense.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, i32::try_from(heaps).unwrap_or(i32::MAX));
        }
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident(kind: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("read");
        let line = status.lines().find_map(|line| line.strip_prefix(kind)).expect("there");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn free_blocks_below_one_in_use_go_back() {
        let mut blocks: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 1000]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = resident("RssAnon:");
        give_back();
        let after = resident("RssAnon:");
        assert!(before > after + 30_000, "{before} KiB, then {after} KiB");
        drop(last);
    }

    #[test]
    fn only_what_was_never_written_is_read_again() {
        let mapping = |range: &str, rights: &str, path: &str, anonymous: u32| {
            format!("{range} {rights} 00001000 fe:00 77 {path}\nRss: 8 kB\nAnonymous: {anonymous} kB\nVmFlags: rd\n")
        };
        let code = mapping("1000-3000", "r-xp", "/bin/a", 0);
        let others = [
            mapping("4000-5000", "r--p", "/bin/a", 4),
            mapping("5000-6000", "rw-p", "/bin/a", 0),
            mapping("6000-7000", "r-xp", "[vdso]", 0),
            "7000-8000 r--p 00000000 00:00 0\nAnonymous: 0 kB\n".into(),
        ];
        assert_eq!(unwritten(&[others.concat(), code].concat()), [(0x1000, 0x3000)]);
        let before = resident("RssFile:");
        give_back_code();
        let after = resident("RssFile:");
        assert!(after < before, "{before} KiB, then {after} KiB");
    }
}
