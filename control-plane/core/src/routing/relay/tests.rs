//! `routing.md` §8.4.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::config::{Config, Document, Protocol};
use crate::routing::resolve;
use crate::settings::Overrides;
use crate::telemetry::QuotaWindow;

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn config(combo: Value) -> Config {
    let provider = |id: &str| {
        json!({"id": id, "protocol": "openai", "baseUrl": "https://a.example/v1",
            "models": ["m", "n"]})
    };
    let document: Document = serde_json::from_value(json!({
        "providers": [provider("codex"), provider("glm")],
        "combos": [
            {"name": "talk", "strategy": "context-relay", "steps": ["glm/m", "codex/m"], "config": combo},
            {"name": "plain", "steps": ["codex/m"]},
        ],
    }))
    .unwrap();
    Config::build(document, 1, &Overrides::default()).unwrap()
}

fn window(used: f64, resets_in_ms: Option<u64>) -> QuotaWindow {
    QuotaWindow {
        used: Finite::new(used).unwrap(),
        resets_at: resets_in_ms.map(|ms| NOW.plus_ms(ms)),
        observed_at: None,
    }
}

fn quota(used: f64) -> QuotaSnapshot {
    QuotaSnapshot {
        session: Some(window(used, None)),
        observed_at: NOW,
        ..QuotaSnapshot::default()
    }
}

fn asked(
    config: &Config,
    combo: &str,
    provider: &str,
    quota: Option<&QuotaSnapshot>,
) -> Result<Terms, NoHandoff> {
    let served = Served {
        provider: &ProviderId::new(provider).unwrap(),
        model: &ModelId::new("m").unwrap(),
        quota,
    };
    wanted(&resolve(config, combo).unwrap(), served, NOW)
}

#[test]
fn vector_routing_v_cr1() {
    let found = asked(&config(json!({})), "talk", "codex", Some(&quota(0.84)));
    assert_eq!(found, Err(NoHandoff::BelowThreshold));
}

#[test]
fn vector_routing_v_cr2() {
    let terms = asked(&config(json!({})), "talk", "codex", Some(&quota(0.90))).unwrap();
    assert_eq!(terms.clone().unless(Standing::Nothing), Ok(terms.clone()));
    assert_eq!(
        terms.clone().unless(Standing::Running),
        Err(NoHandoff::Running)
    );
    assert_eq!(terms.unless(Standing::Active), Err(NoHandoff::Active));
}

#[test]
fn vector_routing_v_cr3() {
    let found = asked(&config(json!({})), "talk", "codex", Some(&quota(0.95)));
    assert_eq!(found, Err(NoHandoff::TooLate));
}

#[test]
fn vector_routing_v_cr4() {
    let config = config(json!({"handoffProviders": ["codex", "glm"]}));
    let found = asked(&config, "talk", "glm", Some(&quota(0.90)));
    assert_eq!(found, Err(NoHandoff::OtherProvider));
}

#[rstest]
#[case::default_threshold_itself(json!({}), "talk", Some(0.85), None)]
#[case::a_threshold_that_is_set(json!({"handoffThreshold": 0.5}), "talk", Some(0.5), None)]
#[case::just_below(json!({"handoffThreshold": 0.5}), "talk", Some(0.49), Some(NoHandoff::BelowThreshold))]
#[case::switched_off_by_threshold(json!({"handoffThreshold": 1}), "talk", Some(0.94), Some(NoHandoff::BelowThreshold))]
#[case::switched_off_by_list(json!({"handoffProviders": []}), "talk", Some(0.9), Some(NoHandoff::OtherProvider))]
#[case::used_up(json!({}), "talk", Some(1.0), Some(NoHandoff::TooLate))]
#[case::nothing_known(json!({}), "talk", None, Some(NoHandoff::QuotaUnknown))]
#[case::another_strategy(json!({}), "plain", Some(0.9), Some(NoHandoff::OtherStrategy))]
#[case::no_combo(json!({}), "codex/m", Some(0.9), Some(NoHandoff::OtherStrategy))]
fn a_note_is_wanted_or_not(
    #[case] combo: Value,
    #[case] name: &str,
    #[case] used: Option<f64>,
    #[case] why_not: Option<NoHandoff>,
) {
    let found = asked(&config(combo), name, "codex", used.map(quota).as_ref());
    assert_eq!(found.err(), why_not);
}

#[test]
fn the_fullest_window_that_still_runs_counts_and_the_earliest_end_is_the_notes() {
    let known = |session: QuotaWindow, weekly: QuotaWindow| QuotaSnapshot {
        session: Some(session),
        weekly: Some(weekly),
        ..quota(0.0)
    };
    let config = config(json!({}));
    let expiry = |quota: &QuotaSnapshot| {
        let terms = asked(&config, "talk", "codex", Some(quota));
        terms.map(|terms| terms.expires_at.ms_since(NOW))
    };
    let both = known(window(0.2, Some(600_000)), window(0.9, Some(900_000)));
    assert_eq!(expiry(&both), Ok(600_000));
    let shortest = known(window(0.9, Some(LEAST_LIFE_MS)), window(0.2, None));
    assert_eq!(expiry(&shortest), Ok(LEAST_LIFE_MS));
    let too_short = known(window(0.9, Some(LEAST_LIFE_MS - 1)), window(0.2, None));
    assert_eq!(expiry(&too_short), Err(NoHandoff::TooLate));
    let begun_anew = known(window(0.9, Some(0)), window(0.2, Some(90_000)));
    assert_eq!(expiry(&begun_anew), Err(NoHandoff::BelowThreshold));
    assert_eq!(expiry(&quota(0.9)), Ok(5 * 3_600_000));
    let month = QuotaSnapshot {
        monthly: Some(window(0.9, Some(20 * 86_400_000))),
        observed_at: NOW,
        ..QuotaSnapshot::default()
    };
    assert_eq!(expiry(&month), Ok(MAX_LIFE_MS));
}

#[rstest]
#[case::of_a_minute(Some(60_000), Err(NoHandoff::QuotaUnknown))]
#[case::within_the_hour(Some(3_599_999), Err(NoHandoff::QuotaUnknown))]
#[case::of_hours(Some(3_600_000), Ok(3_600_000))]
#[case::without_an_end(None, Ok(5 * 3_600_000))]
fn a_window_without_a_name_counts_when_it_lasts(
    #[case] resets_in_ms: Option<u64>,
    #[case] expected: Result<u64, NoHandoff>,
) {
    let unnamed = window(0.9, resets_in_ms);
    let told = QuotaSnapshot {
        used: Some(unnamed.used),
        resets_at: unnamed.resets_at,
        observed_at: NOW,
        ..QuotaSnapshot::default()
    };
    let terms = asked(&config(json!({})), "talk", "codex", Some(&told));
    assert_eq!(terms.map(|terms| terms.expires_at.ms_since(NOW)), expected);
    let named = QuotaSnapshot {
        session: Some(window(0.2, None)),
        ..told
    };
    let terms = asked(&config(json!({})), "talk", "codex", Some(&named));
    assert_eq!(terms, Err(NoHandoff::BelowThreshold));
}

#[test]
fn terms_are_what_the_combo_says() {
    let set = json!({"handoffModel": "codex/n", "maxMessagesForSummary": 7});
    let terms = asked(&config(set), "talk", "codex", Some(&quota(0.9))).unwrap();
    assert_eq!(
        (terms.model.as_deref(), terms.max_messages),
        (Some("codex/n"), 7)
    );
    let terms = asked(&config(json!({})), "talk", "codex", Some(&quota(0.9))).unwrap();
    assert_eq!((terms.model, terms.max_messages), (None, 30));
}

#[test]
fn the_step_that_served_sums_up_unless_a_model_is_named() {
    let config = config(json!({}));
    let route = resolve(&config, "talk").unwrap();
    let key = &route.targets[1].key;
    let facts = RequestFacts {
        cache_key: Some("k".to_owned()),
        tools: 3,
        forced_connection: Some(ConnectionId::new("a").unwrap()),
        tags: vec!["eu".to_owned()],
        budget: Some(Finite::ONE),
        ..RequestFacts::new("combo/talk", Protocol::Openai)
    };
    let mut terms = asked(&config, "talk", "codex", Some(&quota(0.9))).unwrap();
    let summary = summary_facts(&facts, &route, &terms, key, 9);
    assert_eq!(
        (summary.model.as_str(), summary.member),
        ("combo/talk", Some(1))
    );
    assert_eq!(summary.estimated_tokens, Some(3));
    assert_eq!((summary.tools, summary.cache_key), (0, None));
    assert_eq!(
        (&summary.tags, summary.budget, &summary.forced_connection),
        (&facts.tags, facts.budget, &facts.forced_connection)
    );
    terms.model = Some("codex/n".to_owned());
    let summary = summary_facts(&facts, &route, &terms, key, 9);
    assert_eq!((summary.model.as_str(), summary.member), ("codex/n", None));
    assert_eq!(summary.forced_connection, None);
}

#[test]
fn only_other_connections_are_told() {
    let (a, b) = (
        ConnectionId::new("a").unwrap(),
        ConnectionId::new("b").unwrap(),
    );
    assert!(is_told(&a, &b));
    assert!(!is_told(&a, &a));
}

#[test]
fn equal_names_of_two_clients_are_two_sessions() {
    let session = |name: &'static str| {
        SessionKey::of_headers(|header| (header == "x-session-id").then_some(name.as_bytes()))
    };
    let (a, b) = (KeyId::new("a").unwrap(), KeyId::new("b").unwrap());
    let key = session("one").unwrap();
    let digest = SessionDigest::of(&a, &key);
    assert_eq!(digest, SessionDigest::of(&a, &session("one").unwrap()));
    assert_ne!(digest, SessionDigest::of(&b, &key));
    assert_ne!(digest, SessionDigest::of(&a, &session("two").unwrap()));
}

#[test]
fn a_transcript_is_what_was_said_last() {
    let turns = [
        r#"{"role": "system", "content": "be kind"}"#,
        r#"{"role": "user", "content": "zero"}"#,
        r#"{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url"}]}"#,
        r#"{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}"#,
        r#"{"role": "tool", "content": "two"}"#,
        r#"{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "three"}]}]}"#,
        r#"{"role": "assistant", "content": [{"type": "tool_use", "name": "g", "input": {"a": 1}}]}"#,
        r#"{"role": "user"}"#,
        "7",
    ];
    let expected = "[user] one\n\n[assistant] (f: {})\n\n[tool] two\n\n[user] three\n\n[assistant] (g: {\"a\":1})\n\n";
    assert_eq!(transcript(&turns, 5).as_deref(), Some(expected));
    assert!(transcript(&turns, 0).is_some_and(|text| text == expected));
    let responses = [
        r#"{"type": "function_call", "name": "h", "arguments": "{\"b\":2}"}"#,
        r#"{"type": "function_call_output", "output": "four"}"#,
        r#"{"type": "reasoning", "summary": []}"#,
    ];
    let expected = "[assistant] (h: {\"b\":2})\n\n[tool] four\n\n";
    assert_eq!(transcript(&responses, 30).as_deref(), Some(expected));
    assert_eq!(transcript(&[turns[0]], 30), None);
}

#[test]
fn a_transcript_is_bounded_in_messages_and_tokens() {
    let turn = |text: &str| json!({"role": "user", "content": text}).to_string();
    let many: Vec<String> = (0..200).map(|number| turn(&number.to_string())).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (asked, kept) in [(30, 30), (1_000, 100)] {
        let text = transcript(&many, asked).unwrap();
        assert_eq!(text.matches("[user]").count(), kept);
        assert!(text.ends_with("[user] 199\n\n"));
    }
    let most = MAX_TRANSCRIPT_TOKENS * 4;
    let long = turn(&"ü".repeat(most));
    let alone = transcript(&[&turn("before"), &long], 30).unwrap();
    assert!(
        alone.len() <= most && alone.len() > most - 2,
        "{}",
        alone.len()
    );
    let half = turn(&"x".repeat(most / 2));
    let two = transcript(&[&half, &turn("a"), &half], 30).unwrap();
    assert!(two.starts_with("[user] a") && two.len() <= most);
}

#[rstest]
#[case::plain(r#"{"summary": "s", "progress": "p", "decisions": ["d"], "entities": ["e"]}"#)]
#[case::fenced(
    "Here it is:\n```json\n{\"summary\": \" s \", \"progress\": [\"p\"], \"decisions\": \"d\", \"entities\": [\"e\", 7, \" \"]}\n``` {}"
)]
#[case::after_junk(r#"{not json} {"other": 1} {"summary": "s", "progress": "p", "decisions": ["d"], "entities": ["e"]} tail"#)]
fn a_note_is_found_in_an_answer(#[case] answer: &str) {
    let note = Note::read(answer).unwrap();
    assert_eq!((note.summary.as_str(), note.progress.as_str()), ("s", "p"));
    assert_eq!(
        (note.decisions.as_slice(), note.entities.as_slice()),
        (["d".to_owned()].as_slice(), ["e".to_owned()].as_slice())
    );
}

#[rstest]
#[case::no_object("I cannot do that")]
#[case::no_summary(r#"{"progress": "p"}"#)]
#[case::blank(r#"{"summary": "  "}"#)]
#[case::another_kind(r#"{"summary": 7}"#)]
#[case::cut_off(r#"{"summary": "s"#)]
#[case::empty("")]
fn an_answer_without_a_summary_is_no_note(#[case] answer: &str) {
    assert_eq!(Note::read(answer), None);
}

#[test]
fn a_note_is_within_its_bounds() {
    let long = "ü".repeat(5_000);
    let answer = json!({"summary": long, "progress": long,
        "decisions": vec![&long; 20], "entities": vec![&long; 20]});
    let note = Note::read(&answer.to_string()).unwrap();
    assert_eq!(note.summary.chars().count(), MAX_SUMMARY_CHARACTERS);
    assert_eq!(note.progress.chars().count(), MAX_PROGRESS_CHARACTERS);
    assert_eq!(
        (note.decisions.len(), note.entities.len()),
        (MAX_DECISIONS, MAX_ENTITIES)
    );
    let entries = note.decisions.iter().chain(&note.entities);
    assert!(
        entries
            .map(|entry| entry.chars().count())
            .all(|length| length == MAX_ENTRY_CHARACTERS)
    );
    assert_eq!(note.clone().bounded(), Some(note));
}

#[test]
fn a_note_is_told_without_what_it_has_not() {
    let mut note = Note::read(r#"{"summary": "s"}"#).unwrap();
    assert!(note.told().ends_with("Summary: s"));
    note.decisions = vec!["d".to_owned()];
    note.entities = vec!["e".to_owned(), "f".to_owned()];
    assert!(
        note.told()
            .ends_with("Summary: s\n\nDecisions:\n- d\n\nNames:\n- e\n- f")
    );
}

proptest! {
    #[test]
    fn nothing_that_is_answered_or_said_panics(text in "\\PC*", turns in prop::collection::vec("\\PC{0,40}", 0..8)) {
        let turns: Vec<&str> = turns.iter().map(String::as_str).collect();
        let _read = (Note::read(&text), transcript(&turns, 30));
    }
}
