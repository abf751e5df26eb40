//! A game of four scenes: a static x86-64 program of 512 KB whose pages are executed in a known
//! order, and 1 MB of data.
//!
//! Page 0 holds headers and [`DRIVER`]; every other page begins with a jump to the page after it in
//! the order of play, or a return, and goes on with real machine code that is never run: pages
//! compress as those of programs do. For each of its scenes the driver calls the first of the
//! scene's pages, reads the scene's blocks from the file that its argument names, writes the
//! monotonic clock to its output (two little-endian words, seconds and nanoseconds: the scene is
//! shown), and sleeps while it is played. The pages of a scene are runs of four ([`GROUP_PAGES`])
//! in pseudo-random order; the scenes lie in the data in another order than that of play, as a
//! scene list would have it.

use anyhow::ensure;
use units::{Rng, SplitMix64};

/// Size of a page and of a block of the data.
pub const PAGE_BYTES: usize = 4096;

/// Pages of the program: 512 KB.
pub const PAGES: usize = 128;

/// Pages of the program that follow each other: a function or two.
const GROUP_PAGES: usize = 4;

/// Scenes.
pub const SCENES: usize = 4;

/// Groups of pages that each scene executes; the first has the start of the program with it. 28
/// pages before the first scene is what the paper's start times say (a quarter of the data and 7 s
/// at 128 kbit/s).
const SCENE_GROUPS: [usize; SCENES] = [7, 8, 8, 9];

/// Where each scene lies in the data, in scenes.
const SCENE_PLACES: [usize; SCENES] = [2, 0, 3, 1];

/// Blocks of a scene.
pub const SCENE_BLOCKS: usize = 64;

/// How long each scene is played, seconds: enough to fetch the next one meanwhile over 128 kbit/s.
pub const PLAY_SECONDS: u64 = 25;

const ORDER_SEED: u64 = 0x5150_0006;

/// Address of the program in memory.
const BASE: usize = 0x40_0000;

/// Place of the driver in page 0.
const DRIVER_AT: usize = 0x100;

/// Places of its tables, from its own start: addresses of the scenes' first pages (four words of 4
/// bytes), the time of play (a `timespec`), numbers of the scenes' blocks (words of 2 bytes).
const CHAINS_AT: usize = 0x200;
const PLAY_AT: usize = 0x210;
const BLOCKS_AT: usize = 0x240;

/// The driver, as `as` made it of this:
///
/// ```text
/// 00        mov rdi, [rsp+16]; xor esi, esi; mov eax, 2; syscall         open(argv[1], O_RDONLY)
/// 0e        test eax, eax; js fail; mov r12d, eax; sub rsp, 8192; xor ebx, ebx
/// 22 scene: lea r13, [rip+chains]; mov eax, [r13+rbx*4]; call rax   the scene's pages
/// 30        xor ebp, ebp
/// 32 block: lea r13, [rip+blocks]; mov ecx, ebx; shl ecx, 6; add ecx, ebp
/// 40        movzx r10d, word [r13+rcx*2]; shl r10d, 12; mov edi, r12d; mov rsi, rsp
/// 50        mov edx, 4096; mov eax, 17; syscall                          pread64
/// 5c        cmp rax, 4096; jne fail; inc ebp; cmp ebp, 64; jb block
/// 6b        mov edi, 1; mov rsi, rsp; mov eax, 228; syscall              clock_gettime(MONOTONIC)
/// 7a        mov edi, 1; mov rsi, rsp; mov edx, 16; mov eax, 1; syscall   write
/// 8e        lea rdi, [rip+play]; xor esi, esi; mov eax, 35; syscall      nanosleep
/// 9e        inc ebx; cmp ebx, 4; jb scene; xor edi, edi; jmp leave
/// ad fail:  mov edi, 1
/// b2 leave: mov eax, 60; syscall                                         exit
/// ```
#[rustfmt::skip]
const DRIVER: [u8; 185] = [
    0x48, 0x8b, 0x7c, 0x24, 0x10, 0x31, 0xf6, 0xb8, 0x02, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x85, 0xc0,
    0x0f, 0x88, 0x97, 0x00, 0x00, 0x00, 0x41, 0x89, 0xc4, 0x48, 0x81, 0xec, 0x00, 0x20, 0x00, 0x00,
    0x31, 0xdb, 0x4c, 0x8d, 0x2d, 0xd7, 0x01, 0x00, 0x00, 0x41, 0x8b, 0x44, 0x9d, 0x00, 0xff, 0xd0,
    0x31, 0xed, 0x4c, 0x8d, 0x2d, 0x07, 0x02, 0x00, 0x00, 0x89, 0xd9, 0xc1, 0xe1, 0x06, 0x01, 0xe9,
    0x45, 0x0f, 0xb7, 0x54, 0x4d, 0x00, 0x41, 0xc1, 0xe2, 0x0c, 0x44, 0x89, 0xe7, 0x48, 0x89, 0xe6,
    0xba, 0x00, 0x10, 0x00, 0x00, 0xb8, 0x11, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0x10,
    0x00, 0x00, 0x75, 0x49, 0xff, 0xc5, 0x83, 0xfd, 0x40, 0x72, 0xc7, 0xbf, 0x01, 0x00, 0x00, 0x00,
    0x48, 0x89, 0xe6, 0xb8, 0xe4, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xbf, 0x01, 0x00, 0x00, 0x00, 0x48,
    0x89, 0xe6, 0xba, 0x10, 0x00, 0x00, 0x00, 0xb8, 0x01, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x8d,
    0x3d, 0x7b, 0x01, 0x00, 0x00, 0x31, 0xf6, 0xb8, 0x23, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xff, 0xc3,
    0x83, 0xfb, 0x04, 0x0f, 0x82, 0x79, 0xff, 0xff, 0xff, 0x31, 0xff, 0xeb, 0x05, 0xbf, 0x01, 0x00,
    0x00, 0x00, 0xb8, 0x3c, 0x00, 0x00, 0x00, 0x0f, 0x05,
];

/// Pages that each scene executes, in order. Page 0, the driver, is executed before any and in none
/// of the lists.
pub fn scene_pages() -> [Vec<usize>; SCENES] {
    let mut groups: Vec<usize> = (1..PAGES / GROUP_PAGES).collect();
    let mut random = SplitMix64(ORDER_SEED);
    for last in (1..groups.len()).rev() {
        groups.swap(last, random.below(last as u64 + 1) as usize);
    }
    groups.insert(0, 0);
    let mut groups = groups.into_iter();
    SCENE_GROUPS.map(|count| {
        let pages =
            groups.by_ref().take(count).flat_map(|group| (0..GROUP_PAGES).map(move |at| group * GROUP_PAGES + at));
        pages.filter(|page| *page != 0).collect()
    })
}

/// Blocks of the data that each scene reads, in order.
pub fn scene_blocks(scene: usize) -> impl Iterator<Item = usize> {
    let first = SCENE_PLACES[scene] * SCENE_BLOCKS;
    first..first + SCENE_BLOCKS
}

/// Bytes that a scene needs of the program and of the data together, as they lie in the files.
pub fn scene_bytes(scene: usize) -> usize {
    let driver = usize::from(scene == 0);
    (scene_pages()[scene].len() + driver + SCENE_BLOCKS) * PAGE_BYTES
}

/// The program; `code` is what fills its pages.
pub fn program(code: &[u8]) -> anyhow::Result<Vec<u8>> {
    let size = PAGES * PAGE_BYTES;
    ensure!(code.len() >= size, "{} bytes of machine code, not the {size} of the program", code.len());
    let mut program = code[..size].to_vec();
    let mut put = |at: usize, bytes: &[u8]| program[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &headers(size));
    put(DRIVER_AT, &DRIVER);
    put(DRIVER_AT + PLAY_AT, &[PLAY_SECONDS.to_le_bytes(), [0; 8]].concat());
    for (scene, pages) in scene_pages().iter().enumerate() {
        let address = |page: usize| BASE + page * PAGE_BYTES;
        let first = address(pages[0]) as u32;
        put(DRIVER_AT + CHAINS_AT + 4 * scene, &first.to_le_bytes());
        for (index, block) in scene_blocks(scene).enumerate() {
            put(DRIVER_AT + BLOCKS_AT + 2 * (scene * SCENE_BLOCKS + index), &(block as u16).to_le_bytes());
        }
        for pair in pages.windows(2) {
            // From the end of the jump, 5 bytes long.
            let distance = address(pair[1]) as i64 - (address(pair[0]) + 5) as i64;
            put(pair[0] * PAGE_BYTES, &[&[0xe9], (distance as i32).to_le_bytes().as_slice()].concat());
        }
        put(pages[pages.len() - 1] * PAGE_BYTES, &[0xc3]);
    }
    Ok(program)
}

/// Head of an ELF file and its two program headers: the whole file, readable and executable; a
/// stack that is neither.
fn headers(size: usize) -> Vec<u8> {
    let (base, size) = (BASE as u64, size as u64);
    let mut head = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Executable, x86-64, version 1.
    head.extend([2u16, 62].into_iter().flat_map(u16::to_le_bytes));
    head.extend(1u32.to_le_bytes());
    // Entry, program headers, no section headers.
    head.extend([base + DRIVER_AT as u64, 64, 0].into_iter().flat_map(u64::to_le_bytes));
    head.extend(0u32.to_le_bytes());
    head.extend([64u16, 56, 2, 64, 0, 0].into_iter().flat_map(u16::to_le_bytes));
    let segments = [(1u32, 5u32, base, size, PAGE_BYTES as u64), (0x6474_e551, 6, 0, 0, 16)];
    for (kind, flags, address, bytes, alignment) in segments {
        head.extend([kind, flags].into_iter().flat_map(u32::to_le_bytes));
        head.extend([0, address, address, bytes, bytes, alignment].into_iter().flat_map(u64::to_le_bytes));
    }
    head
}

/// The moments that the program wrote, seconds of the monotonic clock.
pub fn moments(output: &[u8]) -> anyhow::Result<[f64; SCENES]> {
    ensure!(output.len() == SCENES * 16, "the game wrote {} bytes, not {} times", output.len(), SCENES);
    let word = |at: usize| i64::from_le_bytes(std::array::from_fn(|index| output[at + index]));
    Ok(std::array::from_fn(|scene| word(scene * 16) as f64 + 1e-9 * word(scene * 16 + 8) as f64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn every_page_and_every_block_belongs_to_one_scene() {
        let pages: Vec<usize> = scene_pages().concat();
        assert_eq!(pages.iter().copied().collect::<BTreeSet<_>>(), (1..PAGES).collect());
        assert_eq!(pages.len(), PAGES - 1);
        let blocks: BTreeSet<usize> = (0..SCENES).flat_map(scene_blocks).collect();
        assert_eq!(blocks, (0..SCENES * SCENE_BLOCKS).collect());
        assert_eq!(scene_bytes(0), (28 + 64) * PAGE_BYTES);
    }

    #[test]
    fn the_program_runs_through_its_pages_and_fails_without_data() -> anyhow::Result<()> {
        // Breakpoints everywhere else: an order that leaves the chain ends it.
        let mut bytes = program(&vec![0xcc; PAGES * PAGE_BYTES])?;
        assert_eq!(bytes.len(), 512 << 10);
        // A test does not wait for the player.
        bytes[DRIVER_AT + PLAY_AT..][..8].copy_from_slice(&[0; 8]);
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("program");
        std::fs::File::create(&path)?.write_all(&bytes)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        if !cfg!(target_arch = "x86_64") {
            println!("skipped: the program is one for x86-64");
            return Ok(());
        }
        let scenes = folder.path().join("scenes");
        std::fs::write(&scenes, vec![0; SCENES * SCENE_BLOCKS * PAGE_BYTES])?;
        let output = Command::new(&path).arg(&scenes).output()?;
        assert!(output.status.success(), "{}", output.status);
        let moments = moments(&output.stdout)?;
        assert!(moments[0] > 0.0 && moments.is_sorted(), "{moments:?}");
        std::fs::write(&scenes, [0; 5000])?;
        assert_eq!(Command::new(&path).arg(&scenes).output()?.status.code(), Some(1));
        Ok(())
    }
}
