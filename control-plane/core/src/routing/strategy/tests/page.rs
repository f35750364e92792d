//! The page about strategies (`docs/strategies.md`) is whole, and its examples are good documents.

use super::*;
use crate::config::{Config, Document};
use crate::settings::Overrides;

const PAGE: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/strategies.md"
));

/// The text under this heading, up to the next one.
fn section(heading: &str) -> &'static str {
    let mut sections = PAGE.split("\n## ");
    sections
        .find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'))
        .unwrap_or_else(|| panic!("no section {heading}"))
}

/// The first example of a text.
fn example(text: &str) -> Document {
    let (_, rest) = text.split_once("```yaml\n").expect("an example");
    let (yaml, _) = rest.split_once("\n```").expect("its end");
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

#[test]
fn every_strategy_has_a_section_with_an_example_that_builds() {
    let common = example(PAGE);
    for strategy in Strategy::ALL.iter().copied() {
        if strategy == Strategy::QuotaShare {
            // Nobody writes it: quota pools make such combos.
            continue;
        }
        let text = section(strategy.as_str());
        let mut document = common.clone();
        document.combos = example(text).combos;
        let strategies: Vec<Strategy> =
            document.combos.iter().map(|combo| combo.strategy).collect();
        assert_eq!(strategies, [strategy]);
        if let Err(violations) = Config::build(document, 1, &Overrides::default()) {
            panic!("{}: {violations:?}", strategy.as_str());
        }
        for said in ["\n*State:* ", "*Staleness:* "] {
            assert!(text.contains(said), "{}: {said}", strategy.as_str());
        }
        let listed = format!("\n| [`{0}`](#{0}) | ", strategy.as_str());
        assert!(PAGE.contains(&listed), "{listed}");
    }
}

#[test]
fn every_account_strategy_is_named_and_no_other() {
    let text = section("Accounts");
    let (_, list) = text.split_once("\n\n").expect("a list");
    let (list, _) = list.split_once(".\n").expect("its end");
    for strategy in Strategy::ALL.iter().copied() {
        let word = strategy.as_str();
        let named = list.contains(&format!("`{word}`"));
        let quoted = format!("\"{word}\"");
        let is_one = serde_json::from_str::<crate::config::AccountStrategy>(&quoted).is_ok();
        assert_eq!(named, is_one, "{word}");
    }
    assert!(!example(text).providers.is_empty());
}
