//! An image as a tree of files to be analysed.

use std::io;
use std::sync::mpsc;

use client::Session;
use elf::{Node, Root};
use image::Kind;
use units::{InodeId, Token};

/// Bytes asked for at a time.
const READ_BYTES: usize = 256 * 1024;

/// An opened image.
pub struct ImageRoot<'a> {
    session: &'a Session,
}

impl<'a> ImageRoot<'a> {
    /// The tree of an image.
    pub fn new(session: &'a Session) -> ImageRoot<'a> {
        ImageRoot { session }
    }

    fn inode(&self, path: &[u8]) -> Option<InodeId> {
        self.session.metadata().resolve(path)
    }

    fn read(&self, id: InodeId, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let (answer, answers) = mpsc::sync_channel(1);
        let done = Box::new(move |result: Result<&[u8], client::ReadError>| {
            // The receiver lives until the answer arrived.
            let _ = answer.send(result.map(<[u8]>::to_vec));
        });
        self.session.read(Token::default(), id, offset, bytes as u32, done);
        let answer = answers.recv().map_err(|_| io::Error::other("the session ended"))?;
        answer.map_err(io::Error::other)
    }
}

impl Root for ImageRoot<'_> {
    fn node(&self, path: &[u8]) -> io::Result<Option<Node>> {
        let metadata = self.session.metadata();
        let Some(id) = self.inode(path) else { return Ok(None) };
        let Some(inode) = metadata.inode(id) else { return Ok(None) };
        Ok(Some(match inode.kind() {
            Kind::File => Node::File,
            Kind::Dir => Node::Directory,
            Kind::Symlink => Node::Symlink(metadata.symlink(id).unwrap_or_default().to_vec()),
            _ => Node::Other,
        }))
    }

    fn read_at(&self, path: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let id = self.inode(path).ok_or(io::ErrorKind::NotFound)?;
        let inode = self.session.metadata().inode(id).ok_or(io::ErrorKind::NotFound)?;
        let left = usize::try_from(inode.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let mut done = 0;
        while done < wanted {
            let piece = self.read(id, offset + done as u64, READ_BYTES.min(wanted - done))?;
            if piece.is_empty() {
                break;
            }
            let count = piece.len().min(wanted - done);
            buffer[done..done + count].copy_from_slice(&piece[..count]);
            done += count;
        }
        Ok(done)
    }

    fn names(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let id = self.inode(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.session.metadata().entries(id).map(|entry| entry.name.to_vec()).collect())
    }
}
