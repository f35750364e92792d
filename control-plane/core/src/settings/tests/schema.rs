//! The JSON Schemas and the table of the documentation, made from the types and from the description of the
//! members. `UPDATE_DOCS=1 cargo nextest run -p tidegate-core schema` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::super::member::{Bounds, Member, Reach, Shape};
use super::super::members::SECTIONS;
use super::super::*;
use crate::config::{ComboConfig, Document};

fn docs(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(file)
}

/// Compares a file of the documentation with what it should be, or writes it.
pub(super) fn agrees(file: &str, expected: &str) {
    let path = docs(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/{file} is not what the types say; UPDATE_DOCS=1 cargo nextest run -p tidegate-core schema"
    );
}

/// Built-in values by path.
fn defaults() -> BTreeMap<String, Value> {
    effective(&WrittenSettings::default().stored(), &Overrides::default())
        .into_iter()
        .map(|setting| (setting.path, setting.value))
        .collect()
}

fn schema_of<T: schemars::JsonSchema>(title: &str) -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), json!(title));
    let mut schema = schema.to_value();
    for_users(&mut schema);
    schema
}

/// Adds bounds and built-in values, and checks that types and description name the same members.
fn complete(schema: &mut Value, path: &str, known: &[Member], defaults: &BTreeMap<String, Value>) {
    schema.as_object_mut().unwrap().remove("default");
    let properties = schema["properties"].as_object_mut().unwrap();
    let mut in_types: Vec<&String> = properties.keys().collect();
    in_types.sort();
    let mut described: Vec<&str> = known.iter().map(|member| member.name).collect();
    described.sort_unstable();
    assert_eq!(in_types, described, "members of `{path}`");
    for member in known {
        let path = if path.is_empty() {
            member.name.to_owned()
        } else {
            format!("{path}.{}", member.name)
        };
        let property = properties.get_mut(member.name).unwrap();
        match member.shape {
            Shape::Members(known) => {
                complete(property, &path, known, defaults);
                continue;
            }
            Shape::Whole(bounds) => bound(property, bounds),
            Shape::Numbers { each, most } => {
                bound(&mut property["items"], each);
                property["maxItems"] = json!(most);
            }
            Shape::Share => {
                property["minimum"] = json!(0);
                property["maximum"] = json!(1);
            }
            Shape::Flag | Shape::Text | Shape::Entries => {}
        }
        property["default"] = defaults[&path].clone();
    }
}

fn bound(property: &mut Value, bounds: Bounds) {
    let (least, most) = bounds.of(Reach::Api);
    property["minimum"] = json!(least);
    property["maximum"] = json!(most);
    property.as_object_mut().unwrap().remove("format");
}

/// Takes out where a rule comes from, such as `(decision 10)`: it says nothing to who uses the product.
fn for_users(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = without_sources(text);
            }
            members.values_mut().for_each(for_users);
        }
        Value::Array(values) => values.iter_mut().for_each(for_users),
        _ => {}
    }
}

fn without_sources(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once(" (") {
        let Some((inner, after)) = from.split_once(')') else {
            break;
        };
        kept.push_str(before);
        if !inner.contains("decision ") && !inner.contains(".md") {
            kept.push_str(&format!(" ({inner})"));
        }
        rest = after;
    }
    kept.push_str(rest);
    kept
}

#[test]
fn where_a_rule_comes_from_is_left_out_of_the_schema() {
    let text = "A (b) c (decision 10). D (`failure-state.md` §5.3, §2) e.";
    assert_eq!(without_sources(text), "A (b) c. D e.");
}

fn settings_schema() -> Value {
    let mut schema = schema_of::<Settings>("Tidegate settings");
    complete(&mut schema, "", SECTIONS, &defaults());
    schema
}

fn text(schema: &Value) -> String {
    let mut text = serde_json::to_string_pretty(schema).unwrap();
    text.push('\n');
    text
}

#[test]
fn the_schema_of_the_settings_is_the_committed_one() {
    agrees("schema/settings.json", &text(&settings_schema()));
}

#[test]
fn the_schema_of_the_document_is_the_committed_one() {
    let mut schema = schema_of::<Document>("Tidegate configuration");
    let mut settings = settings_schema();
    for member in ["$schema", "title"] {
        settings.as_object_mut().unwrap().remove(member);
    }
    schema["properties"]["settings"] = settings;
    agrees("schema/document.json", &text(&schema));
}

const BEGIN: &str = "<!-- settings: begin -->";
const END: &str = "<!-- settings: end -->";

#[test]
fn every_setting_is_in_the_table_of_the_documentation_schema() {
    agrees("configuration.md", &between(BEGIN, END, &settings_table()));
}

fn settings_table() -> String {
    let mut table = String::from("| member | meaning | bounds | default |\n|---|---|---|---|\n");
    rows(&settings_schema(), "", SECTIONS, &defaults(), &mut table);
    table
}

/// The page about the configuration with another table between two marks.
pub(super) fn between(begin: &str, end: &str, table: &str) -> String {
    let page = std::fs::read_to_string(docs("configuration.md")).unwrap();
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    format!("{before}{begin}\n{table}{end}{after}")
}

/// What the tables of that page name in their first column, that of the settings as it is to be.
pub(super) fn documented_members() -> BTreeSet<String> {
    let page = between(BEGIN, END, &settings_table());
    let lines = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = lines.filter_map(|line| line.split_once("` |"));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_member_of_a_combo_is_in_the_table_of_the_documentation_schema() {
    const BEGIN: &str = "<!-- combo config: begin -->";
    const END: &str = "<!-- combo config: end -->";
    let schema = schema_of::<ComboConfig>("Members of a combo");
    let mut table = String::from("| member | meaning |\n|---|---|\n");
    members(&schema, "", &mut table);
    agrees("configuration.md", &between(BEGIN, END, &table));
}

fn members(schema: &Value, path: &str, table: &mut String) {
    for (name, property) in schema["properties"].as_object().unwrap() {
        let path = format!("{path}{name}");
        // An optional member with members of its own is that or null.
        let inner = property["anyOf"].as_array().into_iter().flatten();
        match inner
            .chain([property])
            .find(|it| it["properties"].is_object())
        {
            Some(inner) => members(inner, &format!("{path}."), table),
            None => {
                let meaning = property["description"].as_str().unwrap_or_default();
                assert!(!meaning.is_empty(), "{path} has no meaning");
                let meaning = meaning.replace('\n', " ");
                table.push_str(&format!("| `{path}` | {meaning} |\n"));
            }
        }
    }
}

const CLASSES: [&str; 3] = ["oauth", "apikey", "local"];

fn rows(
    schema: &Value,
    path: &str,
    known: &[Member],
    defaults: &BTreeMap<String, Value>,
    table: &mut String,
) {
    for member in known {
        let property = &schema["properties"][member.name];
        // The classes have the same members; the first stands for all.
        let name = match member.name {
            "oauth" => "<class>",
            "apikey" | "local" => continue,
            name => name,
        };
        let path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        let bounds = match member.shape {
            Shape::Members(known) => {
                rows(property, &path, known, defaults, table);
                continue;
            }
            Shape::Whole(bounds) => range(bounds),
            Shape::Numbers { each, most } => format!("{} each, at most {most}", range(each)),
            Shape::Share => "0 to 1".to_owned(),
            Shape::Flag | Shape::Text | Shape::Entries => String::new(),
        };
        let default = if path.contains("<class>") {
            CLASSES
                .map(|class| shown(&defaults[&path.replace("<class>", class)]))
                .join(" / ")
        } else {
            shown(&defaults[&path])
        };
        let meaning = property["description"].as_str().unwrap_or_default();
        assert!(!meaning.is_empty(), "{path} has no meaning");
        let meaning = meaning.replace('\n', " ");
        table.push_str(&format!(
            "| `{path}` | {meaning} | {bounds} | {default} |\n"
        ));
    }
}

fn range(bounds: Bounds) -> String {
    let (least, most) = bounds.of(Reach::Api);
    format!("{} to {}", grouped(least), grouped(most))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "unset".to_owned(),
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), grouped),
        Value::Array(entries) if entries.is_empty() => "none".to_owned(),
        Value::Object(entries) if entries.is_empty() => "none".to_owned(),
        Value::Array(entries) => entries.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => format!("`{}`", other.to_string().trim_matches('"')),
    }
}

/// `86 400 000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digits.len() > 4 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
