//! Tables for people, JSON and YAML for programs: one list of rows, three forms.

use std::ffi::OsStr;
use std::io::{IsTerminal as _, Write as _};

use serde_json::{Map, Value, json};
use tidegate_proto::admin::v1::{ConfigurationWarning, Difference};

use crate::cli::Output;
use crate::failure::Failure;

/// Rows with the same members each, in the order in which they are shown.
#[derive(Debug)]
pub(crate) struct Listing {
    columns: Vec<&'static str>,
    /// Columns of a table; all of them in a wide one. Empty: all.
    narrow: Vec<&'static str>,
    rows: Vec<Vec<Value>>,
}

/// A column of a list of things: its name, and what stands in it of each.
pub(crate) struct Column<T> {
    name: &'static str,
    is_wide: bool,
    value: fn(&T, Output) -> Value,
}

impl<T> Column<T> {
    /// One that every table has.
    pub(crate) const fn new(name: &'static str, value: fn(&T, Output) -> Value) -> Self {
        Self {
            name,
            is_wide: false,
            value,
        }
    }

    /// One that only a wide table has, and programs get.
    pub(crate) const fn wide(name: &'static str, value: fn(&T, Output) -> Value) -> Self {
        Self {
            name,
            is_wide: true,
            value,
        }
    }
}

impl Listing {
    /// An empty listing with these members.
    pub(crate) fn new(columns: &'static [&'static str]) -> Self {
        Self {
            columns: columns.to_vec(),
            narrow: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// These things, a row each.
    pub(crate) fn of<T>(items: &[T], columns: &[Column<T>], output: Output) -> Self {
        let names = |wide: bool| {
            let shown = columns.iter().filter(move |column| wide || !column.is_wide);
            shown.map(|column| column.name).collect()
        };
        let row = |item: &T| -> Vec<Value> {
            let values = columns.iter();
            values.map(|column| (column.value)(item, output)).collect()
        };
        Self {
            columns: names(true),
            narrow: names(false),
            rows: items.iter().map(row).collect(),
        }
    }

    /// In a table that is not wide, only these columns are shown.
    pub(crate) fn narrowed_to(self, narrow: &'static [&'static str]) -> Self {
        Self {
            narrow: narrow.to_vec(),
            ..self
        }
    }

    /// Adds a row; one value for each column.
    pub(crate) fn push(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len(), "one value for each column");
        self.rows.push(row);
    }

    /// Writes the listing.
    pub(crate) fn print(self, output: Output) -> Result<(), Failure> {
        match output {
            Output::Table => write_line(&self.table(&self.narrow, Colours::of_stdout())),
            Output::Wide => write_line(&self.table(&[], Colours::of_stdout())),
            Output::Json | Output::Yaml => print_value(&self.values(), output),
        }
    }

    /// As programs get it.
    pub(crate) fn values(self) -> Value {
        let objects = self.rows.into_iter().map(|row| {
            let members = self
                .columns
                .iter()
                .map(|column| camel_case(column))
                .zip(row)
                .collect::<Map<String, Value>>();
            Value::Object(members)
        });
        Value::Array(objects.collect())
    }

    /// As people read it, with these columns, or all where none is named.
    pub(crate) fn table(&self, shown: &[&str], colours: Colours) -> String {
        let places: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| shown.is_empty() || shown.contains(*column))
            .map(|(place, _)| place)
            .collect();
        let of = |line: Vec<String>| -> Vec<String> {
            let mut cells = line.into_iter().map(Some).collect::<Vec<_>>();
            let take = |place: &usize| cells.get_mut(*place).and_then(Option::take);
            places.iter().filter_map(take).collect()
        };
        let header = self.columns.iter().map(|column| column.to_uppercase());
        let body = self.rows.iter().map(|row| row.iter().map(cell).collect());
        let lines: Vec<Vec<String>> = std::iter::once(header.collect())
            .chain(body)
            .map(of)
            .collect();
        let widths: Vec<usize> = (0..places.len())
            .map(|column| {
                lines
                    .iter()
                    .filter_map(|line| line.get(column))
                    .map(|text| text.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        lines
            .iter()
            .map(|line| {
                line.iter()
                    .zip(&widths)
                    .map(|(text, width)| colours.paint(text, &format!("{text:width$}")))
                    .collect::<Vec<_>>()
                    .join("  ")
                    .trim_end()
                    .to_owned()
            })
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Whether words about states have colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    Off,
    On,
}

impl Colours {
    /// Those of standard output.
    pub(crate) fn of_stdout() -> Self {
        Self::of(
            std::env::var_os("NO_COLOR").as_deref(),
            std::env::var_os("TERM").as_deref(),
            std::io::stdout().is_terminal(),
        )
    }

    /// For terminals that know colours only, and never against the wish of <https://no-color.org>: a variable `NO_COLOR`
    /// that is set and not empty, whatever it says.
    fn of(no_color: Option<&OsStr>, term: Option<&OsStr>, is_terminal: bool) -> Self {
        let unwanted = no_color.is_some_and(|value| !value.is_empty());
        let is_dumb = term.is_none_or(|term| term == "dumb");
        if unwanted || is_dumb || !is_terminal {
            Self::Off
        } else {
            Self::On
        }
    }

    /// The padded text of a cell, coloured where the cell is a word about a state.
    fn paint(self, text: &str, padded: &str) -> String {
        let colour = match text {
            _ if self == Self::Off => None,
            "OPEN" | "banned" | "expired" | "credits_exhausted" | "disabled" => Some(31),
            "HALF_OPEN" | "DEGRADED" | "unavailable" => Some(33),
            "CLOSED" | "active" => Some(32),
            _ => None,
        };
        match colour {
            None => padded.to_owned(),
            Some(colour) => format!("\u{1b}[{colour}m{padded}\u{1b}[0m"),
        }
    }
}

/// Writes a value as JSON or YAML; a table of it is its JSON.
pub(crate) fn print_value(value: &Value, output: Output) -> Result<(), Failure> {
    let text = match output {
        Output::Table | Output::Wide | Output::Json => serde_json::to_string_pretty(value)
            .map_err(|error| Failure::Output(error.to_string()))?,
        Output::Yaml => {
            serde_saphyr::to_string(value).map_err(|error| Failure::Output(error.to_string()))?
        }
    };
    write_line(text.trim_end())
}

/// Writes what a change of the configuration did, or would do.
pub(crate) fn write_differences(
    version: u64,
    differences: &[Difference],
    warnings: &[ConfigurationWarning],
    dry_run: bool,
    output: Output,
) -> Result<(), Failure> {
    if !output.is_for_people() {
        let told = differences_value(version, differences, warnings, dry_run);
        return print_value(&told, output);
    }
    for warning in warnings {
        let ConfigurationWarning {
            code,
            path,
            message,
        } = warning;
        write_line(&format!("! {path}: {message} ({code})"))?;
    }
    for difference in differences {
        let sign = match difference.kind.as_str() {
            "added" => '+',
            "removed" => '-',
            _ => '~',
        };
        write_line(&format!("{sign} {}", difference.subject))?;
        for detail in &difference.details {
            write_line(&format!("    {detail}"))?;
        }
    }
    match (differences.is_empty(), dry_run) {
        (true, _) => write_line(&format!("nothing differs from version {version}")),
        (false, true) => write_line("dry run: nothing was changed"),
        (false, false) => write_line(&format!("applied as version {version}")),
    }
}

/// The same for programs.
pub(crate) fn differences_value(
    version: u64,
    differences: &[Difference],
    warnings: &[ConfigurationWarning],
    dry_run: bool,
) -> Value {
    let differences: Vec<_> = differences
        .iter()
        .map(|difference| {
            json!({
                "kind": difference.kind,
                "subject": difference.subject,
                "details": difference.details,
            })
        })
        .collect();
    let mut told = json!({"version": version, "dryRun": dry_run, "differences": differences});
    if !warnings.is_empty() {
        let warnings = warnings
            .iter()
            .map(|it| json!({"code": it.code, "path": it.path, "message": it.message}));
        told["warnings"] = warnings.collect();
    }
    told
}

/// Writes a line to standard output. That its reader has gone is [`Failure::Closed`].
pub(crate) fn write_line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Output(error.to_string()),
        })
}

/// A time that remains, in words such as `1m 30s`; `-` when there is none.
pub(crate) fn remaining(ms: Option<u64>) -> String {
    ms.map_or_else(
        || "-".to_owned(),
        |ms| {
            let rounded = std::time::Duration::from_secs(ms.div_ceil(1_000));
            humantime::format_duration(rounded).to_string()
        },
    )
}

/// The end of the year 9999, the last one that can be written.
const LAST_MOMENT_MS: u64 = 253_402_300_799_999;

/// A moment as a member: in words, null when there is none.
pub(crate) fn moment_value(unix_ms: Option<u64>) -> Value {
    unix_ms.map_or(Value::Null, |ms| Value::String(moment(Some(ms))))
}

/// A moment in words; `-` when there is none.
pub(crate) fn moment(unix_ms: Option<u64>) -> String {
    unix_ms
        .filter(|ms| *ms <= LAST_MOMENT_MS)
        .and_then(|ms| std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_millis(ms)))
        .map_or_else(
            || "-".to_owned(),
            |moment| humantime::format_rfc3339_seconds(moment).to_string(),
        )
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.chars().map(printable).collect(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// A character that cannot steer a terminal.
pub(crate) fn printable(character: char) -> char {
    if character.is_control() {
        char::REPLACEMENT_CHARACTER
    } else {
        character
    }
}

fn camel_case(column: &str) -> String {
    let mut words = column.split(' ');
    let first = words.next().unwrap_or_default().to_lowercase();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_terminal(None, Some("xterm-256color"), true, Colours::On)]
    #[case::nothing_is_wished(Some(""), Some("xterm"), true, Colours::On)]
    #[case::none_are_wished(Some("1"), Some("xterm"), true, Colours::Off)]
    #[case::whatever_the_wish_says(Some("0"), Some("xterm"), true, Colours::Off)]
    #[case::a_pipe(None, Some("xterm"), false, Colours::Off)]
    #[case::a_terminal_that_knows_none(None, Some("dumb"), true, Colours::Off)]
    #[case::no_kind_of_terminal(None, None, true, Colours::Off)]
    fn colours_are_for_terminals_and_never_against_a_wish(
        #[case] no_color: Option<&str>,
        #[case] term: Option<&str>,
        #[case] is_terminal: bool,
        #[case] expected: Colours,
    ) {
        let found = Colours::of(no_color.map(OsStr::new), term.map(OsStr::new), is_terminal);
        assert_eq!(found, expected);
    }

    fn listing() -> Listing {
        let mut listing = Listing::new(&["id", "retry after", "models"]);
        listing.push(vec![json!("openai"), json!(3), json!(["a", "b"])]);
        listing.push(vec![json!("x\u{1b}[2J"), Value::Null, json!([])]);
        listing
    }

    #[test]
    fn a_table_is_aligned_and_cannot_steer_a_terminal() {
        assert_eq!(
            listing().table(&[], Colours::Off),
            "ID      RETRY AFTER  MODELS\n\
             openai  3            a,b\n\
             x\u{fffd}[2J   -            -"
        );
    }

    #[test]
    fn a_narrow_table_has_the_columns_it_names() {
        assert_eq!(
            listing().table(&["id", "models"], Colours::Off),
            "ID      MODELS\nopenai  a,b\nx\u{fffd}[2J   -"
        );
    }

    #[test]
    fn only_words_about_states_have_colours_and_columns_stay_aligned() {
        let mut listing = Listing::new(&["state", "id"]);
        listing.push(vec![json!("OPEN"), json!("OPENER")]);
        listing.push(vec![json!("HALF_OPEN"), json!("b")]);
        assert_eq!(
            listing.table(&[], Colours::On),
            "STATE      ID\n\u{1b}[31mOPEN     \u{1b}[0m  OPENER\n\u{1b}[33mHALF_OPEN\u{1b}[0m  b"
        );
    }

    #[test]
    fn things_have_the_columns_of_their_kind_and_people_fewer() {
        const COLUMNS: &[Column<(&str, u32)>] = &[
            Column::new("id", |it, _| json!(it.0)),
            Column::wide("size", |it, output| {
                if output.is_for_people() {
                    json!(format!("{} bytes", it.1))
                } else {
                    json!(it.1)
                }
            }),
        ];
        let things = [("a", 7)];
        let table = Listing::of(&things, COLUMNS, Output::Table);
        assert_eq!(table.table(&table.narrow, Colours::Off), "ID\na");
        assert_eq!(table.table(&[], Colours::Off), "ID  SIZE\na   7 bytes");
        let json = Listing::of(&things, COLUMNS, Output::Json);
        assert_eq!(json.values(), json!([{"id": "a", "size": 7}]));
    }

    #[test]
    fn programs_get_members_by_name() {
        assert_eq!(
            listing().values(),
            json!([
                {"id": "openai", "retryAfter": 3, "models": ["a", "b"]},
                {"id": "x\u{1b}[2J", "retryAfter": null, "models": []},
            ])
        );
    }

    #[test]
    fn times_are_words() {
        assert_eq!(remaining(Some(89_001)), "1m 30s");
        assert_eq!(remaining(None), "-");
        assert_eq!(moment(Some(0)), "1970-01-01T00:00:00Z");
        assert_eq!(moment(Some(u64::MAX)), "-");
    }
}
