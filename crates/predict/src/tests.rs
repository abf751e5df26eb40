//! Tests by topic, and the script that most of them are written in.

mod baselines;
mod flow;
mod hostile;
mod index;
mod learning;
mod paper;
mod properties;
mod provider;
mod siblings;
mod streaming;
mod teachers;

use std::time::Duration;

use profile::ActionSet;
use units::{ImageId, InodeId, Moment, PageId, Token};

use crate::{ActionPredictor, Audits, Config, Phase, Predictor, Verdict};

const IMAGE: ImageId = ImageId([9; 32]);

/// Page `number` of file 1: the papers' B1, B3 and so on.
fn page(number: u32) -> PageId {
    PageId::new(InodeId(1), number)
}

/// A predictor that knows the given actions.
fn knowing(config: Config, actions: &[&[u32]]) -> ActionPredictor {
    let mut set = ActionSet::new(IMAGE);
    for action in actions {
        let pages: Vec<PageId> = action.iter().map(|number| page(*number)).collect();
        set.learn(&pages, &config.merge);
    }
    ActionPredictor::with_actions(set, config)
}

/// Plays a script and compares what the predictor does, line by line. Each line of the script is an
/// input, `->`, and what comes of it:
///
/// - `a 3 -> generate cancel push 8 9`: token `a` touches page 3. Then the phase, `cancel` if the
///   push is cancelled, `hold` with the position from which on it is held back, `audit` or `push`
///   with the pages if there is an order. Ranges are written `8..10`, end included.
/// - `a end -> action 1 changed`: token `a` ends. `none` if no action came of it.
/// - `wait 3 -> a action 1`: seconds pass, then the expired tokens.
fn check(predictor: &mut ActionPredictor, script: &str) {
    let mut now = Moment(1_000_000);
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        now = now.after(Duration::from_millis(1));
        let (input, expected) = line.split_once("->").unwrap_or_else(|| panic!("no -> in {line:?}"));
        let words: Vec<&str> = input.split_whitespace().collect();
        let found = match words[..] {
            ["wait", seconds] => {
                now = now.after(Duration::from_millis((seconds.parse::<f64>().unwrap() * 1000.0) as u64));
                let expired = predictor.expire(now);
                expired
                    .iter()
                    .map(|ended| format!("{} {}", name(ended.token), ended_text(ended)))
                    .collect::<Vec<_>>()
                    .join(" ")
            }
            [token, "end"] => ended_text(&predictor.end(named(token), now)),
            [token, number] => {
                let token = named(token);
                let verdict = predictor.touch(token, page(number.parse().unwrap()), now);
                verdict_text(predictor, token, &verdict)
            }
            _ => panic!("cannot read {line:?}"),
        };
        assert_eq!(found, expected.trim(), "at {line:?}");
    }
}

fn named(name: &str) -> Token {
    Token(u128::from(name.as_bytes()[0]))
}

fn name(token: Token) -> char {
    char::from(token.0 as u8)
}

fn ended_text(ended: &crate::Ended) -> String {
    let action = ended.action.map_or("none".to_string(), |action| format!("action {action}"));
    if ended.changed { format!("{action} changed") } else { action }
}

fn verdict_text(predictor: &ActionPredictor, token: Token, verdict: &Verdict) -> String {
    let mut text = match verdict.phase {
        Phase::Construct => "construct",
        Phase::Match => "match",
        Phase::Generate => "generate",
    }
    .to_string();
    if verdict.cancel {
        text.push_str(" cancel");
    }
    if let Some(hold) = verdict.hold {
        text.push_str(&format!(" hold {hold}"));
    }
    if let Some(order) = &verdict.push {
        let pages = predictor.pages(token, order);
        assert_eq!(pages.len() as u32, order.through - order.from);
        text.push_str(if order.audit { " audit" } else { " push" });
        text.push_str(&ranges(pages));
    }
    text
}

/// Pages as ` 1 3 8..10`.
fn ranges(pages: &[PageId]) -> String {
    let mut text = String::new();
    let mut rest = pages;
    while let [first, ..] = rest {
        let run = rest.windows(2).take_while(|pair| pair[0].next() == Some(pair[1])).count();
        match run {
            0 => text.push_str(&format!(" {}", first.index)),
            _ => text.push_str(&format!(" {}..{}", first.index, rest[run].index)),
        }
        rest = &rest[run + 1..];
    }
    text
}
