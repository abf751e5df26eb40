//! Bearer tokens: secrets by which a server knows who asks.
//!
//! A token is `rnl_`, 48 hexadecimal digits at random, and 8 digits of checksum. By prefix and
//! checksum a scanner finds tokens that leaked into a repository or a log. A server keeps the hash
//! of a token only. The frame takes any text, so that a later kind of token needs no other frame.

use std::fmt;

/// Begins every token.
pub const PREFIX: &str = "rnl_";

/// Random bytes of a token: nobody guesses so many, so a plain hash hides them.
pub const RANDOM_BYTES: usize = 24;

/// Bytes of the checksum: enough that no other text passes for a token.
const CHECKSUM_BYTES: usize = 4;

/// A token. It is not printed by accident: `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(String);

impl Bearer {
    /// A new token of random bytes.
    pub fn new(random: [u8; RANDOM_BYTES]) -> Bearer {
        let mut text = PREFIX.to_owned();
        text.extend(random.iter().map(|byte| format!("{byte:02x}")));
        text += &checksum(&text);
        Bearer(text)
    }

    /// Reads a token that a user gave; white space around it is left out.
    ///
    /// # Errors
    /// It is no token, or was copied with an error. The text is not repeated.
    pub fn parse(text: &str) -> Result<Bearer, &'static str> {
        let text = text.trim();
        let digits = text.strip_prefix(PREFIX).ok_or("this is no token: tokens begin with rnl_")?;
        if digits.len() != 2 * (RANDOM_BYTES + CHECKSUM_BYTES) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("this is no token: 56 hexadecimal digits follow rnl_");
        }
        let (secret, found) = text.split_at(text.len() - 2 * CHECKSUM_BYTES);
        if checksum(secret) != found {
            return Err("the token was copied with an error: its checksum is wrong");
        }
        Ok(Bearer(text.to_owned()))
    }

    /// A text in the place of a token, as a peer sent it.
    pub fn received(text: String) -> Bearer {
        Bearer(text)
    }

    /// The token itself, for the one who gets it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What a server keeps of the token.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.0.as_bytes()).as_bytes()
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(..)")
    }
}

fn checksum(secret: &str) -> String {
    let hash = blake3::hash(secret.as_bytes());
    hash.as_bytes()[..CHECKSUM_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_parse_and_mistakes_are_found() {
        let token = Bearer::new([7; RANDOM_BYTES]);
        let text = token.reveal();
        assert_eq!(text.len(), 60);
        assert_eq!(Bearer::parse(&format!(" {text}\n")), Ok(token.clone()));
        assert_eq!(format!("{token:?}"), "Bearer(..)");
        for at in 0..text.len() {
            let mut wrong = text.as_bytes().to_vec();
            wrong[at] = if wrong[at] == b'8' { b'9' } else { b'8' };
            assert!(Bearer::parse(std::str::from_utf8(&wrong).unwrap()).is_err(), "byte {at}");
        }
        for text in ["", "rnl_", "x", &text[..59], &format!("{text}0"), "rnl_ö"] {
            assert!(Bearer::parse(text).is_err(), "{text}");
        }
    }
}
