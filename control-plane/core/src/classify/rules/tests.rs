//! Guards over the tables (`failure-state.md` §5.2) and what one more row does.

use rstest::rstest;
use serde_json::{Value, json};

use crate::classify::phrases::{Family, PHRASES, Pattern};
use crate::classify::restate::RESTATEMENTS;
use crate::classify::{Classification, ClassifyContext, Consequence, CooldownLength, classify};
use crate::daily_reset::DailyReset;
use crate::ids::ModelId;
use crate::outcome::{Outcome, UpstreamError};
use crate::settings::ProviderClass;
use crate::time::Timestamp;

use super::*;

/// The phrases of §3.6 and §3.7.
const ACCOUNT_PHRASES: &[Family] = &[
    Family::Deactivated,
    Family::OutOfCredits,
    Family::WalletEmpty,
    Family::OauthTokenInvalid,
    Family::LongPeriodQuota,
];

/// A gateway that reports a used-up quota as 403, taught by one row in each table.
const LARGER: Registry = Registry {
    restatements: &[
        Restatement {
            id: "newcomer-quota-as-forbidden",
            provider: "newcomer",
            from: &[403],
            to: 429,
            any: &["bolsa vacía"],
            none: &["sin permiso"],
            default_retry_ms: 90_000,
        },
        RESTATEMENTS[0],
    ],
    rules: &[RuleRow {
        id: "newcomer-quota",
        providers: &["newcomer"],
        statuses: &[429],
        condition: Condition::Text {
            any: &["bolsa vacía"],
            none: &["sin permiso"],
        },
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        length: RuleLength::OfStatus,
    }],
};

const RESTATEMENT_ONLY: Registry = Registry {
    rules: &[],
    ..LARGER
};

fn settings(value: Value) -> Settings {
    serde_json::from_value(value).unwrap()
}

fn judge(
    registry: Registry,
    settings: &Settings,
    provider: &str,
    status: u16,
    body: &str,
) -> Classification {
    let provider = ProviderId::new(provider).unwrap();
    let book = RuleBooks::with(registry, settings).of(&provider);
    let outcome = Outcome::Response(UpstreamError {
        status,
        body: body.to_owned(),
        ..UpstreamError::default()
    });
    let model = ModelId::new("m").unwrap();
    classify(
        &outcome,
        &ClassifyContext {
            provider: &provider,
            class: ProviderClass::Apikey,
            per_model_quota: false,
            renews_tokens: false,
            egress_bucketed: false,
            trust_hints: true,
            model: &model,
            base_cooldown_ms: 3_000,
            now: Timestamp(0),
            daily_reset: &DailyReset::default(),
            rules: &book,
        },
    )
}

fn words(pattern: &Pattern) -> Vec<&'static str> {
    match *pattern {
        Pattern::Words(words) => vec![words],
        Pattern::Then(first, second, _) | Pattern::Near(first, second, _) => vec![first, second],
        Pattern::All(words) => words.to_vec(),
    }
}

#[test]
fn no_marker_of_a_restatement_is_a_generic_phrase() {
    let phrases: Vec<&str> = PHRASES
        .iter()
        .filter(|(family, _)| ACCOUNT_PHRASES.contains(family))
        .flat_map(|(_, patterns)| patterns.iter().flat_map(words))
        .collect();
    assert!(phrases.len() > 40, "{}", phrases.len());
    for row in BUILT_IN.restatements {
        for marker in row.any.iter().chain(row.none) {
            for words in &phrases {
                assert!(
                    !marker.contains(words) && !words.contains(marker),
                    "{}: {marker} and {words}",
                    row.id
                );
            }
        }
    }
}

#[test]
fn every_restated_failure_leaves_the_account_alive() {
    for row in BUILT_IN.restatements {
        for from in row.from {
            for marker in row.any {
                let judged = judge(BUILT_IN, &Settings::default(), row.provider, *from, marker);
                assert_eq!(judged.status, row.to, "{}", row.id);
                assert!(
                    !matches!(judged.consequence, Consequence::EndConnection(_)),
                    "{}: {judged:?}",
                    row.id
                );
                assert_eq!(judged.client_wait_ms(), Some(row.default_retry_ms));
            }
        }
    }
}

/// Every text rule is silent on text that its provider may not read, and speaks with the permission.
#[test]
fn a_text_rule_needs_the_full_text() {
    let mut seen = 0;
    for row in BUILT_IN.rules {
        let (Condition::Text { any, .. }, [first, ..]) = (row.condition, row.statuses) else {
            continue;
        };
        for provider in row.providers {
            for text in any {
                let body = format!("sorry: {text}, resets in 3 hours");
                let nobody = settings(json!({"errorRules": {
                    "fullTextProviders": [], "scopeProviders": [provider],
                }}));
                let without = Registry {
                    restatements: &[],
                    rules: &[],
                };
                let plain = Registry {
                    restatements: &[],
                    ..BUILT_IN
                };
                let bytes = |judged: &Classification| serde_json::to_vec(judged).unwrap();
                let silent = judge(plain, &nobody, provider, *first, &body);
                let none = judge(without, &nobody, provider, *first, &body);
                assert_eq!(bytes(&silent), bytes(&none), "{}", row.id);
                let listed = settings(json!({"errorRules": {
                    "fullTextProviders": [provider], "scopeProviders": [provider],
                }}));
                let exempt = settings(json!({"providerErrorRules": {
                    *provider: [{"status": 418, "match": "teapot", "scope": "model"}],
                }}));
                for permitted in [listed, exempt] {
                    let judged = judge(plain, &permitted, provider, *first, &body);
                    let spoke = judged.origin.as_ref().map(|origin| origin.rule.as_str());
                    assert_eq!(spoke, Some(row.id), "{provider}");
                }
                seen += 1;
            }
        }
    }
    assert!(seen >= 8, "{seen}");
}

#[test]
fn ids_are_unique_and_valid() {
    let mut ids: Vec<&str> = BUILT_IN.rules.iter().map(|row| row.id).collect();
    ids.extend(BUILT_IN.restatements.iter().map(|row| row.id));
    for id in &ids {
        assert!(RuleId::new(id).is_ok(), "{id}");
        assert!(!id.starts_with("operator"), "{id}");
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    let longest = ProviderId::new("p".repeat(crate::ids::MAX_NAME_BYTES)).unwrap();
    assert!(RuleId::new(format!("operator:{longest}:49")).is_ok());
}

#[test]
fn tables_are_written_in_folded_text() {
    for row in BUILT_IN.rules {
        if let Condition::Text { any, none } = row.condition {
            for text in any.iter().chain(none) {
                assert_eq!(texts::fold(text), **text, "{}", row.id);
            }
        }
    }
}

/// A row in the restatement table alone already makes the client's answer and the cooldown right.
#[test]
fn a_new_gateway_needs_one_row() {
    let plain = Settings::default();
    let before = judge(BUILT_IN, &plain, "newcomer", 403, "Bolsa Vacía");
    assert_eq!((before.status, before.client_wait_ms()), (403, None));
    let after = judge(RESTATEMENT_ONLY, &plain, "newcomer", 403, "Bolsa Vacía");
    assert_eq!((after.status, after.client_wait_ms()), (429, Some(90_000)));
    assert_eq!(after.reason, Reason::RateLimitExceeded);
    assert_eq!(
        after.consequence,
        Consequence::CoolConnection(CooldownLength::Ladder)
    );
    assert_eq!(
        after.origin,
        Some(Origin {
            rule: RuleId::new("newcomer-quota-as-forbidden").unwrap(),
            original_status: Some(403),
        })
    );
    let denied = "bolsa vacía, sin permiso";
    assert_eq!(
        judge(RESTATEMENT_ONLY, &plain, "newcomer", 403, denied).status,
        403
    );
    for other in ["agentrouter", "acme"] {
        assert_eq!(
            judge(LARGER, &plain, other, 403, "bolsa vacía"),
            judge(BUILT_IN, &plain, other, 403, "bolsa vacía"),
        );
    }
}

/// A row in the table of rules says what it is, and a setting lets it act.
#[test]
fn a_row_in_the_table_of_rules_names_reason_and_scope() {
    let lists = settings(json!({"errorRules": {
        "fullTextProviders": ["newcomer"], "scopeProviders": ["newcomer"],
    }}));
    let judged = judge(LARGER, &lists, "newcomer", 403, "bolsa vacía");
    assert!(judged.is_connection_quota());
    assert_eq!(judged.status, 429);
    assert_eq!(
        judged.origin,
        Some(Origin {
            rule: RuleId::new("newcomer-quota").unwrap(),
            original_status: Some(403),
        })
    );
}

#[test]
fn providers_without_a_rule_share_one_book() {
    let settings = settings(json!({"providerErrorRules": {
        "mine": [{"status": 418, "match": "teapot", "scope": "model"}],
    }}));
    let books = RuleBooks::new(&settings);
    let of = |provider: &str| books.of(&ProviderId::new(provider).unwrap());
    assert!(Arc::ptr_eq(&of("one"), &of("two")));
    assert!(!Arc::ptr_eq(&of("one"), &of("mine")));
    assert_eq!(of("mine"), of("mine"));
    assert_ne!(of("one"), of("mine"));
}

#[rstest]
#[case::full("resets in 5 days", Some(432_000_000))]
#[case::second_place("resets in soon, resets in 2 hours", Some(7_200_000))]
#[case::none("resets tomorrow", None)]
#[case::cut("resets in 5", None)]
fn a_stated_reset_is_read(#[case] text: &str, #[case] ms: Option<u64>) {
    assert_eq!(stated_reset(text), ms);
}
