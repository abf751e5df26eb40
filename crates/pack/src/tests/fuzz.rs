//! No archive makes the reader panic, hang or write outside.

use units::{Rng, SplitMix64};

use super::archive::{entry, record};
use super::build::*;
use crate::{Options, Output, PackError, Silent, pack_to};

/// An output that is not there.
struct Nowhere(u64);

impl Output for Nowhere {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }

    fn write_start(&mut self, _bytes: &[u8]) -> std::io::Result<()> {
        Ok(())
    }

    fn commit(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn path(&self) -> &std::path::Path {
        std::path::Path::new("nowhere")
    }
}

fn try_pack(bytes: Vec<u8>) -> Result<u64, PackError> {
    let mut output = Nowhere(0);
    let options = Options { threads: 1, ..quick() };
    pack_to(tar_stream(bytes), &mut output, &options, &Silent)?;
    Ok(output.0)
}

fn seeds() -> Vec<Vec<u8>> {
    let pax = [
        record("mtime", b"12345.678"),
        record("SCHILY.xattr.user.x", b"abcdef"),
        record("GNU.sparse.map", b"0,5,4096,5,9000,0"),
        record("GNU.sparse.size", b"100000"),
    ]
    .concat();
    let plain = [
        entry(b'5', b"d/", b"", b""),
        entry(b'0', b"d/file", b"", &noise(1, 3000)),
        entry(b'2', b"link", b"d", b""),
        entry(b'0', b"link/../link/x", b"", b"x"),
        entry(b'1', b"hard", b"d/file", b""),
        entry(b'3', b"device", b"", b""),
        vec![0; 1024],
    ]
    .concat();
    let mut sparse = entry(b'S', b"sparse", b"", b"0123456789");
    sparse[386..398].copy_from_slice(b"00000000000\0");
    sparse[398..410].copy_from_slice(b"00000000012\0");
    sparse[483..495].copy_from_slice(b"00000100000\0");
    let mut header = tar::Header::from_byte_slice(&sparse[..512]).clone();
    header.set_cksum();
    sparse[..512].copy_from_slice(header.as_bytes());
    let extended =
        [entry(b'x', b"p", b"", &pax), entry(b'0', b"a", b"", b"0123456789"), sparse, vec![0; 1024]].concat();
    let long = [
        entry(b'L', b"l", b"", &["n".repeat(250), "m".repeat(200)].join("/").into_bytes()),
        entry(b'6', b"fifo", b"", b""),
        vec![0; 1024],
    ]
    .concat();
    vec![gzip(&plain), plain, extended, long]
}

/// Packs `rounds` damaged archives; returns how many were accepted and how many refused.
fn fuzz_tar(seed: u64, rounds: u32) -> (u32, u32) {
    let mut rng = SplitMix64(seed);
    let seeds = seeds();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..rounds {
        let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(5) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] = b'0' + rng.below(10) as u8,
                2 => bytes[at] ^= 0x80,
                _ => bytes[at] = rng.next_u64() as u8,
            }
        }
        // A damaged header is refused by its checksum alone; mend it so that what is behind it is
        // reached.
        if rng.below(4) != 0 {
            for record in bytes.chunks_exact_mut(512) {
                if record[257..262] == *b"ustar" {
                    let mut header = tar::Header::from_byte_slice(record).clone();
                    header.set_cksum();
                    record.copy_from_slice(header.as_bytes());
                }
            }
        }
        match try_pack(bytes) {
            Ok(written) => {
                assert!(written < 1 << 20);
                accepted += 1;
            }
            Err(
                PackError::Tar { .. } | PackError::Source { .. } | PackError::Entry { .. } | PackError::Read { .. },
            ) => {
                refused += 1;
            }
            Err(other) => panic!("an archive made this error: {other}"),
        }
    }
    (accepted, refused)
}

#[test]
fn fuzz_tar_survives_anything() {
    let (accepted, refused) = fuzz_tar(1, 1500);
    // The canary: both ways out are taken, or the mutations reach nothing.
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

#[test]
fn fuzz_canary_damage_behind_a_good_checksum_is_noticed() {
    for seed in seeds() {
        try_pack(seed).unwrap();
    }
    let bytes = [entry(b'1', b"hard", b"none", b""), vec![0; 1024]].concat();
    assert!(matches!(try_pack(bytes), Err(PackError::Tar { .. })));
}
