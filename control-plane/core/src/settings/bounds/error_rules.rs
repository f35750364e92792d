//! Bounds of what errors mean: ban phrases, operator rules and the lists of providers.

use std::ops::RangeInclusive;

use crate::classify::Reason;
use crate::config::Violations;
use crate::ids::ProviderId;
use crate::settings::{ProviderErrorRule, Settings};

/// Most operator rules, of all providers together.
const MAX_RULES: usize = 50;
/// Most ban phrases.
const MAX_PHRASES: usize = 100;
/// Most providers on a list.
const MAX_LISTED: usize = 1_000;
const STATUS: RangeInclusive<u16> = 100..=599;
const RULE_CHARACTERS: RangeInclusive<usize> = 1..=200;
const PHRASE_CHARACTERS: RangeInclusive<usize> = 3..=200;
const COOLDOWN_MS: RangeInclusive<u64> = 1_000..=2_592_000_000;

/// Everything that is out of bounds.
pub(in crate::settings) fn error_rules(settings: &Settings, found: &mut Violations) {
    ban_phrases(&settings.ban_detection.extra_phrases, found);
    let rules = &settings.provider_error_rules;
    let count = rules.values().map(Vec::len).sum();
    // Providers without a rule are counted too, so that a document of empty lists is not walked.
    let fits = found.at_most("providerErrorRules", count, MAX_RULES)
        && found.at_most("providerErrorRules", rules.len(), MAX_LISTED);
    if fits {
        for (provider, rules) in rules {
            for (index, written) in rules.iter().enumerate() {
                let path = format!("providerErrorRules.{provider}[{index}]");
                rule(&path, written, found);
            }
        }
    }
    let lists = &settings.error_rules;
    let lists: [(&str, &Vec<ProviderId>); 3] = [
        ("fullTextProviders", &lists.full_text_providers),
        ("scopeProviders", &lists.scope_providers),
        ("egressBucketedProviders", &lists.egress_bucketed_providers),
    ];
    for (name, providers) in lists {
        found.at_most(format!("errorRules.{name}"), providers.len(), MAX_LISTED);
    }
}

fn ban_phrases(phrases: &[String], found: &mut Violations) {
    if found.at_most("banDetection.extraPhrases", phrases.len(), MAX_PHRASES) {
        for (index, phrase) in phrases.iter().enumerate() {
            let field = format!("banDetection.extraPhrases[{index}]");
            text(&field, phrase, &PHRASE_CHARACTERS, found);
        }
    }
}

fn rule(path: &str, rule: &ProviderErrorRule, found: &mut Violations) {
    found.within(format!("{path}.status"), rule.status, &STATUS);
    text(
        &format!("{path}.match"),
        &rule.text,
        &RULE_CHARACTERS,
        found,
    );
    if let Some(cooldown_ms) = rule.cooldown_ms {
        found.within(format!("{path}.cooldownMs"), cooldown_ms, &COOLDOWN_MS);
    }
    // These are ours to find; a text of an upstream cannot mean them.
    let internal = matches!(
        rule.reason,
        Reason::Local | Reason::ClientFault | Reason::RequestRejected
    );
    if internal {
        found.push(
            format!("{path}.reason"),
            "must be one of quota_exhausted, rate_limit_exceeded, model_capacity, server_error, \
             auth_error, not_found, credits, forbidden, unknown",
        );
    }
}

/// Blank text would be found in nearly every answer.
fn text(field: &str, text: &str, bounds: &RangeInclusive<usize>, found: &mut Violations) {
    let characters = text.chars().count();
    if text.trim().is_empty() || !bounds.contains(&characters) {
        found.push(
            field,
            format!(
                "must have {} to {} characters and not be blank, has {characters}",
                bounds.start(),
                bounds.end()
            ),
        );
    }
}
