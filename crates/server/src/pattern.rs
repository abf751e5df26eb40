//! Patterns of names: of images, of image ids, and of volumes.

/// Longest pattern: the longest name and tag.
const PATTERN_BYTES_MAX: usize = 257;

/// Which names a right or a rule is for. `*` stands for any text, but not for the `:` before a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// All images and all ids, or all volumes.
    All,
    /// `NAME:TAG`; `NAME` alone means all its tags.
    Image { name: String, tag: String },
    /// `@ID`.
    Id(String),
    /// A volume.
    Volume(String),
}

impl Pattern {
    /// Of `NAME`, `NAME:TAG` or `@ID`, or `*` for all images.
    pub fn of_images(text: &str) -> Result<Pattern, String> {
        if text == "*" {
            return Ok(Pattern::All);
        }
        if let Some(id) = text.strip_prefix('@') {
            let good = |byte: u8| byte.is_ascii_digit() || b"abcdef*".contains(&byte);
            let fits = !id.is_empty() && id.len() <= PATTERN_BYTES_MAX && id.bytes().all(good);
            return if fits { Ok(Pattern::Id(id.into())) } else { Err(format!("{text:?} is no pattern of image ids")) };
        }
        let (name, tag) = text.split_once(':').unwrap_or((text, "*"));
        if !is_pattern(name) || !is_pattern(tag) {
            return Err(format!(
                "{text:?} is no pattern of images: write NAME, NAME:TAG or @ID, with `*` for any text"
            ));
        }
        Ok(Pattern::Image { name: name.into(), tag: tag.into() })
    }

    /// Of volumes, or `*` for all.
    pub fn of_volumes(text: &str) -> Result<Pattern, String> {
        match text {
            "*" => Ok(Pattern::All),
            text if is_pattern(text) => Ok(Pattern::Volume(text.into())),
            text => Err(format!("{text:?} is no pattern of volumes: write NAME, with `*` for any text")),
        }
    }

    /// Whether `found` is one of the names: `NAME:TAG`, `@ID`, or the name of a volume.
    pub fn matches(&self, found: &str) -> bool {
        match self {
            Pattern::All => true,
            Pattern::Id(id) => found.strip_prefix('@').is_some_and(|found| glob(id, found)),
            Pattern::Image { name, tag } => {
                found.split_once(':').is_some_and(|(stem, found)| glob(name, stem) && glob(tag, found))
            }
            Pattern::Volume(name) => glob(name, found),
        }
    }
}

/// Letters, digits and what names may hold, and `*`.
fn is_pattern(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-*".contains(&byte);
    !text.is_empty() && text.len() <= PATTERN_BYTES_MAX && text.bytes().all(good)
}

/// Whether a text fits a pattern in which `*` stands for any text. Goes back to the last `*` only,
/// so it takes no longer than the product of the lengths.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Behind the last `*`, and where its text ends so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, t));
            }
            Some(byte) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                Some((behind, end)) => {
                    *end += 1;
                    (p, t) = (*behind, *end);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use units::{Rng, SplitMix64};

    use super::*;

    #[test]
    fn patterns_match_what_they_say() {
        let image = |pattern: &str, name: &str| Pattern::of_images(pattern).unwrap().matches(name);
        for (pattern, name, expected) in [
            ("*", "app:latest", true),
            ("*", "@00ff", true),
            ("*:*", "@00ff", false),
            ("app", "app:v1", true),
            ("app", "app2:v1", false),
            ("app:latest", "app:v1", false),
            ("app-*", "app-x:v1", true),
            ("app-*", "app-:latest", true),
            ("app-*:v*", "app-x:v1", true),
            ("app-*:v*", "app-x:latest", false),
            ("*a*b*", "xaxxb:t", true),
            ("*a*b", "xabx:t", false),
            ("@*", "@00ff", true),
            ("@00*", "@01ff", false),
            ("@*", "app:latest", false),
        ] {
            assert_eq!(image(pattern, name), expected, "{pattern} of {name}");
        }
        for wrong in ["", ":", "a:", ":b", "a:b:c", "a/b", "@", "@xyz", "a b", "ä"] {
            assert!(Pattern::of_images(wrong).is_err(), "{wrong:?}");
        }
        assert!(Pattern::of_volumes("da*").unwrap().matches("data"));
        assert!(Pattern::of_volumes("data:rw").is_err());
    }

    /// Beside a matcher that tries everything.
    #[test]
    fn ref_globs_match_as_one_that_tries_everything() {
        fn slow(pattern: &[u8], text: &[u8]) -> bool {
            match pattern.split_first() {
                None => text.is_empty(),
                Some((b'*', rest)) => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
                Some((byte, rest)) => text.first() == Some(byte) && slow(rest, &text[1..]),
            }
        }
        let mut rng = SplitMix64(5);
        let mut word = |letters: &[u8], max| -> String {
            let count = rng.below(max);
            (0..count).map(|_| char::from(letters[rng.below(letters.len() as u64) as usize])).collect()
        };
        for _ in 0..20_000 {
            let (pattern, text) = (word(b"ab*", 7), word(b"ab", 8));
            assert_eq!(glob(&pattern, &text), slow(pattern.as_bytes(), text.as_bytes()), "{pattern} of {text}");
        }
    }
}
