//! What differs between two documents, for people. Never a secret: a document holds none.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use tidegate_core::config::Document;
use tidegate_core::ids::ConnectionId;
use tidegate_proto::admin::v1::Difference;

/// Longest shown value, in characters.
const MAX_SHOWN: usize = 120;

/// Differences in the order of the document; `renewed` are connections with a new credential.
pub(super) fn differences(
    old: &Document,
    new: &Document,
    renewed: &[ConnectionId],
) -> Vec<Difference> {
    let mut all = Vec::new();
    list(
        "provider",
        &old.providers,
        &new.providers,
        |it| it.id.as_str(),
        &mut all,
    );
    let first_connection = all.len();
    list(
        "connection",
        &old.connections,
        &new.connections,
        |it| it.id.as_str(),
        &mut all,
    );
    renew(&mut all, first_connection, renewed);
    list(
        "combo",
        &old.combos,
        &new.combos,
        |it| it.name.as_str(),
        &mut all,
    );
    whole(
        "modelMappings",
        &old.model_mappings,
        &new.model_mappings,
        &mut all,
    );
    whole("quotaPools", &old.quota_pools, &new.quota_pools, &mut all);
    list(
        "model",
        &old.models,
        &new.models,
        |it| it.model.as_str(),
        &mut all,
    );
    list("key", &old.keys, &new.keys, |it| it.id.as_str(), &mut all);
    let details = members(&value(&old.settings), &value(&new.settings));
    if !details.is_empty() {
        all.push(Difference {
            kind: "changed".to_owned(),
            subject: "settings".to_owned(),
            details,
        });
    }
    all
}

/// A list whose entries have no names: it is the same or another one.
fn whole<T: PartialEq>(subject: &str, old: &[T], new: &[T], all: &mut Vec<Difference>) {
    let kind = match (old.is_empty(), new.is_empty()) {
        _ if old == new => return,
        (true, _) => "added",
        (_, true) => "removed",
        (false, false) => "changed",
    };
    all.push(Difference {
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        details: Vec::new(),
    });
}

fn list<T: Serialize>(
    what: &str,
    old: &[T],
    new: &[T],
    id: impl Fn(&T) -> &str,
    all: &mut Vec<Difference>,
) {
    let before: BTreeMap<&str, &T> = old.iter().map(|it| (id(it), it)).collect();
    for item in new {
        let subject = format!("{what} {}", id(item));
        match before.get(id(item)) {
            None => all.push(Difference {
                kind: "added".to_owned(),
                subject,
                details: Vec::new(),
            }),
            Some(old) => {
                let details = members(&value(old), &value(item));
                if !details.is_empty() {
                    all.push(Difference {
                        kind: "changed".to_owned(),
                        subject,
                        details,
                    });
                }
            }
        }
    }
    let after: BTreeSet<&str> = new.iter().map(&id).collect();
    for item in old {
        if !after.contains(id(item)) {
            all.push(Difference {
                kind: "removed".to_owned(),
                subject: format!("{what} {}", id(item)),
                details: Vec::new(),
            });
        }
    }
    let in_both = |it: &&T| before.contains_key(id(it));
    let order_before: Vec<&str> = old
        .iter()
        .map(&id)
        .filter(|name| after.contains(name))
        .collect();
    let order_after: Vec<&str> = new.iter().filter(in_both).map(&id).collect();
    if order_before != order_after {
        // The order of equal priorities is theirs in the file, so it matters.
        all.push(Difference {
            kind: "changed".to_owned(),
            subject: format!("{what}s"),
            details: vec!["order".to_owned()],
        });
    }
}

/// Adds the new credentials to the differences of connections.
fn renew(all: &mut Vec<Difference>, first_connection: usize, renewed: &[ConnectionId]) {
    for connection in renewed {
        let subject = format!("connection {connection}");
        let known = all
            .iter_mut()
            .skip(first_connection)
            .find(|difference| difference.subject == subject);
        match known {
            Some(difference) if difference.kind == "added" => {}
            Some(difference) => difference.details.push("credential".to_owned()),
            None => all.push(Difference {
                kind: "changed".to_owned(),
                subject,
                details: vec!["credential".to_owned()],
            }),
        }
    }
}

fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or(Value::Null)
}

/// Members that differ, as `member: old -> new`, nested ones with their path.
fn members(old: &Value, new: &Value) -> Vec<String> {
    let mut details = Vec::new();
    walk("", old, new, &mut details);
    details
}

fn walk(path: &str, old: &Value, new: &Value, details: &mut Vec<String>) {
    let nothing = Value::Object(serde_json::Map::new());
    let (old, new) = match (old, new) {
        (Value::Null, Value::Object(_)) => (&nothing, new),
        (Value::Object(_), Value::Null) => (old, &nothing),
        both => both,
    };
    match (old, new) {
        (Value::Object(one), Value::Object(other)) => {
            let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let inner = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                let absent = Value::Null;
                let old = one.get(name).unwrap_or(&absent);
                let new = other.get(name).unwrap_or(&absent);
                walk(&inner, old, new, details);
            }
        }
        (old, new) if old != new => {
            details.push(format!("{path}: {} -> {}", shown(old), shown(new)));
        }
        _ => {}
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "unset".to_owned(),
        value => value.to_string(),
    };
    if text.chars().count() <= MAX_SHOWN {
        return text;
    }
    let mut cut: String = text.chars().take(MAX_SHOWN).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(json: &str) -> Document {
        serde_json::from_str(json).unwrap()
    }

    fn told(differences: &[Difference]) -> Vec<String> {
        differences
            .iter()
            .map(|it| format!("{} {} {}", it.kind, it.subject, it.details.join("; ")))
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn lists_without_names_are_the_same_or_others() {
        let none = document("{}");
        let one = document(r#"{"modelMappings":[{"pattern":"gpt-*","combo":"fast"}]}"#);
        let other = document(r#"{"modelMappings":[{"pattern":"o3","combo":"fast"}]}"#);
        let found = |old, new| told(&differences(old, new, &[]));
        assert_eq!(found(&none, &one), ["added modelMappings"]);
        assert_eq!(found(&one, &other), ["changed modelMappings"]);
        assert_eq!(found(&one, &none), ["removed modelMappings"]);
        assert_eq!(found(&one, &one), [""; 0]);
        let pools = document(
            r#"{"quotaPools":[{"group":"g","provider":"a","models":["m"],"connections":[]}],
                "models":[{"model":"a/m","inputPrice":2}]}"#,
        );
        assert_eq!(
            found(&none, &pools),
            ["added quotaPools", "added model a/m"]
        );
    }

    #[test]
    fn additions_changes_and_removals_are_named_with_their_members() {
        let old = document(
            r#"{"providers":[{"id":"a","protocol":"openai","baseUrl":"http://127.0.0.1:1/v1"}],
                "connections":[{"id":"a1","provider":"a"},{"id":"a2","provider":"a","priority":5}]}"#,
        );
        let new = document(
            r#"{"providers":[{"id":"a","protocol":"openai","baseUrl":"http://127.0.0.1:2/v1"},
                             {"id":"b","protocol":"openai","baseUrl":"http://127.0.0.1:3/v1"}],
                "connections":[{"id":"a2","provider":"a","priority":6}],
                "settings":{"providerBreaker":{"probeTtlMs":9000}}}"#,
        );
        let found = differences(&old, &new, &[ConnectionId::new("a2").unwrap()]);
        assert_eq!(
            told(&found),
            [
                "changed provider a baseUrl: \"http://127.0.0.1:1/v1\" -> \"http://127.0.0.1:2/v1\"",
                "added provider b",
                "changed connection a2 priority: 5 -> 6; credential",
                "removed connection a1",
                "changed settings providerBreaker.probeTtlMs: unset -> 9000",
            ]
        );
    }

    #[test]
    fn same_document_differs_in_nothing_but_its_order_counts() {
        let one =
            document(r#"{"connections":[{"id":"x","provider":"p"},{"id":"y","provider":"p"}]}"#);
        let other =
            document(r#"{"connections":[{"id":"y","provider":"p"},{"id":"x","provider":"p"}]}"#);
        assert_eq!(told(&differences(&one, &one, &[])), Vec::<String>::new());
        assert_eq!(
            told(&differences(&one, &other, &[])),
            ["changed connections order"]
        );
    }
}
