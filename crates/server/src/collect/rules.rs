//! Rules of retention: which earlier versions of a tag stay. The first rule whose pattern the name
//! matches counts; without one, only what a tag points to stays.

use serde::{Deserialize, Serialize};
use store::{Store, Version as StoreVersion};
use units::ImageId;
use wire::ErrorCode;

use super::UnixSeconds;
use super::history::{VERSIONS_MAX, Version};
use crate::error::Failure;
use crate::pattern::Pattern;

/// Where they lie.
const KEY: &str = "retention.json";

/// Longest text of the rules.
const BYTES_MAX: u64 = 1 << 20;

/// Most rules.
const RULES_MAX: usize = 1000;

/// A rule. A version stays if either part says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// `NAME`, `NAME:TAG` or `*`, with `*` for any text.
    pub names: String,
    /// So many of the newest versions stay, the present one among them.
    #[serde(default)]
    pub keep: u32,
    /// A version stays for so long after a newer one has come.
    #[serde(default)]
    pub keep_seconds: u64,
}

/// The rules of a store.
#[derive(Debug, Default)]
pub(crate) struct Rules(Vec<(Pattern, Rule)>);

impl Rules {
    /// Those of the store.
    pub fn load(store: &dyn Store) -> Result<Rules, Failure> {
        Ok(Rules::read(store)?.0)
    }

    fn read(store: &dyn Store) -> Result<(Rules, Option<StoreVersion>), Failure> {
        match store.get_versioned(KEY, BYTES_MAX) {
            Ok((bytes, version)) => {
                let damaged = |error: String| Failure::corrupt(format!("{KEY} of the store is damaged: {error}"));
                let rules: Vec<Rule> = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
                Ok((Rules::new(rules).map_err(damaged)?, Some(version)))
            }
            Err(error) if error.is_not_found() => Ok((Rules::default(), None)),
            Err(error) => Err(error.into()),
        }
    }

    fn new(rules: Vec<Rule>) -> Result<Rules, String> {
        let parsed = rules.into_iter().map(|rule| match rule.names.starts_with('@') {
            true => Err(format!("{:?}: ids have no versions; give NAME or NAME:TAG", rule.names)),
            false => Ok((Pattern::of_images(&rule.names)?, rule)),
        });
        parsed.collect::<Result<_, String>>().map(Rules)
    }

    /// Has this rule count for its names from now on, before the others; with nothing to keep, the
    /// rule of these names goes.
    pub fn change(store: &dyn Store, rule: Rule) -> Result<(), Failure> {
        let keeps = rule.keep > 0 || rule.keep_seconds > 0;
        if rule.keep as usize > VERSIONS_MAX {
            let text = format!("{} versions are more than the {VERSIONS_MAX} that are remembered", rule.keep);
            return Err(Failure::bad_request(text));
        }
        let (rules, version) = Rules::read(store)?;
        let mut rules = rules.into_rules();
        rules.retain(|other| other.names != rule.names);
        if keeps {
            rules.insert(0, rule);
        }
        if rules.len() > RULES_MAX {
            return Err(Failure::new(ErrorCode::TooLarge, format!("there are {RULES_MAX} rules already")));
        }
        let rules = Rules::new(rules).map_err(Failure::bad_request)?.into_rules();
        let bytes = serde_json::to_vec(&rules);
        let bytes = bytes.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        Ok(store.put_if(KEY, &bytes, version.as_ref()).map(drop)?)
    }

    /// The rules, the first that counts first.
    pub fn into_rules(self) -> Vec<Rule> {
        self.0.into_iter().map(|(_, rule)| rule).collect()
    }

    /// Of the versions of a tag, the oldest first, those that stay.
    pub fn kept(&self, name: &str, versions: &[Version], now: UnixSeconds) -> Vec<ImageId> {
        let Some((_, rule)) = self.0.iter().find(|(pattern, _)| pattern.matches(name)) else { return Vec::new() };
        let is_kept = |index: usize| {
            let newer = versions.len() - 1 - index;
            let replaced = versions.get(index + 1).map(|next| next.since);
            newer < rule.keep as usize || replaced.is_some_and(|at| now < at.saturating_add(rule.keep_seconds))
        };
        (0..versions.len()).filter(|index| is_kept(*index)).map(|index| versions[index].id).collect()
    }
}
