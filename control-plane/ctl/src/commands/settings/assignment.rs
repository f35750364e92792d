//! `a.b.c=value` as a merge patch.

use serde_json::{Map, Value};

use crate::failure::Failure;

/// Deepest path.
const MAX_DEPTH: usize = 16;

/// One patch of all assignments.
pub(super) fn patch(assignments: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut patch = Map::new();
    for assignment in assignments {
        let (path, value) = assignment
            .split_once('=')
            .ok_or_else(|| Failure::Usage(format!("{assignment}: must be PATH=VALUE")))?;
        let names: Vec<&str> = path.split('.').collect();
        if names.len() > MAX_DEPTH || names.iter().any(|name| name.is_empty()) {
            return Err(Failure::Usage(format!(
                "{path}: must be names joined by dots, such as modelLockout.enabled"
            )));
        }
        // What is no JSON is a text, so that texts need no quotes.
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        if !insert(&mut patch, &names, value) {
            return Err(Failure::Usage(format!("{path}: assigned twice")));
        }
    }
    Ok(patch)
}

/// `false` when something is there already.
fn insert(patch: &mut Map<String, Value>, names: &[&str], value: Value) -> bool {
    match names {
        [] => false,
        [name] => {
            if patch.contains_key(*name) {
                return false;
            }
            patch.insert((*name).to_owned(), value);
            true
        }
        [name, rest @ ..] => {
            let inner = patch
                .entry(*name)
                .or_insert_with(|| Value::Object(Map::new()));
            match inner {
                Value::Object(inner) => insert(inner, rest, value),
                _ => false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(assignments: &[&str]) -> Result<Value, String> {
        let assignments: Vec<String> = assignments.iter().map(|it| (*it).to_owned()).collect();
        patch(&assignments)
            .map(Value::Object)
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn assignments_become_one_patch() {
        assert_eq!(
            of(&[
                "modelLockout.enabled=true",
                "modelLockout.errorCodes=[503]",
                "dailyReset.openai.timeZone=Asia/Tokyo",
                "streams.idleTimeoutMs=null",
            ]),
            Ok(json!({
                "modelLockout": {"enabled": true, "errorCodes": [503]},
                "dailyReset": {"openai": {"timeZone": "Asia/Tokyo"}},
                "streams": {"idleTimeoutMs": null},
            }))
        );
    }

    #[test]
    fn what_is_no_assignment_is_named() {
        assert_eq!(
            of(&["modelLockout.enabled"]).unwrap_err(),
            "modelLockout.enabled: must be PATH=VALUE"
        );
        assert!(of(&["a..b=1"]).is_err());
        assert!(of(&["=1"]).is_err());
        assert!(of(&["a.b=1", "a.b=2"]).is_err());
        assert!(of(&["a=1", "a.b=2"]).is_err());
    }
}
