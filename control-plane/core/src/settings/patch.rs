//! A change of one or more sections: JSON merge patch (RFC 7386), strict.
//!
//! It writes what it names and nothing else: neither the defaults nor what the environment of the replica that
//! happens to serve it says become part of the document. Two patches of different members have the same result
//! in either order.

use serde_json::{Map, Value};

use crate::config::{Violation, Violations};

use super::member::{Member, Shape};
use super::members::SECTIONS;
use super::strict::{NO_SUCH_SETTING, join};
use super::{WrittenSettings, renamed, strict};

pub(super) fn apply(
    settings: &WrittenSettings,
    patch: &Map<String, Value>,
) -> Result<WrittenSettings, Vec<Violation>> {
    if patch.is_empty() {
        return Err(vec![Violation::new("", "must name at least one section")]);
    }
    // Else a member would stand under two names, and taking away one of them would leave the other in force.
    let (stored, patch) = (
        renamed::current(settings.members()),
        renamed::current(patch),
    );
    let mut merged = stored.clone().into_owned();
    merge(&mut merged, &patch);
    let mut found = Violations::default();
    unknown("", &patch, &stored, SECTIONS, &mut found);
    // What is wrong in a section that is named, unless it was so before and is none of the patch's doing.
    let before = faults(&stored, &patch);
    for fault in faults(&merged, &patch) {
        if !before.contains(&fault) {
            found.push(fault.field, fault.message);
        }
    }
    if found.is_empty() {
        Ok(merged.into())
    } else {
        Err(found.into_vec())
    }
}

/// What the strict reading finds in the sections that a patch names. Unknown members are looked for apart.
fn faults(members: &Map<String, Value>, patch: &Map<String, Value>) -> Vec<Violation> {
    let named: Map<String, Value> = members
        .iter()
        .filter(|(section, _)| patch.contains_key(*section))
        .map(|(section, value)| (section.clone(), value.clone()))
        .collect();
    match strict::read(&strict::only_known(&named, SECTIONS)) {
        Ok(_) => Vec::new(),
        Err(faults) => faults,
    }
}

/// Members of a patch that no release has, or that a newer one left here. The latter may be removed, not set.
fn unknown(
    path: &str,
    patch: &Map<String, Value>,
    stored: &Map<String, Value>,
    known: &[Member],
    found: &mut Violations,
) {
    let nothing = Map::new();
    for (name, value) in patch {
        let field = join(path, name);
        let standing = stored.get(name);
        match known.iter().find(|member| member.name == name) {
            None if value.is_null() && standing.is_some() => {}
            None => found.push(field, NO_SUCH_SETTING),
            Some(member) => {
                if let (Shape::Members(known), Value::Object(patch)) = (member.shape, value) {
                    let stored = standing.and_then(Value::as_object).unwrap_or(&nothing);
                    unknown(&field, patch, stored, known, found);
                }
            }
        }
    }
}

/// RFC 7386.
fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, change) in patch {
        match change {
            Value::Null => {
                target.remove(name);
            }
            Value::Object(change) => {
                let inner = target
                    .entry(name.as_str())
                    .or_insert_with(|| Value::Object(Map::new()));
                if !inner.is_object() {
                    *inner = Value::Object(Map::new());
                }
                if let Value::Object(inner) = inner {
                    merge(inner, change);
                }
            }
            other => {
                target.insert(name.clone(), other.clone());
            }
        }
    }
}
