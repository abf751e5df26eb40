//! Reads a coverage from a file. Every byte is hostile. A line that is not understood is refused
//! with its number.

use crate::format::{BLOCKS_MAX, FILE_BYTES_MAX, FIRST_LINE, FUNCTIONS_MAX, SCENARIOS_MAX, VERSION};
use crate::writer::{fault, is_label};
use crate::{Block, Coverage, CoverageError, Function, How, ORDER_UNKNOWN, Scenario};

/// Reads a coverage file.
///
/// # Errors
/// It is none, has another version, ends early, or a line is not as docs/formats/coverage.md says.
pub fn read(bytes: &[u8]) -> Result<Coverage, CoverageError> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(CoverageError::Limit { what: "bytes of the file", max: FILE_BYTES_MAX as u64 });
    }
    if !bytes.starts_with(FIRST_LINE.as_bytes()) {
        return Err(CoverageError::NotCoverage);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        CoverageError::Line { line, reason: "no UTF-8".to_string() }
    })?;
    let mut reader = Reader { lines: text.split_inclusive('\n'), line: 0 };
    let version = &reader.next()?[FIRST_LINE.len()..];
    if version != VERSION {
        return Err(CoverageError::Version { found: version.chars().take(20).collect() });
    }
    reader.coverage()
}

struct Reader<'a> {
    lines: std::str::SplitInclusive<'a, char>,
    /// Lines that were read.
    line: usize,
}

impl<'a> Reader<'a> {
    fn wrong(&self, reason: impl Into<String>) -> CoverageError {
        CoverageError::Line { line: self.line.max(1), reason: reason.into() }
    }

    /// The next line, which must be whole.
    fn next(&mut self) -> Result<&'a str, CoverageError> {
        self.line += 1;
        let line = self.lines.next().and_then(|line| line.strip_suffix('\n'));
        line.ok_or_else(|| self.wrong("the file ends early"))
    }

    fn coverage(&mut self) -> Result<Coverage, CoverageError> {
        let release = self.next()?.strip_prefix("release ").filter(|release| is_label(release));
        let release = release.ok_or_else(|| self.wrong("expected 'release' and a release"))?.to_string();
        let mut coverage = Coverage { release, ..Coverage::default() };
        let mut blocks = 0;
        loop {
            let line = self.next()?;
            match line.split_once(' ') {
                Some(("scenario", rest)) if coverage.functions.is_empty() => {
                    if coverage.scenarios.len() >= SCENARIOS_MAX {
                        return Err(CoverageError::Limit { what: "scenarios", max: SCENARIOS_MAX as u64 });
                    }
                    let scenario = self.scenario(rest)?;
                    coverage.scenarios.push(scenario);
                }
                Some(("function", rest)) => {
                    if coverage.functions.len() >= FUNCTIONS_MAX {
                        return Err(CoverageError::Limit { what: "functions", max: FUNCTIONS_MAX as u64 });
                    }
                    let function = self.function(rest, BLOCKS_MAX - blocks)?;
                    blocks += function.blocks.len();
                    if coverage.functions.last().is_some_and(|last| last.name >= function.name) {
                        return Err(self.wrong("functions are not in the order of their names"));
                    }
                    coverage.functions.push(function);
                }
                Some(("end", count)) if number(count) == Some(coverage.functions.len() as u64) => break,
                Some(("end", _)) => return Err(self.wrong("the number of functions is another one")),
                _ => return Err(self.wrong("expected 'scenario', 'function' or 'end'")),
            }
        }
        if self.lines.next().is_some() {
            self.line += 1;
            return Err(self.wrong("something follows the end"));
        }
        Ok(coverage)
    }

    fn scenario(&self, text: &str) -> Result<Scenario, CoverageError> {
        let wrong = || self.wrong("expected how the scenario was recorded, its functions, its blocks, and its name");
        let mut words = text.splitn(4, ' ');
        let mut word = || words.next().ok_or_else(wrong);
        let how = word()?;
        let how = How::ALL.into_iter().find(|known| known.word() == how).ok_or_else(wrong)?;
        let functions = number(word()?).and_then(|count| u32::try_from(count).ok()).ok_or_else(wrong)?;
        let blocks = number(word()?).and_then(|count| u32::try_from(count).ok()).ok_or_else(wrong)?;
        let name = Some(word()?).filter(|name| is_label(name)).ok_or_else(wrong)?.to_string();
        Ok(Scenario { name, how, functions, blocks })
    }

    fn function(&self, text: &str, blocks_max: usize) -> Result<Function, CoverageError> {
        let wrong = || self.wrong("expected a function's name, its size, its order, and its phases");
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or_else(wrong);
        let name = word()?.to_string();
        let bytes = number(word()?).ok_or_else(wrong)?;
        let order = match word()? {
            "-" => ORDER_UNKNOWN,
            order => number(order)
                .and_then(|order| u32::try_from(order).ok())
                .filter(|order| *order != ORDER_UNKNOWN)
                .ok_or_else(wrong)?,
        };
        let (boot, service) = phases(word()?).ok_or_else(wrong)?;
        let mut blocks = Vec::new();
        for word in words {
            if blocks.len() >= blocks_max {
                return Err(CoverageError::Limit { what: "blocks", max: BLOCKS_MAX as u64 });
            }
            blocks.push(block(word).ok_or_else(|| self.wrong("expected a block as offset+bytes and its phases"))?);
        }
        let function = Function { name, bytes, order, boot, service, blocks };
        fault(&function).map_or(Ok(function), |reason| Err(self.wrong(reason)))
    }
}

fn block(word: &str) -> Option<Block> {
    let (offset, rest) = word.split_once('+')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (boot, service) = phases(&rest[digits..])?;
    let (offset, bytes) = (number(offset)?, number(&rest[..digits])?);
    Some(Block { offset: u32::try_from(offset).ok()?, bytes: u32::try_from(bytes).ok()?, boot, service })
}

fn phases(word: &str) -> Option<(bool, bool)> {
    match word {
        "b" => Some((true, false)),
        "s" => Some((false, true)),
        "bs" => Some((true, true)),
        _ => None,
    }
}

/// A number as it is written: digits only, none in vain.
fn number(word: &str) -> Option<u64> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = word.len() <= 1 || !word.starts_with('0');
    if is_number && is_short { word.parse().ok() } else { None }
}
