//! What operators change: tags, rules of retention, and the images that nobody wants. Answers are
//! JSON.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use store::Listed;
use units::ImageId;
use wire::{ErrorCode, ManageAsk};

use crate::admin::json;
use crate::catalog::names::tag_key;
use crate::clock::unix_seconds;
use crate::collect::{self, Rule, Rules};
use crate::error::Failure;
use crate::name::Name;
use crate::shared::Shared;
use crate::upload::Publisher;

/// One request collects for so long; the client asks again for the rest.
const COLLECTING_TIME: Duration = Duration::from_secs(10);

/// A tag that was changed.
#[derive(Serialize)]
struct Tagged {
    name: String,
    id: String,
}

/// The rules of retention.
#[derive(Serialize)]
struct Retention {
    rules: Vec<Rule>,
}

/// Does what is asked for; `publisher` is whose tags count. Blocks.
pub(crate) fn manage(
    shared: &Shared,
    name: &str,
    ask: ManageAsk,
    publisher: Option<&Publisher>,
) -> Result<Bytes, Failure> {
    let store = &**shared.store();
    match ask {
        ManageAsk::Remove => json(&remove(shared, name)?),
        ManageAsk::Tag { of } => json(&tag(shared, name, &of, publisher)?),
        ManageAsk::Rules => json(&Retention { rules: Rules::load(store)?.into_rules() }),
        ManageAsk::Retain { keep, seconds } => {
            Rules::change(store, Rule { names: name.to_owned(), keep, keep_seconds: seconds })?;
            json(&Retention { rules: Rules::load(store)?.into_rules() })
        }
        ManageAsk::Collect { grace, dry_run } => {
            let begun = Instant::now();
            let goes_on = || begun.elapsed() < COLLECTING_TIME;
            let collect = |collection: collect::Collection<'_>, opened| {
                collection.collect(grace, &opened, dry_run, &goes_on, &unix_seconds)
            };
            json(&shared.catalog.collection(collect)?)
        }
    }
}

/// Takes a tag away.
fn remove(shared: &Shared, text: &str) -> Result<Tagged, Failure> {
    let (store, names) = (&**shared.store(), shared.catalog.names());
    let (name, tag) = parse(text)?;
    let Some(id) = names.tag(&name, &tag)? else {
        let is_file = names.find(&Name::Tag { name: name.clone(), tag: tag.clone() }).is_ok();
        let text = match is_file {
            true => format!("{text} is the file {name}.rnl in the folder of the server: delete that"),
            false => format!("there is no image {text}; `runnel images` lists them"),
        };
        return Err(Failure::new(if is_file { ErrorCode::Conflict } else { ErrorCode::NotFound }, text));
    };
    store.delete(&tag_key(&name, &tag))?;
    collect::forget_versions(store, &name, &tag)?;
    for owner in store.list("published")? {
        let Listed::Folder(owner) = owner else { continue };
        store.delete(&format!("{owner}/tags/{name}/{tag}"))?;
    }
    Ok(Tagged { name: text.to_owned(), id: id.to_string() })
}

/// Points a tag to the image of another name.
fn tag(shared: &Shared, text: &str, of: &str, publisher: Option<&Publisher>) -> Result<Tagged, Failure> {
    let (name, tag) = parse(text)?;
    let of = Name::parse(of).map_err(Failure::bad_request)?;
    let find = || shared.catalog.names().find(&of).map(|(id, _)| id);
    let id: ImageId = find()?;
    shared.catalog.hold(id)?;
    // It may have been collected, or been replaced, before it was spoken for.
    if find()? != id {
        return Err(Failure::new(ErrorCode::Conflict, format!("{of} was changed just now; try again")));
    }
    if let Some(publisher) = publisher {
        publisher.check(&**shared.store(), (&name, &tag), id, 0)?;
        publisher.note(&**shared.store(), (&name, &tag), id)?;
    }
    shared.catalog.set_tag(&name, &tag, id)?;
    Ok(Tagged { name: text.to_owned(), id: id.to_string() })
}

/// Name and tag.
fn parse(text: &str) -> Result<(String, String), Failure> {
    match Name::parse(text).map_err(Failure::bad_request)? {
        Name::Tag { name, tag } => Ok((name, tag)),
        Name::Id(_) => Err(Failure::bad_request("an id is no name; give NAME or NAME:TAG")),
    }
}
