//! Which metrics and labels an expression of Prometheus asks for.

/// Beginnings of the names of all metrics.
const OURS: [&str; 4] = [
    "tidegate_cp_",
    "tidegate_dp_",
    "gen_ai_client_",
    "gen_ai_server_",
];

/// Names of ours in a text, each with the labels that are asked for in the braces behind it.
pub(super) fn asked(text: &str) -> Vec<(String, Vec<String>)> {
    let ours = |name: &str| OURS.iter().any(|prefix| name.starts_with(prefix));
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((word, behind)) = next_word(rest) {
        if ours(word) {
            let labels = behind
                .strip_prefix('{')
                .and_then(|inside| inside.split('}').next())
                .unwrap_or_default()
                .split(',')
                .filter_map(|label| Some(label.split_once(['=', '!'])?.0.trim().to_owned()));
            found.push((word.to_owned(), labels.collect()));
        }
        rest = behind;
    }
    let patterns = text.split("__name__=~\"").skip(1);
    let names = patterns.flat_map(|rest| alternatives(rest.split('"').next().unwrap_or_default()));
    found.extend(names.map(|name| (name, Vec::new())));
    found
}

/// The names that a pattern such as `a_(b|c)_d` stands for.
fn alternatives(pattern: &str) -> Vec<String> {
    let parts = pattern
        .split_once('(')
        .and_then(|(before, rest)| Some((before, rest.split_once(')')?)));
    let Some((before, (words, behind))) = parts else {
        return vec![pattern.to_owned()];
    };
    words
        .split('|')
        .flat_map(|word| alternatives(&format!("{before}{word}{behind}")))
        .collect()
}

/// The first word of letters, digits and underscores, and what is behind it.
fn next_word(text: &str) -> Option<(&str, &str)> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let word = text.trim_start_matches(|character| !is_part(character));
    let end = word.find(|character| !is_part(character));
    let split = word.split_at_checked(end.unwrap_or(word.len()))?;
    (!split.0.is_empty()).then_some(split)
}

/// Names of ours that an expression puts into groups, each with the labels of the groups: those of aggregations, and those
/// by which two sides of an operator are put together.
pub(super) fn grouped(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut read = 0;
    while let Some(rest) = expression.get(read..)
        && let Some((word, behind)) = next_word(rest)
    {
        let begin = expression.len() - behind.len() - word.len();
        read = begin + word.len();
        let Some((labels, rest)) = parenthesised(behind) else {
            continue;
        };
        let concerned = match word {
            // The labels stand before or behind what is aggregated.
            "by" | "without" => parenthesised(rest)
                .map(|(inside, _)| inside)
                .or_else(|| expression.get(..begin).and_then(parenthesised_at_the_end)),
            "on" | "ignoring" => Some(expression),
            _ => continue,
        };
        // A label may be called like a word of the language.
        read = expression.len() - rest.len();
        let labels: Vec<String> = labels
            .split(',')
            .map(|label| label.trim().to_owned())
            .collect();
        let names = asked(concerned.unwrap_or(expression)).into_iter();
        found.extend(names.map(|(name, _)| (name, labels.clone())));
    }
    found
}

/// What is in the parentheses that a text begins with, and what is behind them.
fn parenthesised(text: &str) -> Option<(&str, &str)> {
    let inside = text.trim_start().strip_prefix('(')?;
    let mut depth = 1;
    for (place, character) in inside.char_indices() {
        depth += depth_of(character);
        if depth == 0 {
            return Some((inside.get(..place)?, inside.get(place + 1..)?));
        }
    }
    None
}

/// What is in the parentheses that a text ends with.
fn parenthesised_at_the_end(text: &str) -> Option<&str> {
    let inside = text.trim_end().strip_suffix(')')?;
    let mut depth = -1;
    for (place, character) in inside.char_indices().rev() {
        depth += depth_of(character);
        if depth == 0 {
            return inside.get(place + 1..);
        }
    }
    None
}

fn depth_of(character: char) -> i32 {
    match character {
        '(' => 1,
        ')' => -1,
        _ => 0,
    }
}

fn with_labels(name: &str, labels: &[&str]) -> (String, Vec<String>) {
    let labels = labels.iter().map(|&label| label.to_owned()).collect();
    (name.to_owned(), labels)
}

#[test]
fn expressions_are_taken_apart() {
    let found =
        asked(r#"sum(tidegate_dp_a_total{x="1",y!~"2"}) / tidegate_cp_b > my_tidegate_dp_c"#);
    assert_eq!(
        found,
        [
            with_labels("tidegate_dp_a_total", &["x", "y"]),
            with_labels("tidegate_cp_b", &[])
        ]
    );
    assert_eq!(
        asked(r#"sum(increase({__name__=~"tidegate_(dp|cp)_a_total"}[5m]))"#),
        [
            with_labels("tidegate_dp_a_total", &[]),
            with_labels("tidegate_cp_a_total", &[])
        ]
    );
}

#[test]
fn groups_are_of_what_is_aggregated() {
    assert_eq!(
        grouped(
            "sum by (by, x) (rate(tidegate_dp_a[5m])) / sum(tidegate_dp_b) by (y) > tidegate_dp_c"
        ),
        [
            with_labels("tidegate_dp_a", &["by", "x"]),
            with_labels("tidegate_dp_b", &["y"])
        ]
    );
    assert_eq!(
        grouped("max by (x) (sum without (y) (tidegate_dp_a{by=\"1\"}))"),
        [
            with_labels("tidegate_dp_a", &["x"]),
            with_labels("tidegate_dp_a", &["y"])
        ]
    );
    assert_eq!(
        grouped("tidegate_dp_a * on (x) tidegate_dp_b"),
        [
            with_labels("tidegate_dp_a", &["x"]),
            with_labels("tidegate_dp_b", &["x"])
        ]
    );
    assert_eq!(grouped("sum(tidegate_dp_a)"), []);
}
