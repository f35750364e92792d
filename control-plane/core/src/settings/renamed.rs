//! Members that had another name in earlier releases of the contract or of ours. They are read under the name of now.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Earlier path and path of now (`sessions-and-streams.md` §2.2, §3.3).
const RENAMED: [(&[&str], &[&str]); 4] = [
    (&["codexSessionAffinityTtlMs"], &["sessionAffinityTtlMs"]),
    (
        &["streams", "attemptDeadlineMs"],
        &["streamRecovery", "attemptDeadlineMs"],
    ),
    (&["retryBudget", "floor"], &["retryBudget", "minConcurrent"]),
    (
        &["quotaPreflight", "cutoffPercent"],
        &["quotaPreflight", "defaultThresholdPercent"],
    ),
];

/// The members under their names of now. Where both names stand, that of now counts.
///
/// A member whose new section holds something else than members stays where it is: what is wrong is then told of both.
pub(super) fn current(members: &Map<String, Value>) -> Cow<'_, Map<String, Value>> {
    let mut current = Cow::Borrowed(members);
    for (before, now) in RENAMED {
        if at(&current, before).is_some() && can_hold(&current, now) {
            let renamed = current.to_mut();
            if let Some(value) = remove(renamed, before) {
                insert(renamed, now, value);
            }
        }
    }
    current
}

fn at<'a>(members: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    match path {
        [] => None,
        [name] => members.get(*name),
        [section, inner @ ..] => at(members.get(*section)?.as_object()?, inner),
    }
}

/// Whether every section on the way is one, or is yet to be made.
fn can_hold(members: &Map<String, Value>, path: &[&str]) -> bool {
    match path {
        [] | [_] => true,
        [section, inner @ ..] => match members.get(*section) {
            None => true,
            Some(Value::Object(members)) => can_hold(members, inner),
            Some(_) => false,
        },
    }
}

/// Takes a member away, and its section if nothing else is in it.
fn remove(members: &mut Map<String, Value>, path: &[&str]) -> Option<Value> {
    match path {
        [] => None,
        [name] => members.remove(*name),
        [section, inner @ ..] => {
            let within = members.get_mut(*section)?.as_object_mut()?;
            let value = remove(within, inner);
            if within.is_empty() {
                members.remove(*section);
            }
            value
        }
    }
}

/// Sets a member that is not there.
fn insert(members: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [name] => {
            members.entry(*name).or_insert(value);
        }
        [section, inner @ ..] => {
            let within = members
                .entry(*section)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(within) = within {
                insert(within, inner, value);
            }
        }
    }
}
