//! The check value at the end of a gzip file (CRC-32, RFC 1952, section 8).

/// The polynomial, lowest bit first.
const POLYNOMIAL: u32 = 0xedb8_8320;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

pub(super) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}
