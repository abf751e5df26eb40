//! Which libraries are to be reported, and where: the value of `RUNNEL_AUDIT`.
//!
//! `NAME FILTERS DEVICE:INODE ...`, numbers in hexadecimal: the abstract name of the launcher's
//! datagram socket, the number of system call filters that the launcher is under, and the
//! libraries. `launch::auditor` writes it.

/// Libraries that are looked for, the first ones. One bit each in a word; a plan has few groups
/// with a library of their own.
pub(crate) const LIBRARIES_MAX: usize = 64;

/// Bytes of the socket's name; the kernel takes 107.
pub(crate) const NAME_BYTES_MAX: usize = 100;

/// What the variable says. Copied out of the environment, which the program may overwrite.
pub(crate) struct Wanted {
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
    /// System call filters that the launcher is under.
    pub(crate) filters: u64,
    /// Device and inode each.
    libraries: [(u64, u64); LIBRARIES_MAX],
    count: usize,
}

impl Wanted {
    /// `None` if the text is not as described above.
    pub(crate) fn parse(text: &[u8]) -> Option<Wanted> {
        let mut words = text.split(|byte| *byte == b' ');
        let given = words.next().filter(|name| !name.is_empty())?;
        let mut name = [0; NAME_BYTES_MAX];
        name.get_mut(..given.len())?.copy_from_slice(given);
        let filters = number(words.next()?)?;
        let mut wanted =
            Wanted { name, name_bytes: given.len(), filters, libraries: [(0, 0); LIBRARIES_MAX], count: 0 };
        for (word, library) in words.zip(&mut wanted.libraries) {
            let colon = word.iter().position(|byte| *byte == b':')?;
            *library = (number(word.get(..colon)?)?, number(word.get(colon + 1..)?)?);
            wanted.count += 1;
        }
        (wanted.count > 0).then_some(wanted)
    }

    /// The abstract name, without the zero byte before it.
    pub(crate) fn name(&self) -> &[u8] {
        self.name.get(..self.name_bytes).unwrap_or_default()
    }

    /// The position of a library.
    pub(crate) fn position(&self, device: u64, inode: u64) -> Option<usize> {
        self.libraries.iter().take(self.count).position(|library| *library == (device, inode))
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let digit = |value: u64, byte: &u8| {
        let digit = u64::from((*byte as char).to_digit(16)?);
        value.checked_mul(16)?.checked_add(digit)
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, digit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_launcher_writes_is_understood_and_nothing_else() {
        let wanted = Wanted::parse(b"runnel-7 2 fd00:1f ffffffffffffffff:0").expect("parsed");
        assert_eq!((wanted.name(), wanted.filters, wanted.count), (&b"runnel-7"[..], 2, 2));
        assert_eq!([wanted.position(0xfd00, 31), wanted.position(u64::MAX, 0)], [Some(0), Some(1)]);
        // Places that are not used are no library.
        assert_eq!(wanted.position(0, 0), None);
        for text in ["", " ", "a", "a 0", " 0 1:2", "a 0 ", "a x 1:2", "a 0 1", "a 0 1:", "a 0 :1", "a 0 1:2  3:4"] {
            assert!(Wanted::parse(text.as_bytes()).is_none(), "{text:?}");
        }
        assert!(Wanted::parse(b"a 0 10000000000000000:1").is_none(), "more than 64 bits");
        let long = [&[b'n'; NAME_BYTES_MAX + 1], &b" 0 1:2"[..]].concat();
        assert!(Wanted::parse(&long).is_none() && Wanted::parse(&long[1..]).is_some());
        let many = format!("a 0{}", " 1:2".repeat(LIBRARIES_MAX + 9));
        assert_eq!(Wanted::parse(many.as_bytes()).expect("parsed").count, LIBRARIES_MAX);
    }
}
