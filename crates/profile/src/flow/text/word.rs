//! A line of text as words, each with its column.

use crate::flow::TextError;

/// Letters of a foreign word that a message repeats.
const REPEATED_MAX: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A number of digits only.
    Number(u64),
    /// `..`
    Dots,
    /// `->`
    Arrow,
    /// `%`
    Percent,
    /// `"…"`, without the quotes.
    Quoted(String),
    /// Letters and digits, with a letter first.
    Name(String),
}

impl Word {
    /// As a message repeats it.
    pub fn shown(&self) -> String {
        let text = match self {
            Word::Number(number) => number.to_string(),
            Word::Dots => "..".into(),
            Word::Arrow => "->".into(),
            Word::Percent => "%".into(),
            Word::Quoted(name) => format!("\"{name}\""),
            Word::Name(name) => name.clone(),
        };
        format!("`{}`", repeated(&text))
    }
}

/// Text of a stranger as a message may show it.
pub(super) fn repeated(text: &str) -> String {
    let mut shown: String = text.chars().take(REPEATED_MAX).flat_map(char::escape_debug).collect();
    if text.chars().count() > REPEATED_MAX {
        shown.push('…');
    }
    shown
}

/// The words of a line, with the column of each.
pub(super) fn words(line: u32, text: &str) -> Result<Vec<(u32, Word)>, TextError> {
    let letters: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(letter) = letters.get(at) {
        let column = at as u32 + 1;
        let failed =
            |problem: String, instead: &str| Err(TextError { line, column, problem, instead: instead.to_string() });
        let run = |fits: fn(&char) -> bool| letters[at..].iter().take_while(|letter| fits(letter)).count();
        let (length, word) = match letter {
            '#' => break,
            letter if letter.is_whitespace() => {
                at += 1;
                continue;
            }
            '.' if letters.get(at + 1) == Some(&'.') => (2, Word::Dots),
            '-' if letters.get(at + 1) == Some(&'>') => (2, Word::Arrow),
            '%' => (1, Word::Percent),
            '"' => {
                let length = letters[at + 1..].iter().take_while(|letter| **letter != '"').count();
                if at + 1 + length == letters.len() {
                    return failed("a name without its closing quote".into(), "write the name as \"name\"");
                }
                (length + 2, Word::Quoted(letters[at + 1..at + 1 + length].iter().collect()))
            }
            '0'..='9' => {
                let length = run(char::is_ascii_digit);
                let digits: String = letters[at..at + length].iter().collect();
                match digits.parse() {
                    Ok(number) => (length, Word::Number(number)),
                    Err(_) => {
                        let problem = format!("the number {} has more than 64 bits", repeated(&digits));
                        return failed(problem, "write a smaller one");
                    }
                }
            }
            letter if letter.is_ascii_alphabetic() => {
                let length = run(|letter| letter.is_ascii_alphanumeric());
                (length, Word::Name(letters[at..at + length].iter().collect()))
            }
            letter => {
                let problem = format!("`{}` means nothing here", letter.escape_debug());
                return failed(problem, "write numbers, `..`, `->`, words, names in quotes, or a comment after `#`");
            }
        };
        found.push((column, word));
        at += length;
    }
    Ok(found)
}
