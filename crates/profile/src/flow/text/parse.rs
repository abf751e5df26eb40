//! Parses the text form of a graph.

use std::collections::BTreeMap;

use super::word::{Word, repeated, words};
use crate::flow::edges::Edges;
use crate::flow::format::{self, BLOCKS_MAX, EDGES_MAX, ENTRIES_MAX, TEXT_STEPS_MAX, WEIGHT_MAX};
use crate::flow::{BlockRange, FlowGraph, Layout, Share, Stage, TextError, Updates};

/// What a line may begin with.
const LINES: &str = "a line is `size 1048576`, `block 4096`, `updates static`, `start -> 0`, `0..15 -> 40 x3`, `seq 0..63`, \
                     `used 70..80`, or `stage \"intro\" 0..99 share 80%`";
const ITEM: &str = "write a block as 12, or blocks as 0..15";

/// Reads the text form.
///
/// # Errors
/// The place of the first mistake, what it is, and what to write instead.
pub fn parse(text: &str) -> Result<FlowGraph, TextError> {
    let mut parser = Parser::default();
    if text.len() > format::TEXT_BYTES_MAX {
        let problem = format!("{} bytes of text", text.len());
        return Err(parser.failed(1, problem, format!("at most {} are read", format::TEXT_BYTES_MAX)));
    }
    for (number, line) in text.lines().enumerate() {
        parser.line = number as u32 + 1;
        let words = words(parser.line, line)?;
        if !words.is_empty() {
            let end = line.chars().count() as u32 + 1;
            parser.statement(Words { words: &words, at: 0, end })?;
        }
    }
    parser.finish()
}

/// What is known after the lines so far.
#[derive(Default)]
struct Parser {
    line: u32,
    begun: bool,
    size: Option<u64>,
    /// The last line that says how long files or blocks are.
    layout_line: u32,
    block: Option<u32>,
    updates: Option<Updates>,
    start: BTreeMap<u32, u32>,
    nodes: BTreeMap<u32, BTreeMap<u32, u32>>,
    /// The block named first: where runs start unless said otherwise.
    first: Option<u32>,
    /// The last block of the file that is named, and where.
    last: Option<(u32, u32, u32)>,
    steps: usize,
    stages: Vec<Stage>,
}

/// The words of one line.
struct Words<'a> {
    words: &'a [(u32, Word)],
    at: usize,
    /// The column behind the line.
    end: u32,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a Word> {
        self.words.get(self.at).map(|(_, word)| word)
    }

    fn column(&self) -> u32 {
        self.words.get(self.at).map_or(self.end, |(column, _)| *column)
    }

    fn next(&mut self) -> Option<&'a Word> {
        let word = self.peek();
        self.at += usize::from(word.is_some());
        word
    }

    fn skip(&mut self, word: &Word) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    /// What stands here, for a message.
    fn found(&self) -> String {
        self.peek().map_or_else(|| "the line ends".to_string(), |word| format!("{} stands", word.shown()))
    }
}

impl Parser {
    fn failed(&self, column: u32, problem: impl Into<String>, instead: impl Into<String>) -> TextError {
        TextError { line: self.line.max(1), column, problem: problem.into(), instead: instead.into() }
    }

    fn statement(&mut self, mut words: Words) -> Result<(), TextError> {
        let column = words.column();
        let name = match words.peek() {
            Some(Word::Name(name)) => Some(name.as_str()),
            _ => None,
        };
        if !self.begun {
            if name != Some("flow") {
                let problem = format!("{} where the text should begin", words.found());
                return Err(self.failed(column, problem, "begin with the line `flow 1`"));
            }
            words.next();
            let column = words.column();
            if words.next() != Some(&Word::Number(1)) {
                return Err(self.failed(column, "this version is unknown", "write `flow 1`"));
            }
            self.begun = true;
            return self.line_end(&words);
        }
        if matches!(name, Some("size" | "block" | "updates" | "seq" | "used" | "stage")) {
            words.next();
        }
        match name {
            Some("size") => self.size(&mut words)?,
            Some("block") => self.block(&mut words)?,
            Some("updates") => self.updates(&mut words)?,
            Some("stage") => self.stage(&mut words)?,
            Some("seq") => self.path(&mut words, false)?,
            Some("used") => {
                for range in self.ranges(&mut words)? {
                    self.walk_used(range, column)?;
                }
            }
            Some("start") | None => self.path(&mut words, true)?,
            Some(other) => {
                return Err(self.failed(column, format!("no line begins with `{}`", repeated(other)), LINES));
            }
        }
        self.line_end(&words)
    }

    fn line_end(&self, words: &Words) -> Result<(), TextError> {
        match words.peek() {
            None => Ok(()),
            Some(_) => {
                let problem = format!("{} where the line should end", words.found());
                Err(self.failed(words.column(), problem, "take it away, or write it on a line of its own"))
            }
        }
    }

    fn number(&self, words: &mut Words, instead: &str) -> Result<u64, TextError> {
        let (column, problem) = (words.column(), format!("{} where a number should", words.found()));
        match words.next() {
            Some(Word::Number(number)) => Ok(*number),
            _ => Err(self.failed(column, problem, instead)),
        }
    }

    fn size(&mut self, words: &mut Words) -> Result<(), TextError> {
        let column = words.column();
        self.layout_line = self.line;
        let size = self.number(words, "write the length of the file in bytes, as in `size 1048576`")?;
        match self.size.replace(size) {
            Some(_) => Err(self.failed(column, "a second size", "keep one of them")),
            None => Ok(()),
        }
    }

    fn block(&mut self, words: &mut Words) -> Result<(), TextError> {
        let column = words.column();
        let instead = "write a power of two from 512 to 1048576, as in `block 4096`";
        self.layout_line = self.line;
        let found = self.number(words, instead)?;
        let block = u32::try_from(found).ok().filter(|block| Layout::new(*block, 0).is_ok());
        let block = block.ok_or_else(|| self.failed(column, format!("blocks of {found} bytes"), instead))?;
        match self.block.replace(block) {
            Some(_) => Err(self.failed(column, "a second block size", "keep one of them")),
            None => Ok(()),
        }
    }

    fn updates(&mut self, words: &mut Words) -> Result<(), TextError> {
        let (column, found) = (words.column(), words.found());
        let updates = match words.next() {
            Some(Word::Name(name)) if name == "live" => Updates::Live,
            Some(Word::Name(name)) if name == "static" => Updates::Static,
            _ => {
                let problem = format!("{found} where `live` or `static` should");
                return Err(self.failed(column, problem, "write `updates live` or `updates static`"));
            }
        };
        match self.updates.replace(updates) {
            Some(_) => Err(self.failed(column, "a second `updates`", "keep one of them")),
            None => Ok(()),
        }
    }

    fn block_number(&mut self, words: &mut Words) -> Result<u32, TextError> {
        let (column, problem) = (words.column(), format!("{} where a block should", words.found()));
        let Some(Word::Number(number)) = words.next() else { return Err(self.failed(column, problem, ITEM)) };
        let Some(block) = u32::try_from(*number).ok().filter(|block| *block < BLOCKS_MAX) else {
            let instead = format!("blocks are 0 to {}; take larger blocks, as in `block 65536`", BLOCKS_MAX - 1);
            return Err(self.failed(column, format!("block {number}"), instead));
        };
        if self.last.is_none_or(|(last, ..)| block > last) {
            self.last = Some((block, self.line, column));
        }
        Ok(block)
    }

    /// `12` or `0..15`.
    fn range(&mut self, words: &mut Words) -> Result<BlockRange, TextError> {
        let column = words.column();
        let first = self.block_number(words)?;
        let last = if words.skip(&Word::Dots) { self.block_number(words)? } else { first };
        if last < first {
            let instead = format!("write {last}..{first}; a way back is a path: {first} -> {} …", first - 1);
            return Err(self.failed(column, format!("the range {first}..{last} goes down"), instead));
        }
        Ok(BlockRange { first, last })
    }

    fn ranges(&mut self, words: &mut Words) -> Result<Vec<BlockRange>, TextError> {
        let mut ranges = vec![self.range(words)?];
        while let Some(Word::Number(_)) = words.peek() {
            ranges.push(self.range(words)?);
        }
        Ok(ranges)
    }

    /// `start -> 0..15 -> 40 x3` with arrows, `0..15 40 x3` without. The weight stands at the end
    /// but is needed at the beginning, so the items are collected.
    fn path(&mut self, words: &mut Words, arrows: bool) -> Result<(), TextError> {
        let column = words.column();
        let from_start = arrows && words.skip(&Word::Name("start".into()));
        let mut items = Vec::new();
        if !from_start {
            items.push(self.range(words)?);
        }
        if arrows {
            let (column, problem) = (words.column(), format!("{} where `->` should", words.found()));
            if words.peek() != Some(&Word::Arrow) {
                let instead = "write a path as `12 -> 40`, `start -> 0`, or `seq 0..63`";
                return Err(self.failed(column, problem, instead));
            }
            while words.skip(&Word::Arrow) {
                items.push(self.range(words)?);
            }
        } else {
            while let Some(Word::Number(_)) = words.peek() {
                items.push(self.range(words)?);
            }
        }
        let weight = self.weight(words)?;
        let mut previous = None;
        for range in items {
            for block in range.first..=range.last {
                self.step(block, column)?;
                match previous {
                    Some(previous) => self.edge(previous, block, weight, column)?,
                    None if from_start => self.entry(block, weight, column)?,
                    None => {}
                }
                previous = Some(block);
            }
        }
        Ok(())
    }

    /// `x3`; 1 if there is none.
    fn weight(&self, words: &mut Words) -> Result<u32, TextError> {
        let column = words.column();
        let Some(Word::Name(name)) = words.peek() else { return Ok(1) };
        let digits = name.strip_prefix('x');
        let weight = digits.and_then(|digits| digits.parse().ok()).filter(|weight| (1..=WEIGHT_MAX).contains(weight));
        words.next();
        weight.ok_or_else(|| {
            let problem = format!("`{}` is no weight", repeated(name));
            self.failed(column, problem, format!("write x1 to x{WEIGHT_MAX}; weights count against each other only"))
        })
    }

    /// One block of a path.
    fn step(&mut self, block: u32, column: u32) -> Result<(), TextError> {
        self.steps += 1;
        if self.steps > TEXT_STEPS_MAX {
            let instead =
                format!("at most {TEXT_STEPS_MAX} are read; give repeated paths a weight, as in `seq 0..63 x20`");
            return Err(self.failed(column, "too many steps in all lines", instead));
        }
        self.first.get_or_insert(block);
        self.nodes.entry(block).or_default();
        Ok(())
    }

    fn walk_used(&mut self, range: BlockRange, column: u32) -> Result<(), TextError> {
        (range.first..=range.last).try_for_each(|block| self.step(block, column))
    }

    fn edge(&mut self, from: u32, to: u32, weight: u32, column: u32) -> Result<(), TextError> {
        if from == to {
            let problem = format!("{from} -> {to} leads nowhere");
            return Err(self.failed(column, problem, "take it away: a block that is used again is there already"));
        }
        let mut edges = self.nodes.remove(&from).unwrap_or_default();
        self.count(&mut edges, (to, weight), EDGES_MAX, &from.to_string(), column)?;
        self.nodes.insert(from, edges);
        Ok(())
    }

    fn entry(&mut self, to: u32, weight: u32, column: u32) -> Result<(), TextError> {
        let mut start = std::mem::take(&mut self.start);
        self.count(&mut start, (to, weight), ENTRIES_MAX, "start", column)?;
        self.start = start;
        Ok(())
    }

    fn count(
        &self,
        edges: &mut BTreeMap<u32, u32>,
        (to, weight): (u32, u32),
        max: usize,
        from: &str,
        column: u32,
    ) -> Result<(), TextError> {
        let sum = edges.entry(to).or_default();
        *sum += weight;
        if *sum > WEIGHT_MAX {
            let problem = format!("the weights of {from} -> {to} add up to {sum}");
            return Err(self.failed(column, problem, format!("stay below {}: halve all weights", WEIGHT_MAX + 1)));
        }
        if edges.len() > max {
            let problem = format!("{from} leads to more than {max} blocks");
            return Err(self.failed(column, problem, "leave out the lightest edge, and name its block with `used`"));
        }
        Ok(())
    }

    /// `"intro" 0..99 share 80%`.
    fn stage(&mut self, words: &mut Words) -> Result<(), TextError> {
        let column = words.column();
        let problem = format!("{} where a name should", words.found());
        let Some(Word::Quoted(name)) = words.next() else {
            return Err(self.failed(column, problem, "write the name in quotes: stage \"intro\" 0..99 share 80%"));
        };
        let ranges = self.ranges(words)?;
        let (at, found) = (words.column(), words.found());
        let share = match words.next() {
            None => Share::Rest,
            Some(Word::Name(name)) if name == "share" => {
                let instead = "write 1% to 100%, as in `share 80%`";
                let at = words.column();
                let percent = self.number(words, instead)?;
                if !words.skip(&Word::Percent) || !(1..=100).contains(&percent) {
                    return Err(self.failed(at, format!("the share {percent} is no percentage"), instead));
                }
                Share::Percent(percent as u8)
            }
            Some(Word::Name(name)) if name == "rate" => {
                Share::Rate(self.number(words, "write bytes per second, as in `rate 16000`")?)
            }
            Some(_) => {
                let problem = format!("{found} where a share should");
                return Err(self.failed(at, problem, "write `share 80%`, `rate 16000`, or nothing"));
            }
        };
        let stage = Stage::new(name, &ranges, share);
        self.stages.push(stage.map_err(|error| self.failed(column, error.to_string(), "correct this stage"))?);
        // Checked at each stage, so that the message has its line; the file may still turn out to
        // be shorter.
        let all = Layout::new(format::BLOCK_BYTES_MIN, u64::from(BLOCKS_MAX) * u64::from(format::BLOCK_BYTES_MIN));
        let checked = all.and_then(|layout| crate::flow::stage::check(&self.stages, &layout));
        checked
            .map_err(|error| self.failed(column, error.to_string(), "correct this stage or the one it collides with"))
    }

    fn finish(mut self) -> Result<FlowGraph, TextError> {
        self.line = self.line.max(1);
        if !self.begun {
            return Err(self.failed(1, "the text is empty", "begin with the line `flow 1`"));
        }
        let block_bytes = self.block.unwrap_or(format::BLOCK_BYTES_DEFAULT);
        let named = self.last.map_or(0, |(last, ..)| u64::from(last) + 1);
        let size = self.size.unwrap_or(named * u64::from(block_bytes));
        let layout = Layout::new(block_bytes, size);
        self.line = self.layout_line;
        let layout = layout.map_err(|error| self.failed(1, error.to_string(), "change `block` or `size`"))?;
        if let Some((last, line, column)) = self.last.filter(|(last, ..)| *last >= layout.blocks()) {
            self.line = line;
            let (blocks, needed) = (layout.blocks(), named * u64::from(block_bytes));
            let problem = format!("there is no block {last}: {size} bytes make {blocks} blocks");
            return Err(self.failed(column, problem, format!("name smaller blocks, or write `size {needed}`")));
        }
        if let (true, Some(first)) = (self.start.is_empty(), self.first) {
            self.start.insert(first, 1);
        }
        let weights = |edges: BTreeMap<u32, u32>, max: usize| {
            Edges::heaviest(edges.into_iter().map(|(to, weight)| (to, weight.into())), max)
        };
        let mut graph = FlowGraph::new(layout);
        graph.updates = self.updates.unwrap_or_default();
        graph.entry = weights(std::mem::take(&mut self.start), ENTRIES_MAX);
        let nodes = std::mem::take(&mut self.nodes);
        graph.nodes = nodes.into_iter().map(|(block, edges)| (block, weights(edges, EDGES_MAX))).collect();
        let stages = std::mem::take(&mut self.stages);
        graph.set_stages(stages).map_err(|error| self.failed(1, error.to_string(), "correct the stages"))?;
        Ok(graph)
    }
}
