//! The strict reading, of what people send: exact types, no unknown member, nothing out of bounds, and the
//! path of everything that is wrong (`sessions-and-streams.md` §3.3).
//!
//! A member that is null is unset, as one that is missing.

use serde_json::{Map, Value};

use crate::config::{Violation, Violations};

use super::bounds::conflicts;
use super::member::{Bounds, Member, Reach, Shape};
use super::members::SECTIONS;
use super::{Settings, entries};

impl Settings {
    /// Everything that is out of bounds or does not fit together, with fields such as
    /// `providerBreaker.apikey.failureThreshold`. Empty when the settings may be applied.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.violations_within(Reach::Api)
    }

    pub(super) fn violations_within(&self, reach: Reach) -> Vec<Violation> {
        let mut found = Violations::default();
        match serde_json::to_value(self) {
            Ok(Value::Object(members)) => check(&members, reach, &mut found),
            // Settings are made of members with names, numbers and texts, all of which can be written.
            Ok(_) | Err(_) => found.push("", "the settings cannot be written"),
        }
        conflicts(self, &mut found);
        found.into_vec()
    }
}

/// Reads members as people send them.
pub(super) fn read(written: &Map<String, Value>) -> Result<Settings, Vec<Violation>> {
    let mut found = Violations::default();
    check(written, Reach::Api, &mut found);
    entries::check(written, &mut found);
    if !found.is_empty() {
        return Err(found.into_vec());
    }
    let settings = typed(written).map_err(|error| vec![Violation::new("", error.to_string())])?;
    let violations = settings.violations();
    if violations.is_empty() {
        Ok(settings)
    } else {
        Err(violations)
    }
}

/// Of a member that this release does not have.
pub(super) const NO_SUCH_SETTING: &str = "there is no such setting";

/// Without the members that this release does not have.
pub(super) fn only_known(members: &Map<String, Value>, known: &[Member]) -> Map<String, Value> {
    members
        .iter()
        .filter_map(|(name, value)| {
            let member = known.iter().find(|member| member.name == name)?;
            let value = match (member.shape, value) {
                (Shape::Members(known), Value::Object(inner)) => {
                    Value::Object(only_known(inner, known))
                }
                _ => value.clone(),
            };
            Some((name.clone(), value))
        })
        .collect()
}

/// Members as their types, those that are null left out.
pub(super) fn typed(written: &Map<String, Value>) -> Result<Settings, serde_json::Error> {
    serde_json::from_value(Value::Object(without_nulls(written, SECTIONS)))
}

fn without_nulls(members: &Map<String, Value>, known: &[Member]) -> Map<String, Value> {
    members
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| {
            let inner = known.iter().find(|member| member.name == name);
            let value = match (inner.map(|member| member.shape), value) {
                (Some(Shape::Members(inner)), Value::Object(members)) => {
                    Value::Object(without_nulls(members, inner))
                }
                _ => value.clone(),
            };
            (name.clone(), value)
        })
        .collect()
}

/// Names, types and bounds of everything but entries.
fn check(written: &Map<String, Value>, reach: Reach, found: &mut Violations) {
    members("", written, SECTIONS, reach, found);
}

fn members(
    path: &str,
    written: &Map<String, Value>,
    known: &[Member],
    reach: Reach,
    found: &mut Violations,
) {
    for (name, value) in written {
        let field = join(path, name);
        match known.iter().find(|member| member.name == name) {
            Some(member) => shape(&field, value, member.shape, reach, found),
            None => found.push(field, NO_SUCH_SETTING),
        }
    }
}

fn shape(field: &str, value: &Value, shape: Shape, reach: Reach, found: &mut Violations) {
    match (shape, value) {
        (_, Value::Null)
        | (Shape::Flag, Value::Bool(_))
        | (Shape::Text, Value::String(_))
        | (Shape::Entries, _) => {}
        (Shape::Text, other) => found.push(field, format!("must be a text, is {}", shown(other))),
        (Shape::Share, number) => {
            if !number
                .as_f64()
                .is_some_and(|number| (0.0..=1.0).contains(&number))
            {
                let value = shown(number);
                found.push(
                    field,
                    format!("must be a number between 0 and 1, is {value}"),
                );
            }
        }
        (Shape::Flag, other) => {
            found.push(field, format!("must be true or false, is {}", shown(other)));
        }
        (Shape::Whole(bounds), number) => whole(field, number, bounds, reach, found),
        (Shape::Numbers { each, most }, Value::Array(numbers)) => {
            if found.at_most(field, numbers.len(), most) {
                for (index, number) in numbers.iter().enumerate() {
                    whole(&format!("{field}[{index}]"), number, each, reach, found);
                }
            }
        }
        (Shape::Numbers { .. }, other) => {
            found.push(field, format!("must be a list, is {}", shown(other)));
        }
        (Shape::Members(known), Value::Object(written)) => {
            members(field, written, known, reach, found);
        }
        (Shape::Members(_), other) => {
            found.push(field, format!("must have members, is {}", shown(other)));
        }
    }
}

fn whole(field: &str, value: &Value, bounds: Bounds, reach: Reach, found: &mut Violations) {
    let (least, most) = bounds.of(reach);
    let is_within = value
        .as_u64()
        .is_some_and(|number| (least..=most).contains(&number));
    if is_within {
        return;
    }
    let is_whole = value.is_i64() || value.is_u64();
    let what = if is_whole { "" } else { "a whole number " };
    found.push(
        field,
        format!(
            "must be {what}between {least} and {most}, is {}",
            shown(value)
        ),
    );
}

/// The path of a member.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Longest part of a wrong value that is repeated, in characters.
const MAX_SHOWN: usize = 40;

/// A value for people, cut off.
pub(super) fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(_) => return "a list".to_owned(),
        Value::Object(_) => return "an object".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    };
    if text.chars().count() <= MAX_SHOWN {
        return text;
    }
    let mut cut: String = text.chars().take(MAX_SHOWN).collect();
    cut.push('…');
    cut
}
