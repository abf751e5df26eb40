//! The build id of an ELF file: the linker's hash of its content, kept through stripping and
//! package updates.
//!
//! A PT_NOTE segment is a list of notes: name length, descriptor length, type (4 bytes each), then
//! name and descriptor, each padded to 4 bytes (System V gABI, "Note Section"). The build id is the
//! descriptor of the note "GNU" of type NT_GNU_BUILD_ID.

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, U32};

use crate::program::{all, class_of, exact, first, read_program_headers};
use crate::{Bytes, Class, ElfError};

/// Bytes of notes that are looked at, a segment: build id and properties together take under 200.
const NOTES_BYTES_MAX: u64 = 64 << 10;

/// Longest build id, in bytes: linkers write 8 to 20, `--build-id=0x…` any length.
pub const BUILD_ID_BYTES_MAX: usize = 32;

/// The build id of the ELF file in `bytes`; `None` if it has none, or one over
/// [`BUILD_ID_BYTES_MAX`].
///
/// # Errors
/// Not an ELF file, or one whose headers make no sense.
pub fn build_id(bytes: &(impl Bytes + ?Sized)) -> Result<Option<Vec<u8>>, ElfError> {
    match class_of(bytes)? {
        Class::Elf32 => find::<FileHeader32<Endianness>>(bytes),
        Class::Elf64 => find::<FileHeader64<Endianness>>(bytes),
    }
}

fn find<Elf: FileHeader<Endian = Endianness>>(bytes: &(impl Bytes + ?Sized)) -> Result<Option<Vec<u8>>, ElfError> {
    let raw = exact(bytes, "file header", 0, size_of::<Elf>())?;
    let header: &Elf = first(&raw)?;
    let endian = header.endian().map_err(|_| ElfError::NotElf)?;
    let raw = read_program_headers(bytes, header, endian)?;
    let headers: &[Elf::ProgramHeader] = all(&raw)?;
    for header in headers.iter().filter(|header| header.p_type(endian) == elf::PT_NOTE) {
        let (offset, size) = header.file_range(endian);
        if size > NOTES_BYTES_MAX {
            continue;
        }
        let notes = exact(bytes, "notes", offset, size as usize)?;
        if let Some(id) = in_notes(&notes, endian) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

fn in_notes(mut notes: &[u8], endian: Endianness) -> Option<Vec<u8>> {
    loop {
        let (head, rest) = notes.split_at_checked(12)?;
        let word = |word: usize| head.as_chunks::<4>().0[word];
        let number = |at: usize| U32::<Endianness>::from_bytes(word(at)).get(endian) as usize;
        let (name_bytes, id_bytes, kind) = (number(0), number(1), number(2));
        let (name, rest) = rest.split_at_checked(name_bytes.checked_next_multiple_of(4)?)?;
        let (id, rest) = rest.split_at_checked(id_bytes.checked_next_multiple_of(4)?.min(rest.len()))?;
        if name == b"GNU\0" && kind == elf::NT_GNU_BUILD_ID.0 as usize {
            return id.get(..id_bytes).filter(|id| (1..=BUILD_ID_BYTES_MAX).contains(&id.len())).map(<[u8]>::to_vec);
        }
        notes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], id: &[u8], kind: u32) -> Vec<u8> {
        let padded = |bytes: &[u8]| [bytes, &vec![0; bytes.len().next_multiple_of(4) - bytes.len()]].concat();
        let head: Vec<u8> = [name.len() as u32, id.len() as u32, kind].iter().flat_map(|n| n.to_le_bytes()).collect();
        [head, padded(name), padded(id)].concat()
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let notes = [note(b"GNU\0", &[9; 16], 5), note(b"Other\0", &[8; 3], 3), note(b"GNU\0", &[7; 19], 3)].concat();
        assert_eq!(in_notes(&notes, Endianness::Little), Some(vec![7; 19]));
        for cut in 0..notes.len() - 1 {
            assert_eq!(in_notes(&notes[..cut], Endianness::Little), None, "cut at {cut}");
        }
        assert_eq!(in_notes(&note(b"GNU\0", &[7; 33], 3), Endianness::Little), None, "too long");
        assert_eq!(in_notes(&note(b"GNU\0", b"", 3), Endianness::Little), None, "empty");
        assert_eq!(in_notes(&[0xff; 12], Endianness::Big), None, "lengths that overflow");
    }

    #[test]
    fn ref_readelf_sees_the_same_build_id() {
        let path = std::env::current_exe().unwrap();
        let Ok(output) = std::process::Command::new("readelf").arg("-n").arg(&path).output() else {
            println!("skipped: no readelf");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).map(str::to_string);
        let found = build_id(&std::fs::read(&path).unwrap()[..]).unwrap();
        let found = found.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        assert_eq!(found, expected);
    }
}
