//! The facts of one ELF file that decide how it is started.
//!
//! Read by program headers, as the kernel and `ld.so` do: section headers may be stripped.
//! PT_INTERP names the interpreter; PT_DYNAMIC leads to a list of tags whose strings lie in the
//! table at DT_STRTAB, an address that the PT_LOAD segments translate to a file offset. Five reads
//! and one per string.

use std::io;

use object::elf::{self, FileHeader32, FileHeader64};
use object::pod;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, pod::Pod};

use crate::{
    Class, DYNAMIC_BYTES_MAX, ElfError, Endian, Machine, NEEDED_MAX, PROGRAM_HEADERS_MAX, STRING_BYTES_MAX, root::Root,
};

/// Bytes at offsets. Short reads mean the end of the file.
pub trait Bytes {
    /// Reads up to `buffer.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// Those of the system.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl Bytes for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let count = buffer.len().min(self.len() - start);
        buffer[..count].copy_from_slice(&self[start..start + count]);
        Ok(count)
    }
}

/// One file of a [`Root`].
pub(crate) struct FileBytes<'a> {
    pub(crate) root: &'a dyn Root,
    pub(crate) path: &'a [u8],
}

impl Bytes for FileBytes<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.root.read_at(self.path, offset, buffer)
    }
}

/// What an ELF file says about how it is started. Strings are bytes as in the file, without the
/// final NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Word size.
    pub class: Class,
    /// Byte order.
    pub endian: Endian,
    /// Processor architecture.
    pub machine: Machine,
    /// PT_INTERP: the program that loads this one, an absolute path on any sane system.
    pub interpreter: Option<Vec<u8>>,
    /// DT_NEEDED in file order.
    pub needed: Vec<Vec<u8>>,
    /// DT_SONAME: the name under which other files need this one.
    pub soname: Option<Vec<u8>>,
    /// DT_RPATH: colon-separated directories, searched for this file and all it loads.
    pub rpath: Option<Vec<u8>>,
    /// DT_RUNPATH: colon-separated directories, searched for this file's own needs only.
    pub runpath: Option<Vec<u8>>,
}

impl Program {
    /// Reads the facts of the ELF file in `bytes`. A file without a dynamic section (static,
    /// relocatable) needs nothing.
    ///
    /// # Errors
    /// It is no ELF file, damaged, or over a limit; or it cannot be read.
    pub fn parse(bytes: &(impl Bytes + ?Sized)) -> Result<Program, ElfError> {
        match class_of(bytes)? {
            Class::Elf32 => parse_class::<FileHeader32<Endianness>>(bytes),
            Class::Elf64 => parse_class::<FileHeader64<Endianness>>(bytes),
        }
    }

    /// Whether `ld.so` would load `other` into a process of this program.
    pub fn fits(&self, other: &Program) -> bool {
        (self.class, self.endian, self.machine) == (other.class, other.endian, other.machine)
    }
}

/// The word size of an ELF file, which says how all else in it is read.
pub(crate) fn class_of(bytes: &(impl Bytes + ?Sized)) -> Result<Class, ElfError> {
    let mut ident = [0u8; 16];
    let found = fill(bytes, "identification", 0, &mut ident)?;
    if found < ident.len() || ident[..4] != elf::ELFMAG {
        return Err(ElfError::NotElf);
    }
    match ident[4] {
        1 => Ok(Class::Elf32),
        2 => Ok(Class::Elf64),
        _ => Err(ElfError::NotElf),
    }
}

/// A PT_LOAD segment: where addresses lie in the file.
struct Load {
    address: u64,
    offset: u64,
    file_bytes: u64,
}

fn parse_class<Elf: FileHeader<Endian = Endianness>>(bytes: &(impl Bytes + ?Sized)) -> Result<Program, ElfError> {
    let raw = exact(bytes, "file header", 0, size_of::<Elf>())?;
    let header: &Elf = first(&raw)?;
    if !header.is_supported() {
        return Err(ElfError::NotElf);
    }
    let endian = header.endian().map_err(|_| ElfError::NotElf)?;
    let mut program = Program {
        class: if header.is_type_64() { Class::Elf64 } else { Class::Elf32 },
        endian: if header.is_little_endian() { Endian::Little } else { Endian::Big },
        machine: Machine(header.e_machine(endian).0),
        interpreter: None,
        needed: Vec::new(),
        soname: None,
        rpath: None,
        runpath: None,
    };
    let raw = read_program_headers(bytes, header, endian)?;
    let headers: &[Elf::ProgramHeader] = all(&raw)?;
    let mut loads = Vec::new();
    let mut dynamic = None;
    for header in headers {
        let (offset, file_bytes) = header.file_range(endian);
        match header.p_type(endian) {
            elf::PT_LOAD => loads.push(Load { address: header.p_vaddr(endian).into(), offset, file_bytes }),
            elf::PT_DYNAMIC => dynamic = Some((offset, file_bytes)),
            elf::PT_INTERP => {
                program.interpreter = Some(read_string(bytes, "interpreter", offset, file_bytes)?);
            }
            _ => {}
        }
    }
    if let Some((offset, file_bytes)) = dynamic {
        read_dynamic::<Elf>(bytes, endian, offset, file_bytes, &loads, &mut program)?;
    }
    Ok(program)
}

pub(crate) fn read_program_headers<Elf: FileHeader<Endian = Endianness>>(
    bytes: &(impl Bytes + ?Sized),
    header: &Elf,
    endian: Endianness,
) -> Result<Vec<u8>, ElfError> {
    let count = usize::from(header.e_phnum(endian));
    if count > PROGRAM_HEADERS_MAX {
        let (found, limit) = (count as u64, PROGRAM_HEADERS_MAX as u64);
        return Err(ElfError::TooLarge { what: "program headers", found, limit });
    }
    let offset: u64 = header.e_phoff(endian).into();
    let entry = size_of::<Elf::ProgramHeader>();
    if count == 0 {
        return Ok(Vec::new());
    }
    if usize::from(header.e_phentsize(endian)) != entry {
        let (expected, found) = (entry as u64, u64::from(header.e_phentsize(endian)));
        return Err(ElfError::Truncated { what: "program header entry", offset, expected, found });
    }
    exact(bytes, "program headers", offset, count * entry)
}

fn read_dynamic<Elf: FileHeader<Endian = Endianness>>(
    bytes: &(impl Bytes + ?Sized),
    endian: Endianness,
    offset: u64,
    file_bytes: u64,
    loads: &[Load],
    program: &mut Program,
) -> Result<(), ElfError> {
    if file_bytes > DYNAMIC_BYTES_MAX {
        let what = "bytes of the dynamic section";
        return Err(ElfError::TooLarge { what, found: file_bytes, limit: DYNAMIC_BYTES_MAX });
    }
    let entry = size_of::<Elf::Dyn>();
    let raw = exact(bytes, "dynamic section", offset, file_bytes as usize / entry * entry)?;
    let tags: &[Elf::Dyn] = all(&raw)?;
    let (mut strings, mut strings_bytes) = (None, u64::MAX);
    let mut wanted = Vec::new();
    for tag in tags {
        let value: u64 = tag.d_val(endian).into();
        match tag.tag(endian) {
            elf::DT_NULL => break,
            elf::DT_STRTAB => strings = Some(value),
            elf::DT_STRSZ => strings_bytes = value,
            kind @ (elf::DT_NEEDED | elf::DT_SONAME | elf::DT_RPATH | elf::DT_RUNPATH) => wanted.push((kind, value)),
            _ => {}
        }
    }
    if wanted.len() > NEEDED_MAX {
        let (found, limit) = (wanted.len() as u64, NEEDED_MAX as u64);
        return Err(ElfError::TooLarge { what: "needed libraries", found, limit });
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let address = strings.unwrap_or(0);
    let table = file_offset(loads, address).ok_or(ElfError::Unmapped { what: "dynamic string table", address })?;
    for (kind, position) in wanted {
        let left = strings_bytes.saturating_sub(position);
        let text = read_string(bytes, "dynamic string", table.saturating_add(position), left)?;
        match kind {
            elf::DT_NEEDED => program.needed.push(text),
            elf::DT_SONAME => program.soname = Some(text),
            elf::DT_RPATH => program.rpath = Some(text),
            _ => program.runpath = Some(text),
        }
    }
    Ok(())
}

fn file_offset(loads: &[Load], address: u64) -> Option<u64> {
    let load = loads.iter().find(|load| address.checked_sub(load.address).is_some_and(|at| at < load.file_bytes))?;
    load.offset.checked_add(address - load.address)
}

/// A NUL-terminated string of at most `room` bytes at `offset`.
fn read_string(bytes: &(impl Bytes + ?Sized), what: &'static str, offset: u64, room: u64) -> Result<Vec<u8>, ElfError> {
    let limit = room.min(STRING_BYTES_MAX as u64 + 1);
    let mut text = vec![0u8; limit as usize];
    let found = fill(bytes, what, offset, &mut text)?;
    match text[..found].iter().position(|byte| *byte == 0) {
        Some(end) => {
            text.truncate(end);
            Ok(text)
        }
        None => Err(ElfError::Unterminated { what, offset, limit }),
    }
}

pub(crate) fn exact(
    bytes: &(impl Bytes + ?Sized),
    what: &'static str,
    offset: u64,
    expected: usize,
) -> Result<Vec<u8>, ElfError> {
    let mut buffer = vec![0u8; expected];
    let found = fill(bytes, what, offset, &mut buffer)?;
    if found < expected {
        return Err(ElfError::Truncated { what, offset, expected: expected as u64, found: found as u64 });
    }
    Ok(buffer)
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn fill(
    bytes: &(impl Bytes + ?Sized),
    what: &'static str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, ElfError> {
    let mut done = 0;
    while done < buffer.len() {
        let Some(at) = offset.checked_add(done as u64) else { break };
        match bytes.read_at(at, &mut buffer[done..]).map_err(|source| ElfError::Read { what, source })? {
            0 => break,
            count => done += count.min(buffer.len() - done),
        }
    }
    Ok(done)
}

pub(crate) fn first<T: Pod>(raw: &[u8]) -> Result<&T, ElfError> {
    pod::from_bytes(raw).map(|(value, _)| value).map_err(|()| ElfError::NotElf)
}

pub(crate) fn all<T: Pod>(raw: &[u8]) -> Result<&[T], ElfError> {
    pod::slice_from_all_bytes(raw).map_err(|()| ElfError::NotElf)
}
