//! The bytes of a relocatable ELF file.

use crate::abi;

/// Fields of a section header.
pub(super) struct Header {
    pub kind: u32,
    pub flags: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry: u64,
}

/// A relocatable file in the making.
pub(super) struct File {
    bytes: Vec<u8>,
    headers: Vec<u8>,
    names: Vec<u8>,
}

const FILE_HEADER_BYTES: u16 = 64;
const SECTION_HEADER_BYTES: u16 = 64;

impl File {
    pub fn new(machine: u16) -> Self {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&1u16.to_le_bytes());
        bytes.extend_from_slice(&machine.to_le_bytes());
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.resize(usize::from(FILE_HEADER_BYTES), 0);
        Self { bytes, headers: vec![0; usize::from(SECTION_HEADER_BYTES)], names: vec![0] }
    }

    pub fn section(&mut self, name: &[u8], header: Header, contents: &[u8]) {
        let start = (self.bytes.len() as u64).next_multiple_of(header.align.clamp(1, 4096));
        self.bytes.resize(start as usize, 0);
        self.bytes.extend_from_slice(contents);
        let name_at = self.names.len() as u32;
        self.names.extend_from_slice(name);
        self.names.push(0);
        self.headers.extend_from_slice(&name_at.to_le_bytes());
        self.headers.extend_from_slice(&header.kind.to_le_bytes());
        for word in [header.flags, 0, start, header.size] {
            self.headers.extend_from_slice(&word.to_le_bytes());
        }
        self.headers.extend_from_slice(&header.link.to_le_bytes());
        self.headers.extend_from_slice(&header.info.to_le_bytes());
        self.headers.extend_from_slice(&header.align.to_le_bytes());
        self.headers.extend_from_slice(&header.entry.to_le_bytes());
    }

    pub fn finish(mut self) -> Vec<u8> {
        let own = b".shstrtab";
        let mut names = std::mem::take(&mut self.names);
        let size = (names.len() + own.len() + 1) as u64;
        let at = names.len();
        names.extend_from_slice(own);
        names.push(0);
        self.names = names.clone();
        let header = Header { kind: abi::SHT_STRTAB, flags: 0, size, link: 0, info: 0, align: 1, entry: 0 };
        let headers = self.headers.len();
        self.section(own, header, &names);
        self.headers[headers..headers + 4].copy_from_slice(&(at as u32).to_le_bytes());
        let start = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(start, 0);
        let count = (self.headers.len() / usize::from(SECTION_HEADER_BYTES)) as u16;
        self.bytes.extend_from_slice(&self.headers);
        self.bytes[40..48].copy_from_slice(&(start as u64).to_le_bytes());
        for (offset, value) in [(52, FILE_HEADER_BYTES), (58, SECTION_HEADER_BYTES), (60, count), (62, count - 1)] {
            self.bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
        }
        self.bytes
    }
}
