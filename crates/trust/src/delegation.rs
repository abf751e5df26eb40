//! Which delegated roles may speak for a name.
//!
//! Three ways to delegate: by patterns of names (`paths`), by the start of the SHA-256 of the name
//! (`path_hash_prefixes`), and to hash bins in one line (`succinct_roles`, TAP 15).

use crate::digest::sha256;
use crate::format::ROLE_BYTES_MAX;
use crate::json::Json;
use crate::key::RoleKeys;
use crate::refusal::Flaw;
use crate::root::TOP_LEVEL;
use crate::rule::{Rule, holds};

/// A role to ask for a name, with the keys that the delegating role gives it.
#[derive(Debug)]
pub(crate) struct Delegation {
    pub role: String,
    pub keys: RoleKeys,
    /// Whether no role behind it in the list is asked.
    pub is_terminating: bool,
}

/// The delegations of a targets file to ask for `name`, in their order, up to the first terminating
/// one.
pub(crate) fn delegations(body: &Json<'_>, name: &str) -> Result<Vec<Delegation>, Flaw> {
    let Some(delegations) = body.get("delegations") else { return Ok(Vec::new()) };
    let keys = delegations.get("keys").filter(|keys| keys.object().is_some());
    let keys = keys.ok_or(Flaw::field("delegations.keys", "an object"))?;
    let (roles, bins) = (delegations.get("roles"), delegations.get("succinct_roles"));
    match (roles, bins) {
        (None, Some(bins)) => {
            let role = checked(bin(bins, name)?)?;
            Ok(vec![Delegation { role, keys: RoleKeys::read(keys, bins)?, is_terminating: true }])
        }
        (Some(Json::Array(roles)), None) => {
            let mut found = Vec::new();
            for role in roles {
                if !speaks_for(role, name)? {
                    continue;
                }
                let is_terminating = match role.get("terminating") {
                    Some(Json::Bool(is_terminating)) => *is_terminating,
                    _ => return Err(Flaw::field("terminating", "true or false")),
                };
                let title = role.get("name").and_then(Json::text).ok_or(Flaw::field("name", "a string"))?;
                let role_keys = RoleKeys::read(keys, role)?;
                found.push(Delegation { role: checked(title.to_owned())?, keys: role_keys, is_terminating });
                if is_terminating {
                    break;
                }
            }
            Ok(found)
        }
        _ => Err(Flaw::field("delegations", "an object with either roles or succinct_roles")),
    }
}

/// A role's name comes into messages and into names of files.
fn checked(role: String) -> Result<String, Flaw> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let fits = (1..=ROLE_BYTES_MAX).contains(&role.len()) && role.bytes().all(is_plain);
    if fits && !TOP_LEVEL.contains(&role.as_str()) {
        return Ok(role);
    }
    Err(Flaw::field("name", "that of a delegated role: printable ASCII without '/', at most 128 bytes"))
}

/// Whether the patterns of a role cover a name.
fn speaks_for(role: &Json<'_>, name: &str) -> Result<bool, Flaw> {
    let wrong = || Flaw::field("a delegation", "with an array of strings in either paths or path_hash_prefixes");
    let (patterns, is_hash) = match (role.get("paths"), role.get("path_hash_prefixes")) {
        (Some(patterns), None) => (patterns, false),
        (None, Some(prefixes)) => (prefixes, true),
        _ => return Err(wrong()),
    };
    let mut speaks = !holds(Rule::Pattern);
    let digest = sha256(name.as_bytes());
    for pattern in patterns.array().ok_or_else(wrong)? {
        let pattern = pattern.text().ok_or_else(wrong)?;
        speaks |= if is_hash { begins(&digest, pattern) } else { covers(pattern, name) };
    }
    Ok(speaks)
}

/// Whether the hexadecimal digits of `digest` begin with `prefix`, in lower case as all digests are
/// written.
fn begins(digest: &[u8; 32], prefix: &str) -> bool {
    let digit = |index: usize| {
        let byte = digest[index / 2];
        b"0123456789abcdef"[usize::from(if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 })]
    };
    prefix.len() <= 64 && prefix.bytes().enumerate().all(|(index, byte)| byte == digit(index))
}

/// Whether a shell pattern covers a path: `*` is any text and `?` any character, but neither is
/// `/`.
pub fn covers(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (pattern.as_bytes(), path.as_bytes());
    let (mut at, mut from) = (0, 0);
    // Where to go on if what follows the last star does not fit: behind the star, one byte later.
    let mut star: Option<(usize, usize)> = None;
    while from < path.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, from));
                at += 1;
            }
            Some(b'?') if path[from] != b'/' => (at, from) = (at + 1, from + 1),
            Some(byte) if *byte != b'?' && *byte == path[from] => (at, from) = (at + 1, from + 1),
            _ => {
                let Some((behind, start)) = star.filter(|(_, start)| path[*start] != b'/') else { return false };
                star = Some((behind, start + 1));
                (at, from) = (behind, start + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The hash bin of a name: the first bits of its SHA-256, as hexadecimal digits.
fn bin(bins: &Json<'_>, name: &str) -> Result<String, Flaw> {
    let bits = bins.get("bit_length").and_then(Json::unsigned).filter(|bits| (1..=32).contains(bits));
    let bits = bits.ok_or(Flaw::field("bit_length", "1 to 32"))? as u32;
    let prefix = bins.get("name_prefix").and_then(Json::text).ok_or(Flaw::field("name_prefix", "a string"))?;
    let digest = sha256(name.as_bytes());
    let first = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    Ok(format!("{prefix}-{:0digits$x}", first >> (32 - bits), digits = bits.div_ceil(4) as usize))
}
