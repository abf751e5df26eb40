//! Names of images: `python`, `python:3.11`, or `@` and the 64 hexadecimal digits of an id.
//!
//! Name and tag become parts of a store key, so their alphabet is narrower than that of a key.

use units::ImageId;

/// Longest name and longest tag in bytes, as in the OCI distribution specification.
const PART_BYTES_MAX: usize = 128;

/// The tag meant when none is given.
pub const LATEST: &str = "latest";

/// What a client asks to open or to publish.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// By name and tag.
    Tag {
        /// The name.
        name: String,
        /// The tag.
        tag: String,
    },
    /// By the image's identity.
    Id(ImageId),
}

impl Name {
    /// Parses `name`, `name:tag` or `@id`; the error says what is wrong with it.
    ///
    /// # Errors
    /// Why it is no name.
    pub fn parse(text: &str) -> Result<Name, String> {
        if let Some(digits) = text.strip_prefix('@') {
            let id = ImageId::from_hex(digits);
            return id.map(Name::Id).ok_or_else(|| "an image id is @ and 64 hexadecimal digits".to_owned());
        }
        let (name, tag) = text.split_once(':').unwrap_or((text, LATEST));
        check("name", name)?;
        check("tag", tag)?;
        Ok(Name::Tag { name: name.to_owned(), tag: tag.to_owned() })
    }

    /// Whether `part` could be a name.
    pub fn is_name(part: &str) -> bool {
        check("name", part).is_ok()
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Tag { name, tag } => write!(f, "{name}:{tag}"),
            Name::Id(id) => write!(f, "@{id}"),
        }
    }
}

fn check(what: &str, part: &str) -> Result<(), String> {
    let shown: String = part.chars().take(40).collect();
    if part.is_empty() {
        return Err(format!("the {what} of an image cannot be empty"));
    }
    if part.len() > PART_BYTES_MAX {
        return Err(format!("the {what} {shown:?}... of an image is longer than {PART_BYTES_MAX} bytes"));
    }
    let first = part.as_bytes()[0];
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !first.is_ascii_alphanumeric() || !part.bytes().all(good) {
        return Err(format!(
            "{shown:?} cannot be the {what} of an image: use letters, digits, '.', '_' and '-', the first a letter or digit"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        let tag = |name: &str, tag: &str| Name::Tag { name: name.to_owned(), tag: tag.to_owned() };
        assert_eq!(Name::parse("python"), Ok(tag("python", "latest")));
        assert_eq!(Name::parse("python3.11-slim:v1_2"), Ok(tag("python3.11-slim", "v1_2")));
        let id = ImageId([7; 32]);
        assert_eq!(Name::parse(&format!("@{id}")), Ok(Name::Id(id)));
        assert_eq!(Name::parse("a:b").unwrap().to_string(), "a:b");
    }

    #[test]
    fn what_could_leave_its_folder_is_no_name() {
        let long = "x".repeat(129);
        for text in ["", ":", "a:", ":b", "..", "a/b", ".hidden", "a:..", "a:b:c", "a b", "@12", "-x", "ä", &long] {
            assert!(Name::parse(text).is_err(), "{text:?}");
        }
    }
}
