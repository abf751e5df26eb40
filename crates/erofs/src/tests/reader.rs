//! A reader of uncompressed EROFS after the structures of fs/erofs/erofs_fs.h, as far from our
//! writer as can be: it uses plain offsets and none of its constants.

use image::Content;
use image::fixture::{Body, Node, Part};

type Read<'a> = &'a dyn Fn(u64, usize) -> Vec<u8>;

pub struct Reader<'a> {
    read: Read<'a>,
    blob: &'a [u8],
    root: u64,
    xattr_start: u64,
}

pub struct Inode {
    layout: u16,
    mode: u32,
    size: u64,
    union: u32,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    nlink: u32,
    owner: (u32, u32),
    mtime: (i64, u32),
    /// Where what follows the inode and its attributes starts.
    body: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

impl<'a> Reader<'a> {
    pub fn new(read: Read<'a>, blob: &'a [u8]) -> Reader<'a> {
        let superblock = read(1024, 128);
        assert_eq!(superblock[..4], [0xe2, 0xe1, 0xf5, 0xe0]);
        assert_eq!(superblock[12], 12);
        assert_eq!(u32_at(&superblock, 40), 0, "inodes count from the start");
        assert_eq!(u32_at(&superblock, 80), 0xc, "chunked files, device table");
        assert_eq!(u16_at(&superblock, 86), 1);
        let device = read(u64::from(u16_at(&superblock, 88)) * 128, 128);
        assert_eq!(u32_at(&device, 64) as usize * 4096, blob.len());
        let xattr_start = u64::from(u32_at(&superblock, 44)) * 4096;
        Reader { read, blob, root: u16_at(&superblock, 14).into(), xattr_start }
    }

    fn inode(&self, nid: u64) -> Inode {
        let raw = (self.read)(nid * 32, 64);
        let format = u16_at(&raw, 0);
        assert_eq!(format & 1, 1, "extended");
        let count = usize::from(u16_at(&raw, 2));
        let xattr_bytes = if count == 0 { 0 } else { 12 + 4 * (count - 1) };
        let area = (self.read)(nid * 32 + 64, xattr_bytes);
        let mut xattrs = Vec::new();
        if count > 0 {
            assert_eq!(usize::from(area[4]), count - 1, "all are shared");
            for place in 0..count - 1 {
                xattrs.push(self.xattr(self.xattr_start + 4 * u64::from(u32_at(&area, 12 + 4 * place))));
            }
        }
        Inode {
            layout: format >> 1,
            mode: u16_at(&raw, 4).into(),
            size: u64_at(&raw, 8),
            union: u32_at(&raw, 16),
            xattrs,
            nlink: u32_at(&raw, 44),
            owner: (u32_at(&raw, 24), u32_at(&raw, 28)),
            mtime: (u64_at(&raw, 32) as i64, u32_at(&raw, 40)),
            body: nid * 32 + 64 + xattr_bytes as u64,
        }
    }

    fn xattr(&self, at: u64) -> (Vec<u8>, Vec<u8>) {
        let head = (self.read)(at, 4);
        let prefix: &[u8] = match head[1] {
            1 => b"user.",
            2 => b"system.posix_acl_access",
            3 => b"system.posix_acl_default",
            4 => b"trusted.",
            6 => b"security.",
            other => panic!("name index {other}"),
        };
        let (name, value) = (usize::from(head[0]), usize::from(u16_at(&head, 2)));
        let rest = (self.read)(at + 4, name + value);
        ([prefix, &rest[..name]].concat(), rest[name..].to_vec())
    }

    /// The bytes of a directory or link.
    fn flat(&self, inode: &Inode) -> Vec<u8> {
        let whole = match inode.layout {
            0 => inode.size,
            2 => inode.size / 4096 * 4096,
            other => panic!("layout {other}"),
        };
        let mut bytes = (self.read)(u64::from(inode.union) * 4096, whole as usize);
        let tail = (inode.size - whole) as usize;
        if tail > 0 {
            assert_eq!(inode.body / 4096, (inode.body + tail as u64 - 1) / 4096, "crosses a border of blocks");
            bytes.extend((self.read)(inode.body, tail));
        }
        bytes
    }

    /// Names, numbers and types of what is in a directory, in its order.
    pub fn list(&self, nid: u64) -> Vec<(Vec<u8>, u64, u8)> {
        let inode = self.inode(nid);
        assert_eq!(inode.mode & 0o170_000, 0o040_000);
        let mut found = Vec::new();
        for block in self.flat(&inode).chunks(4096) {
            let count = usize::from(u16_at(block, 8)) / 12;
            for place in 0..count {
                let start = usize::from(u16_at(block, 12 * place + 8));
                let end = if place + 1 < count { usize::from(u16_at(block, 12 * place + 20)) } else { block.len() };
                let name = block[start..end].split(|byte| *byte == 0).next().expect("one");
                found.push((name.to_vec(), u64_at(block, 12 * place), block[12 * place + 10]));
            }
        }
        for (name, expected) in [(&b"."[..], Some(nid)), (b"..", None)] {
            let dot = found.iter().find(|(found, ..)| found == name).expect("has dots");
            assert!(expected.is_none_or(|nid| dot.1 == nid));
        }
        found
    }

    pub fn resolve(&self, path: &[u8]) -> u64 {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.fold(self.root, |nid, name| {
            let listed = self.list(nid);
            listed.iter().find(|(found, ..)| found == name).expect("has the name").1
        })
    }

    /// A page of a file; `None` for a hole.
    pub fn page(&self, nid: u64, page: u64) -> Option<&'a [u8]> {
        let inode = self.inode(nid);
        assert_eq!((inode.layout, inode.union), (4, 0x20));
        let index = (self.read)(inode.body.next_multiple_of(8) + 8 * page, 8);
        let block = u32_at(&index, 4);
        if block == u32::MAX {
            return None;
        }
        assert_eq!((u16_at(&index, 0), u16_at(&index, 2)), (0, 1));
        Some(&self.blob[block as usize * 4096..][..4096])
    }

    fn compare_file(&self, nid: u64, inode: &Inode, parts: &[Part]) {
        let size = |part: &Part| match part {
            Part::Data(bytes) => bytes.len() as u64,
            Part::Hole(bytes) => *bytes,
        };
        assert_eq!(inode.size, parts.iter().map(size).sum::<u64>());
        let mut start = 0;
        for part in parts {
            if let Part::Data(bytes) = part {
                for (number, expected) in bytes.chunks(4096).enumerate() {
                    let page = self.page(nid, start / 4096 + number as u64).expect("no hole");
                    assert_eq!(page[..expected.len()], *expected);
                }
            } else {
                for page in [start.div_ceil(4096), (start + size(part) - 1) / 4096] {
                    assert_eq!(self.page(nid, page), None, "page {page}");
                }
            }
            start += size(part);
        }
        // What lies behind the end of a file shows in mapped memory.
        if !inode.size.is_multiple_of(4096)
            && let Some(page) = self.page(nid, inode.size / 4096)
        {
            assert!(page[(inode.size % 4096) as usize..].iter().all(|byte| *byte == 0));
        }
    }

    pub fn compare(&self, nid: u64, node: &Node) {
        let inode = self.inode(nid);
        let shown = node.path.escape_ascii();
        assert_eq!(inode.mode & 0o7777, u32::from(node.permissions), "{shown}");
        assert_eq!(inode.owner, (node.uid, node.gid), "{shown}");
        assert_eq!(inode.mtime, node.mtime, "{shown}");
        assert_eq!(inode.xattrs, node.xattrs, "{shown}");
        assert!(inode.nlink >= 1, "{shown}");
        let kind = inode.mode >> 12;
        match &node.body {
            Body::File(parts) => {
                assert_eq!(kind, 8);
                self.compare_file(nid, &inode, parts);
            }
            Body::Other(Content::Dir) => assert_eq!(kind, 4),
            Body::Other(Content::Symlink(target)) => {
                assert_eq!(kind, 10);
                assert_eq!(self.flat(&inode), *target, "{shown}");
            }
            Body::Other(Content::Char(number)) => assert_eq!((kind, inode.union), (2, *number)),
            Body::Other(Content::Block(number)) => assert_eq!((kind, inode.union), (6, *number)),
            Body::Other(Content::Fifo) => assert_eq!(kind, 1),
            Body::Other(Content::Socket) => assert_eq!(kind, 12),
            other => panic!("{other:?}"),
        }
    }
}
