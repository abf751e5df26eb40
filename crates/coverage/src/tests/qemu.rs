//! QEMU's log, as versions 7.2 write it.

use proptest::prelude::*;

use crate::LogParser;

const LOG: &str = "----------------
IN: secondary_startup_64
0xffffffff81000428:  ba 20 10 00 00           movl     $0x1020, %edx
0xffffffff8100042d:  0f 20 e1                 movq     %cr4, %rcx

----------------
IN: \n0xffffffff81000442:  48 c7 84 24 80 00 00 00  movq     $0xffffffff81866e40, 0x80(%rsp)
0xffffffff8100044a:  40 6e 86 81
0xffffffff8100044e:  c3                       retq

----------------
IN: \n0xffffffff81000460:  74 06                    je       0xffffffff81000462
0xffffffff81000900:  fa                       cli
";

const BARE: &str = "----------------
IN: \n0xffffffff81000428:  \nOBJD-T: ba201000000f20e1
OBJD-T: 90

----------------
";

fn parse(log: &[u8], piece: usize) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut block = |address: u64, bytes: &[u8]| found.push((address, bytes.to_vec()));
    let mut parser = LogParser::new();
    log.chunks(piece).for_each(|piece| parser.push(piece, &mut block));
    parser.finish(&mut block);
    found
}

#[test]
fn blocks_are_runs_of_instructions() {
    let expected = vec![
        (0xffff_ffff_8100_0428, vec![0xba, 0x20, 0x10, 0, 0, 0x0f, 0x20, 0xe1]),
        (0xffff_ffff_8100_0442, vec![0x48, 0xc7, 0x84, 0x24, 0x80, 0, 0, 0, 0x40, 0x6e, 0x86, 0x81, 0xc3]),
        (0xffff_ffff_8100_0460, vec![0x74, 0x06]),
        (0xffff_ffff_8100_0900, vec![0xfa]),
    ];
    for piece in [1, 7, 64, LOG.len()] {
        assert_eq!(parse(LOG.as_bytes(), piece), expected);
    }
}

#[test]
fn words_of_aarch64_are_bytes_in_memory() {
    let log = "IN: \n0xffffffc080010000:  d503245f  bti      c\n0xffffffc080010004:  14000002  b        #0xffffffc08001000c\n\n\
               0xffffffc08001000c:  d65f03c0  ret      \n0xffffffc080010010:  d65f03c  \n0xffffffc080010014:  d65f03c0x\n";
    let expected = vec![
        (0xffff_ffc0_8001_0000, vec![0x5f, 0x24, 0x03, 0xd5, 2, 0, 0, 0x14]),
        (0xffff_ffc0_8001_000c, vec![0xc0, 0x03, 0x5f, 0xd6]),
    ];
    for piece in [1, 13, log.len()] {
        assert_eq!(parse(log.as_bytes(), piece), expected);
    }
}

#[test]
fn a_log_without_a_disassembler_is_read_too() {
    let expected = vec![(0xffff_ffff_8100_0428, vec![0xba, 0x20, 0x10, 0, 0, 0x0f, 0x20, 0xe1, 0x90])];
    assert_eq!(parse(BARE.as_bytes(), 5), expected);
}

#[test]
fn a_line_without_an_end_does_not_count() {
    let cut = &LOG[..LOG.find("\n0xffffffff8100042d").unwrap() + 40];
    assert_eq!(parse(cut.as_bytes(), 9), [(0xffff_ffff_8100_0428, vec![0xba, 0x20, 0x10, 0, 0])]);
}

#[test]
fn instructions_that_look_like_numbers_are_none() {
    let line = "0x1000:  04 10                    addb     $0x10, %al\n0x1002:  d8 c1  add ab cd\n";
    assert_eq!(parse(line.as_bytes(), 4), [(0x1000, vec![0x04, 0x10, 0xd8, 0xc1])]);
}

#[test]
fn memory_is_bounded_whatever_the_log_says() {
    let endless = "OBJD-T: ".to_string() + &"90".repeat(1 << 16) + "\n";
    let log = format!("0x1000:  \n{}", endless.repeat(9));
    let found = parse(log.as_bytes(), 1 << 12);
    assert!(found.len() > 1 && found.iter().all(|(_, bytes)| bytes.len() <= 1 << 13));
    // Parts of one block follow each other.
    assert!(found.windows(2).all(|pair| pair[0].0 + pair[0].1.len() as u64 == pair[1].0));
}

proptest! {
    #[test]
    fn prop_damage_does_not_make_a_log_longer(
        changes in prop::collection::vec((0..LOG.len(), any::<u8>()), 0..20), piece in 1..100usize
    ) {
        let mut log = LOG.as_bytes().to_vec();
        changes.iter().for_each(|(at, byte)| log[*at] = *byte);
        let found = parse(&log, piece);
        prop_assert_eq!(&found, &parse(&log, 1));
        prop_assert!(found.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() < log.len());
    }
}
