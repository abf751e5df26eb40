//! What a draft changes, in words. Whatever is not told is named, so nothing is signed unseen.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::key::PublicKey;
use crate::role::{RoleKeys, TOP_LEVEL};

/// What a new root changes.
pub(super) fn root_in_words(before: &Value, after: &Value) -> Vec<String> {
    let mut words = vec![title("root", after)];
    for role in TOP_LEVEL {
        let (old, new) = (&before["roles"][role], &after["roles"][role]);
        keys_in_words(role, (old, &before["keys"]), (new, &after["keys"]), &mut words);
        others(role, old, new, &["keyids", "threshold"], &mut words);
    }
    others("roles", &before["roles"], &after["roles"], &TOP_LEVEL, &mut words);
    others("root", before, after, &["version", "expires", "keys", "roles"], &mut words);
    finish(words)
}

/// What a new file of targets, or of a delegated role, changes.
pub(super) fn targets_in_words(role: &str, before: &Value, after: &Value) -> Vec<String> {
    let mut words = vec![title(role, after)];
    let id = |target: &Value| target["custom"]["runnel"]["id"].as_str().unwrap_or("no image").to_owned();
    for (name, old, new) in pairs(&before["targets"], &after["targets"]) {
        match (old, new) {
            (None, Some(new)) => words.push(format!("  new name: {name} is {}", id(new))),
            (Some(old), None) => words.push(format!("  name taken away: {name}, which is {}", id(old))),
            (Some(old), Some(new)) if id(old) != id(new) => {
                words.push(format!("  name changed: {name} is {}, and was {}", id(new), id(old)));
            }
            (Some(old), Some(new)) if old != new => {
                words.push(format!("  {name} changes, and stays image {}", id(new)))
            }
            _ => {}
        }
    }
    delegations_in_words(&before["delegations"], &after["delegations"], &mut words);
    others(role, before, after, &["version", "expires", "targets", "delegations"], &mut words);
    finish(words)
}

fn delegations_in_words(before: &Value, after: &Value, words: &mut Vec<String>) {
    let roles = |value: &Value| -> Vec<Value> { value["roles"].as_array().cloned().unwrap_or_default() };
    let name = |role: &Value| role["name"].as_str().unwrap_or("?").to_owned();
    let (old, new) = (roles(before), roles(after));
    let none = Value::Null;
    for role in &new {
        let title = name(role);
        let earlier = old.iter().find(|other| other["name"] == role["name"]).unwrap_or(&none);
        if earlier["paths"] != role["paths"] {
            let patterns: Vec<&str> =
                role["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            words.push(format!("  role {title} may sign {}", patterns.join(", ")));
        }
        keys_in_words(&title, (earlier, &before["keys"]), (role, &after["keys"]), words);
        let is_plain_start = earlier.is_null() && role["terminating"] == Value::Bool(false);
        let told: &[&str] = match is_plain_start {
            true => &["name", "paths", "keyids", "threshold", "terminating"],
            false => &["name", "paths", "keyids", "threshold"],
        };
        others(&title, earlier, role, told, words);
    }
    for role in old.iter().filter(|role| !new.iter().any(|other| other["name"] == role["name"])) {
        words.push(format!("  role {} may sign nothing any more", name(role)));
    }
    let kept = |these: &[Value], those: &[Value]| -> Vec<String> {
        let is_kept = |role: &&Value| those.iter().any(|other| other["name"] == role["name"]);
        these.iter().filter(is_kept).map(name).collect()
    };
    if kept(&new, &old) != kept(&old, &new) {
        words.push("  delegated roles are asked in another order".into());
    }
    others("delegations", before, after, &["keys", "roles"], words);
}

/// What changes of the keys of a role.
fn keys_in_words(role: &str, before: (&Value, &Value), after: (&Value, &Value), words: &mut Vec<String>) {
    let (old, new) = (RoleKeys::read(before.0), RoleKeys::read(after.0));
    let count = |keys: &RoleKeys| format!("{} of {}", keys.threshold, keys.ids.len());
    if before.0.is_null() {
        words.push(format!("  {role}: {} keys must sign", count(&new)));
    } else if (old.threshold, old.ids.len()) != (new.threshold, new.ids.len()) {
        words.push(format!("  {role}: {} keys must sign, and so far {}", count(&new), count(&old)));
    }
    let key = |id: &String, keys: &Value| {
        let public = keys.get(id).and_then(PublicKey::from_json).map(|public| public.to_hex());
        format!("{id} (public {})", public.as_deref().unwrap_or("of another type"))
    };
    for id in new.ids.iter().filter(|id| !old.ids.contains(id)) {
        words.push(format!("  {role}: new key {}", key(id, after.1)));
    }
    for id in old.ids.iter().filter(|id| !new.ids.contains(id)) {
        words.push(format!("  {role}: no more key {}", key(id, before.1)));
    }
}

/// Names the fields that differ and are not in `told`.
fn others(what: &str, before: &Value, after: &Value, told: &[&str], words: &mut Vec<String>) {
    for (field, old, new) in pairs(before, after) {
        if old != new && !told.contains(&field.as_str()) {
            let value = new.map_or_else(|| "nothing".into(), Value::to_string);
            words.push(format!("  {what}: the field {field} becomes {value}"));
        }
    }
}

/// The fields of two objects, side by side.
fn pairs<'a>(before: &'a Value, after: &'a Value) -> Vec<(String, Option<&'a Value>, Option<&'a Value>)> {
    let fields = |value: &'a Value| value.as_object().into_iter().flat_map(Map::keys);
    let names: BTreeSet<&String> = fields(before).chain(fields(after)).collect();
    names.into_iter().map(|name| (name.clone(), before.get(name), after.get(name))).collect()
}

fn title(role: &str, after: &Value) -> String {
    format!("{role} version {}, valid until {}", after["version"], after["expires"].as_str().unwrap_or("?"))
}

fn finish(mut words: Vec<String>) -> Vec<String> {
    if words.len() == 1 {
        words.push("  nothing else changes".into());
    }
    words
}
