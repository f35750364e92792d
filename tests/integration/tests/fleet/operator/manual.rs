//! What can be known of command lines of `tidegatectl`: from its help, and from the README.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use tidegate_integration::LIMIT;
use tidegate_test_support::{ProcessBuilder, bin_dir};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
const PROGRAM: &str = "tidegatectl";

/// The help of each command, read when it is looked into.
#[derive(Default)]
pub(super) struct Manual {
    pages: BTreeMap<Vec<String>, Page>,
}

impl Manual {
    /// Fails unless each word of a command line is told of: commands, options and values of closed lists by name, other
    /// values by that there may be one. Tells which command it is.
    pub(super) async fn explain(&mut self, line: &[String]) -> Result<Vec<String>> {
        let mut command = Vec::new();
        let mut values = 0;
        let mut words = line.iter();
        while let Some(word) = words.next() {
            let page = self.page(&command).await?;
            if word.starts_with('-') {
                let (name, value) = word
                    .split_once('=')
                    .map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
                let option = page
                    .option(name)
                    .with_context(|| format!("the help of {command:?} tells of no {name}"))?;
                let value = match value {
                    None if option.takes_a_value() => words.next().map(String::as_str),
                    value => value,
                };
                ensure!(
                    value.is_some() == option.takes_a_value(),
                    "{name} of {command:?} is told otherwise"
                );
                option.check(value.unwrap_or_default())?;
            } else if page.has_commands() {
                ensure!(
                    page.has_command(word),
                    "the help of {command:?} tells of no {word}"
                );
                command.push(word.clone());
            } else {
                let value = page
                    .value(values)
                    .with_context(|| format!("the help of {command:?} tells of no {word}"))?;
                value.check(word)?;
                values += 1;
            }
        }
        Ok(command)
    }

    async fn page(&mut self, command: &[String]) -> Result<&Page> {
        if !self.pages.contains_key(command) {
            let finished = ProcessBuilder::program(PROGRAM, bin_dir()?.join(PROGRAM))
                .args(command)
                .args(["--help"])
                .run(LIMIT)
                .await?;
            ensure!(finished.status.success(), "{command:?}: {finished:?}");
            self.pages
                .insert(command.to_vec(), Page::read(&finished.stdout));
        }
        self.pages.get(command).context("it was just read")
    }
}

/// One page of help: entries below the headings of its sections.
#[derive(Default)]
struct Page {
    sections: BTreeMap<String, Vec<Entry>>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut section: &mut Vec<Entry> = &mut Vec::new();
        for line in text.lines() {
            let indent = line.len() - line.trim_start().len();
            let words = line.trim();
            if indent == 0 && words.ends_with(':') {
                section = page.sections.entry(words.to_owned()).or_default();
            } else if (1..8).contains(&indent) && !words.is_empty() {
                // What is told of an entry stands below it, farther to the right.
                section.push(Entry(vec![words.to_owned()]));
            } else if let Some(entry) = section.last_mut() {
                entry.0.push(words.to_owned());
            }
        }
        page
    }

    fn section(&self, heading: &str) -> &[Entry] {
        self.sections.get(heading).map_or(&[], Vec::as_slice)
    }

    fn has_commands(&self) -> bool {
        !self.section("Commands:").is_empty()
    }

    fn has_command(&self, word: &str) -> bool {
        let mut commands = self.section("Commands:").iter();
        commands.any(|entry| entry.head().split(' ').next() == Some(word))
    }

    fn option(&self, name: &str) -> Option<&Entry> {
        let mut options = self.section("Options:").iter();
        options.find(|entry| {
            let mut names = entry.head().split([' ', ',']);
            names.any(|known| known == name)
        })
    }

    /// The value in this place; the last one may stand for all that follow.
    fn value(&self, place: usize) -> Option<&Entry> {
        let values = self.section("Arguments:");
        let last = values.last().filter(|last| last.head().contains("..."));
        values.get(place).or(last)
    }
}

/// An option, a value or a command, with what is told of it.
struct Entry(Vec<String>);

impl Entry {
    fn head(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    fn takes_a_value(&self) -> bool {
        self.head().contains('<')
    }

    /// A value from a closed list is in the list. What is written in capitals stands for a value.
    fn check(&self, value: &str) -> Result<()> {
        let mut items = self.0.iter().filter_map(|line| line.strip_prefix("- "));
        let listed = |item: &str| item == value || item.starts_with(&format!("{value}:"));
        let is_closed = self.0.iter().any(|line| line == "Possible values:");
        let is_placeholder = value
            .chars()
            .all(|character| character.is_ascii_uppercase());
        if is_closed && !is_placeholder && !items.any(listed) {
            bail!("{value} is not among the values of {}", self.head());
        }
        Ok(())
    }
}

/// The command lines that the README shows: in blocks of code, and in the text.
pub(super) fn of_the_readme() -> Result<Vec<Vec<String>>> {
    let text = std::fs::read_to_string(README)?;
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            found.extend(command_in(line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).filter_map(command_in));
        }
    }
    ensure!(found.len() > 10, "{found:?}");
    Ok(found)
}

/// What is given to the program in a line of a shell, without its comment.
fn command_in(line: &str) -> Option<Vec<String>> {
    let (before, words) = line.split_once(&format!("{PROGRAM} "))?;
    if !(before.is_empty() || before.ends_with(' ')) {
        return None;
    }
    let words = words.split_whitespace().take_while(|word| *word != "#");
    Some(
        words
            .skip_while(|word| *word == "--")
            .map(str::to_owned)
            .collect(),
    )
}

#[test]
fn help_is_read_as_it_is_printed() -> Result<()> {
    let page = Page::read(
        "Lists\n\nUsage: x get [OPTIONS] <KIND> [NAME]...\n\nArguments:\n  <KIND>\n          What\n\n          Possible values:\n          \
         - keys: Keys\n          - all\n\n  [NAME]...\n          Its name\n\nOptions:\n      --limit <N>\n          Most\n\n  \
         -q, --quiet\n          Says less\n\nCommands:\n  list  Lists\n",
    );
    assert!(page.has_command("list") && !page.has_command("Lists"));
    let limit = page.option("--limit").context("an option")?;
    assert!(limit.takes_a_value() && limit.check("5").is_ok());
    assert!(!page.option("-q").context("an option")?.takes_a_value());
    assert!(page.option("--lim").is_none() && page.option("--limits").is_none());
    let kind = page.value(0).context("a value")?;
    assert!(kind.check("keys").is_ok() && kind.check("all").is_ok() && kind.check("KIND").is_ok());
    assert!(kind.check("key").is_err() && kind.check("Keys").is_err());
    assert!(page.value(7).context("a value")?.check("whatever").is_ok());
    Ok(())
}
