//! Lists and maps of the settings, whose entries are judged one by one: the type of the section and its rules
//! say whether one is good, and no second description of them is needed.

use serde_json::{Map, Value};

use crate::config::Violations;

use super::Settings;
use super::bounds::conflicts;
use super::member::{Member, Shape};
use super::members::SECTIONS;
use super::strict::typed;

/// Most entries of one list or map that are looked at one by one; more are dropped from what is stored.
const MAX_JUDGED: usize = 10_000;

/// Says which entries are not of their type. What their section's rules say of them is told with the settings as
/// a whole, to the member.
pub(super) fn check(written: &Map<String, Value>, found: &mut Violations) {
    for (path, value) in lists(written, SECTIONS, &[]) {
        let Err(fault) = read(&path, value) else {
            continue;
        };
        let before = found.len();
        for entry in entries(value).into_iter().take(MAX_JUDGED) {
            if let Err(fault) = read(&path, &entry.alone()) {
                found.push(format!("{}{}", path.join("."), entry.place), fault);
            }
        }
        if found.len() == before {
            // Each is good, all of them together are not.
            found.push(path.join("."), fault);
        }
    }
}

/// Keeps what is good of a list or map.
pub(super) fn mend(path: &[&str], value: &Value, warnings: &mut Violations) -> Option<Value> {
    if judge(path, value).is_ok() {
        return Some(value.clone());
    }
    if !value.is_array() && !value.is_object() {
        warnings.push(path.join("."), "is left out: it must have entries");
        return None;
    }
    let all = entries(value);
    let field = |entry: &Entry<'_>| format!("{}{}", path.join("."), entry.place);
    if let Some(first) = all.get(MAX_JUDGED) {
        let what = "is left out with all that follow: there are too many";
        warnings.push(field(first), what);
    }
    let mut good = Vec::new();
    for entry in all.into_iter().take(MAX_JUDGED) {
        match judge(path, &entry.alone()) {
            Ok(()) => good.push(entry),
            Err(fault) => warnings.push(field(&entry), format!("is left out: {fault}")),
        }
    }
    let fit = how_many_fit(path, value, &good);
    if let Some(first) = good.get(fit) {
        let what = "is left out with all that follow: there are too many";
        warnings.push(field(first), what);
    }
    Some(together(value, good.get(..fit).unwrap_or_default()))
}

/// How many of the entries, from the first, are good together. More are never better than fewer, so this halves.
fn how_many_fit(path: &[&str], value: &Value, good: &[Entry<'_>]) -> usize {
    let fits = |count: usize| {
        let some = good.get(..count).unwrap_or_default();
        judge(path, &together(value, some)).is_ok()
    };
    if fits(good.len()) {
        return good.len();
    }
    let (mut fit, mut too_many) = (0, good.len());
    while too_many - fit > 1 {
        let middle = fit.midpoint(too_many);
        if fits(middle) {
            fit = middle;
        } else {
            too_many = middle;
        }
    }
    fit
}

/// A list or map like `value` of these entries.
fn together(value: &Value, entries: &[Entry<'_>]) -> Value {
    let mut whole = match value {
        Value::Array(_) => Value::Array(Vec::new()),
        _ => Value::Object(Map::new()),
    };
    for entry in entries {
        entry.add_to(&mut whole);
    }
    whole
}

/// Whether settings with nothing but this are good.
fn judge(path: &[&str], value: &Value) -> Result<(), String> {
    let settings = read(path, value)?;
    let mut found = Violations::default();
    conflicts(&settings, &mut found);
    match found.into_vec().into_iter().next() {
        None => Ok(()),
        Some(violation) => Err(violation.message),
    }
}

/// Settings with nothing but this.
fn read(path: &[&str], value: &Value) -> Result<Settings, String> {
    let mut members = Map::new();
    let mut nested = value.clone();
    if let Some((section, inner)) = path.split_first() {
        for name in inner.iter().rev() {
            nested = Value::Object(Map::from_iter([((*name).to_owned(), nested)]));
        }
        members.insert((*section).to_owned(), nested);
    }
    typed(&members).map_err(|error| error.to_string())
}

/// Every list or map that is written, with its path.
fn lists<'a>(
    written: &'a Map<String, Value>,
    known: &'static [Member],
    path: &[&'static str],
) -> Vec<(Vec<&'static str>, &'a Value)> {
    let mut all = Vec::new();
    for member in known {
        let Some(value) = written.get(member.name).filter(|value| !value.is_null()) else {
            continue;
        };
        let path: Vec<&'static str> = path.iter().copied().chain([member.name]).collect();
        match (member.shape, value) {
            (Shape::Entries, value) => all.push((path, value)),
            (Shape::Members(known), Value::Object(written)) => {
                all.extend(lists(written, known, &path));
            }
            _ => {}
        }
    }
    all
}

/// One entry: of a list, of a map, or of a list in a map.
struct Entry<'a> {
    /// Name in the map, if it is in one.
    name: Option<&'a str>,
    /// It is one of a list.
    listed: bool,
    value: &'a Value,
    /// Where it is, as the end of a path.
    place: String,
}

fn entries(value: &Value) -> Vec<Entry<'_>> {
    match value {
        Value::Array(values) => listed(None, values),
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, value)| match value {
                Value::Array(values) => listed(Some(name), values),
                value => vec![Entry {
                    name: Some(name),
                    listed: false,
                    value,
                    place: format!(".{name}"),
                }],
            })
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn listed<'a>(name: Option<&'a str>, values: &'a [Value]) -> Vec<Entry<'a>> {
    let prefix = name.map(|name| format!(".{name}")).unwrap_or_default();
    values
        .iter()
        .enumerate()
        .map(|(index, value)| Entry {
            name,
            listed: true,
            value,
            place: format!("{prefix}[{index}]"),
        })
        .collect()
}

impl Entry<'_> {
    /// A list or map of only this.
    fn alone(&self) -> Value {
        let mut whole = match self.name {
            Some(_) => Value::Object(Map::new()),
            None => Value::Array(Vec::new()),
        };
        self.add_to(&mut whole);
        whole
    }

    fn add_to(&self, whole: &mut Value) {
        match (whole, self.name) {
            (Value::Array(values), None) => values.push(self.value.clone()),
            (Value::Object(members), Some(name)) if self.listed => {
                let list = members
                    .entry(name)
                    .or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(values) = list {
                    values.push(self.value.clone());
                }
            }
            (Value::Object(members), Some(name)) => {
                members.insert(name.to_owned(), self.value.clone());
            }
            _ => {}
        }
    }
}
