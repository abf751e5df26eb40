//! The interpreter line of a script, as the kernel reads it.

/// Bytes of the first line that Linux looks at (BINPRM_BUF_SIZE).
pub(crate) const LINE_BYTES_MAX: usize = 256;

/// `#!interpreter argument`. The argument is everything after the first run of blanks, one string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shebang {
    /// Path of the interpreter as written.
    pub interpreter: Vec<u8>,
    /// Its argument, if any.
    pub argument: Option<Vec<u8>>,
}

impl Shebang {
    /// Parses the first bytes of a file; `None` if it is not a script. Only the first 256 bytes
    /// count; a line that does not end within them is accepted if the interpreter's path does, as
    /// in Linux.
    pub fn parse(start: &[u8]) -> Option<Shebang> {
        let start = &start[..start.len().min(LINE_BYTES_MAX)];
        let rest = start.strip_prefix(b"#!")?;
        let (line, whole) = match rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&rest[..end], true),
            None => (rest, start.len() < LINE_BYTES_MAX),
        };
        let line = trim_start(line);
        let end = line.iter().position(|byte| is_blank(*byte));
        if end.is_none() && !whole {
            return None;
        }
        let (interpreter, argument) = line.split_at(end.unwrap_or(line.len()));
        let mut argument = trim_start(argument);
        while let [before @ .., last] = argument
            && is_blank(*last)
        {
            argument = before;
        }
        if interpreter.is_empty() || interpreter.contains(&0) {
            return None;
        }
        let argument = (!argument.is_empty()).then(|| argument.to_vec());
        Some(Shebang { interpreter: interpreter.to_vec(), argument })
    }

    /// The program that `env` in an interpreter line starts: the first word that is neither an
    /// option nor a setting (`env -S FOO=1 python3 -u` starts `python3`).
    pub fn env_program(&self) -> Option<&[u8]> {
        if !self.interpreter.ends_with(b"/env") {
            return None;
        }
        let words = self.argument.as_deref()?.split(|byte| is_blank(*byte));
        words.into_iter().find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='))
    }
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn trim_start(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text
        && is_blank(*first)
    {
        text = rest;
    }
    text
}
