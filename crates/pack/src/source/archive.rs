//! The bytes of an archive, plain or compressed, on disk or from a pipe.
//!
//! Compression is recognised by magic, not by name. In a plain archive on disk, the data of entries
//! stays where it is; from all others it is copied to the [`Spool`], since they can be read only
//! once.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::PackError;
use crate::content::{Content, OpenContent, Stretch};
use crate::spool::{CopyError, Spool};

/// Bytes read from an archive at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// Memory an xz archive may ask for: the largest preset needs 65 MiB to decode.
const XZ_MEMORY_BYTES: u64 = 256 << 20;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Plain,
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    fn of(start: &[u8]) -> Compression {
        match start {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
            _ => Compression::Plain,
        }
    }
}

/// The uncompressed bytes of an archive, read once from front to back.
pub(crate) enum Archive<'a> {
    /// A plain archive in a file.
    Direct { file: Arc<File>, name: Arc<str>, start: u64, bytes: u64, position: u64 },
    /// Anything else.
    Stream { reader: Box<dyn Read + 'a>, position: u64 },
}

impl<'a> Archive<'a> {
    /// Opens an archive that lies in a content of `size` bytes. `name` is for messages.
    pub(crate) fn in_content(content: &'a Content, size: u64, name: &str) -> Result<Archive<'a>, PackError> {
        let open = content.open()?;
        let mut start = [0u8; 6];
        let count = size.min(start.len() as u64) as usize;
        open.read_at(0, &mut start[..count])?;
        let compression = Compression::of(&start[..count]);
        if compression == Compression::Plain {
            let direct = match content {
                Content::Local(about) => {
                    let file = File::open(&about.path).map_err(|source| PackError::read(&about.path, source))?;
                    Some((Arc::new(file), 0))
                }
                Content::Stored { file, stretches, .. } => match **stretches {
                    [Stretch { start: 0, bytes, at }] if bytes == size => Some((file.clone(), at)),
                    _ => None,
                },
                Content::Hole => None,
            };
            if let Some((file, start)) = direct {
                return Ok(Archive::Direct { file, name: name.into(), start, bytes: size, position: 0 });
            }
        }
        let reader = BufReader::with_capacity(BUFFER_BYTES, ContentReader { open, position: 0, size });
        Archive::stream(reader, compression).map_err(|source| PackError::read(Path::new(name), source))
    }

    /// An archive that passes by, from a pipe for example.
    pub(crate) fn from_reader(reader: Box<dyn Read + Send>, name: &str) -> Result<Archive<'a>, PackError> {
        let failed = |source| PackError::read(Path::new(name), source);
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, reader);
        let compression = Compression::of(reader.fill_buf().map_err(failed)?);
        Archive::stream(reader, compression).map_err(failed)
    }

    fn stream(reader: impl BufRead + 'a, compression: Compression) -> io::Result<Archive<'a>> {
        let reader: Box<dyn Read + 'a> = match compression {
            Compression::Plain => Box::new(reader),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(reader)?),
            Compression::Xz => {
                let decoder =
                    liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES, liblzma::stream::CONCATENATED)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(reader, decoder))
            }
        };
        // Decoders hand out small pieces; entries are read in records of 512 bytes.
        Ok(Archive::Stream { reader: Box::new(BufReader::with_capacity(BUFFER_BYTES, reader)), position: 0 })
    }

    /// Bytes read or passed over so far.
    pub(crate) fn position(&self) -> u64 {
        match self {
            Archive::Direct { position, .. } | Archive::Stream { position, .. } => *position,
        }
    }

    /// Fills `buffer` as far as the archive goes; returns the bytes read.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Archive::Direct { file, start, bytes, position, .. } => {
                let count = (*bytes - *position).min(buffer.len() as u64) as usize;
                file.read_exact_at(&mut buffer[..count], *start + *position)?;
                *position += count as u64;
                Ok(count)
            }
            Archive::Stream { reader, position } => {
                let mut count = 0;
                while count < buffer.len() {
                    match reader.read(&mut buffer[count..]) {
                        Ok(0) => break,
                        Ok(more) => count += more,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                *position += count as u64;
                Ok(count)
            }
        }
    }

    /// Passes over `bytes` bytes; ending before that is an error of kind `UnexpectedEof`.
    pub(crate) fn skip(&mut self, bytes: u64) -> io::Result<()> {
        match self {
            Archive::Direct { bytes: all, position, .. } => {
                if bytes > *all - *position {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *position += bytes;
            }
            Archive::Stream { reader, position } => {
                if io::copy(&mut reader.by_ref().take(bytes), &mut io::sink())? < bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *position += bytes;
            }
        }
        Ok(())
    }

    /// The next bytes as a content: `stretches` say where they belong, their `at` counts from here.
    pub(crate) fn content(&mut self, mut stretches: Vec<Stretch>, spool: &mut Spool) -> Result<Content, CopyError> {
        match self {
            Archive::Direct { file, name, start, bytes, position } => {
                let stored: u64 = stretches.iter().map(|stretch| stretch.bytes).sum();
                if stored > *bytes - *position {
                    return Err(CopyError::Reader(io::ErrorKind::UnexpectedEof.into()));
                }
                stretches.iter_mut().for_each(|stretch| stretch.at += *start + *position);
                *position += stored;
                if stretches.is_empty() {
                    return Ok(Content::Hole);
                }
                Ok(Content::Stored { file: file.clone(), name: name.clone(), stretches: stretches.into() })
            }
            Archive::Stream { reader, position } => {
                let mut spooled = Vec::new();
                for stretch in stretches {
                    spool.copy(reader, stretch.start, stretch.bytes, &mut spooled)?;
                    *position += stretch.bytes;
                }
                Ok(spool.content(spooled))
            }
        }
    }

    /// Reads to the end, so that a compressed archive's own checksum is checked and a pipe's writer
    /// can finish.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        match self {
            Archive::Direct { .. } => Ok(()),
            Archive::Stream { reader, .. } => io::copy(reader, &mut io::sink()).map(|_| ()),
        }
    }
}

/// A content read from front to back.
pub(crate) struct ContentReader<'a> {
    open: OpenContent<'a>,
    position: u64,
    size: u64,
}

impl<'a> ContentReader<'a> {
    /// Reads a content of `size` bytes.
    pub(crate) fn new(content: &'a Content, size: u64) -> Result<ContentReader<'a>, PackError> {
        Ok(ContentReader { open: content.open()?, position: 0, size })
    }
}

impl Read for ContentReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (self.size - self.position).min(buffer.len() as u64) as usize;
        self.open.read_at(self.position, &mut buffer[..count]).map_err(io::Error::other)?;
        self.position += count as u64;
        Ok(count)
    }
}
