//! The lenient reading, of what stands in the store: whatever it is, it gives settings that can be run
//! (`sessions-and-streams.md` §3.3).
//!
//! A newer release or a hand may have written it, and a replica must start nevertheless. Numbers and texts that
//! are numbers lose their fraction and are brought into bounds; what is no number, or no real boolean, is as if
//! it were not there; unknown members are ignored, but stay in the store; members that do not fit together are
//! made to fit. What the strict reading accepts is read unchanged.

use serde_json::{Map, Value};

use crate::config::{Violation, Violations};

use super::bounds::reconcile;
use super::member::{Bounds, Member, Reach, Shape};
use super::members::SECTIONS;
use super::strict::{join, shown, typed};
use super::{Settings, entries, number, strict};

/// Settings as they act, read from what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredReading {
    /// What acts.
    pub settings: Settings,
    /// The members that were taken over, mended where it was needed.
    pub members: Map<String, Value>,
    /// What was not taken as it stands: the path and what became of it.
    pub warnings: Vec<Violation>,
}

pub(super) fn read(written: &Map<String, Value>) -> StoredReading {
    if let Ok(settings) = strict::read(written) {
        return StoredReading {
            settings,
            members: written.clone(),
            warnings: Vec::new(),
        };
    }
    let mut warnings = Violations::default();
    let mut members = mend(&[], written, SECTIONS, &mut warnings);
    let settings = loop {
        let fault = match typed(&members) {
            Ok(mut settings) => {
                let mut changed = Violations::default();
                reconcile(&mut settings, &mut changed);
                let left = settings.violations_within(Reach::Stored);
                if left.is_empty() {
                    warnings.extend(changed);
                    break settings;
                }
                left.into_iter().next()
            }
            Err(_) => None,
        };
        if !give_up(&mut members, fault, &mut warnings) {
            break Settings::default();
        }
    };
    StoredReading {
        settings,
        members,
        warnings: warnings.into_vec(),
    }
}

/// Leaves out the section that cannot be mended; `false` when there is none left. What is mended member by
/// member is good, unless its section has rules that only the section as a whole breaks.
fn give_up(
    members: &mut Map<String, Value>,
    fault: Option<Violation>,
    warnings: &mut Violations,
) -> bool {
    let named = fault.and_then(|fault| {
        let section = fault.field.split(['.', '[']).next()?.to_owned();
        members.contains_key(&section).then_some(section)
    });
    let unreadable = || {
        members
            .iter()
            .find(|(section, value)| {
                let alone = Map::from_iter([((*section).clone(), (*value).clone())]);
                typed(&alone).is_err()
            })
            .map(|(section, _)| section.clone())
    };
    let Some(section) = named
        .or_else(unreadable)
        .or_else(|| members.keys().next().cloned())
    else {
        return false;
    };
    members.remove(&section);
    warnings.push(section, "is left out: it cannot be used as it is");
    true
}

fn mend(
    path: &[&str],
    written: &Map<String, Value>,
    known: &[Member],
    warnings: &mut Violations,
) -> Map<String, Value> {
    let mut kept = Map::new();
    for (name, value) in written {
        let Some(member) = known.iter().find(|member| member.name == name) else {
            let field = join(&path.join("."), name);
            warnings.push(field, "is ignored: there is no such setting");
            continue;
        };
        let path: Vec<&str> = path.iter().copied().chain([member.name]).collect();
        if let Some(value) = mend_value(&path, value, member.shape, warnings) {
            kept.insert(name.clone(), value);
        }
    }
    kept
}

fn mend_value(
    path: &[&str],
    value: &Value,
    shape: Shape,
    warnings: &mut Violations,
) -> Option<Value> {
    let mut unset = |expected: &str| {
        let value = shown(value);
        warnings.push(
            path.join("."),
            format!("is taken as unset: must be {expected}, is {value}"),
        );
        None
    };
    match (shape, value) {
        (_, Value::Null) => None,
        (Shape::Flag, Value::Bool(_)) => Some(value.clone()),
        (Shape::Flag, _) => unset("true or false"),
        (Shape::Text, Value::String(_)) => Some(value.clone()),
        (Shape::Text, _) => unset("a text"),
        (Shape::Share, _) => match number::fraction(value) {
            Some(number) => {
                let share = Value::from(number.clamp(0.0, 1.0));
                if share.as_f64() != value.as_f64() {
                    let what = format!("is taken as {share}, is {}", shown(value));
                    warnings.push(path.join("."), what);
                }
                Some(share)
            }
            None => unset("a number"),
        },
        (Shape::Whole(bounds), _) => match number::truncated(value) {
            Some(number) => Some(clamp(&path.join("."), value, number, bounds, warnings)),
            None => unset("a number"),
        },
        (Shape::Numbers { each, most }, Value::Array(numbers)) => {
            Some(mend_numbers(path, numbers, each, most, warnings))
        }
        (Shape::Numbers { .. }, _) => unset("a list"),
        (Shape::Entries, _) => entries::mend(path, value, warnings),
        (Shape::Members(known), Value::Object(written)) => {
            Some(Value::Object(mend(path, written, known, warnings)))
        }
        (Shape::Members(_), _) => unset("an object"),
    }
}

fn clamp(
    field: &str,
    value: &Value,
    number: i128,
    bounds: Bounds,
    warnings: &mut Violations,
) -> Value {
    let clamped = Value::from(bounds.clamp(number));
    if clamped != *value {
        warnings.push(field, format!("is taken as {clamped}, is {}", shown(value)));
    }
    clamped
}

/// Numbers of a list stand for things, so one out of bounds is left out instead of becoming another.
fn mend_numbers(
    path: &[&str],
    numbers: &[Value],
    each: Bounds,
    most: usize,
    warnings: &mut Violations,
) -> Value {
    let mut kept = Vec::new();
    for (index, value) in numbers.iter().enumerate() {
        let field = || format!("{}[{index}]", path.join("."));
        if kept.len() == most {
            warnings.push(field(), format!("is left out: more than {most} entries"));
            break;
        }
        match number::truncated(value) {
            Some(number) if i128::from(each.clamp(number)) == number => {
                kept.push(Value::from(each.clamp(number)));
            }
            Some(_) | None => warnings.push(field(), format!("is left out: {}", shown(value))),
        }
    }
    Value::Array(kept)
}
