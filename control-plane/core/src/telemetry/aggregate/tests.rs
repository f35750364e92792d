use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::number::Finite;
use crate::outcome::{LocalFault, Outcome, StreamFault, UpstreamError};
use crate::telemetry::fleet::Fleet;
use crate::telemetry::quota::QUOTA_MS;
use crate::telemetry::{QuotaWindow, Telemetry};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn combo() -> ComboName {
    ComboName::new("combo").unwrap()
}

fn provider() -> ProviderId {
    ProviderId::new("p").unwrap()
}

fn model() -> ModelId {
    ModelId::new("m").unwrap()
}

fn account(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn end(key: &str, verdict: Verdict, at: Timestamp) -> End {
    End {
        target: Some((combo(), key.to_owned())),
        provider: provider(),
        connection: account(key),
        model: model(),
        verdict,
        began_at: at,
        at,
        session: None,
    }
}

fn served(key: &str, at: Timestamp) -> Aggregate {
    Aggregate::of_end(end(key, Verdict::Served { ready_ms: 100 }, at))
}

fn failed(key: &str, at: Timestamp) -> Aggregate {
    Aggregate::of_end(end(key, Verdict::Failed, at))
}

fn broke(key: &str, at: Timestamp) -> Aggregate {
    Aggregate::of_end(end(key, Verdict::Broke, at))
}

fn bound(session: &str, key: &str, at: Timestamp) -> Aggregate {
    Aggregate::of_end(End {
        session: Some(session.to_owned()),
        ..end(key, Verdict::Served { ready_ms: 1 }, at)
    })
}

fn limit(limit: u32, at: Timestamp) -> Aggregate {
    Aggregate::of_tool_limit(provider(), limit, at)
}

fn load(plane: u64, key: &str, count: u32, at: Timestamp) -> Aggregate {
    let load = PlaneLoad {
        number: 1,
        at,
        connections: BTreeMap::from([(account(key), count)]),
    };
    Aggregate {
        planes: BTreeMap::from([(PlaneIncarnation(plane), load)]),
        ..Aggregate::default()
    }
}

fn fleet(parts: impl IntoIterator<Item = Aggregate>, now: Timestamp) -> Fleet {
    Fleet::of(parts, &Bounds::default(), now)
}

fn last_known_good(parts: Vec<Aggregate>) -> Option<ConnectionId> {
    fleet(parts, NOW).last_known_good(&combo())?.connection
}

#[test]
fn counts_of_replicas_are_summed() {
    let one = vec![served("a", NOW), failed("a", NOW), served("b", NOW)];
    let two = vec![
        served("a", NOW),
        Aggregate::of_end(end("b", Verdict::None, NOW)),
    ];
    let fleet = fleet(one.into_iter().chain(two), NOW);
    assert_eq!(fleet.target_requests(&combo(), "a"), Some(3));
    assert_eq!(fleet.target_requests(&combo(), "b"), Some(2));
    assert_eq!(fleet.target_requests(&combo(), "c"), None);
    assert_eq!(fleet.connection_requests(&account("a")), 3);
    let of_combo = fleet.of_combo(&combo(), &provider(), &model()).unwrap();
    assert_eq!(of_combo.requests, 5);
    assert!((of_combo.success_rate.unwrap() - 0.75).abs() < 1e-9);
    let of_a = fleet.of_connection(&account("a"), &model()).unwrap();
    assert_eq!(of_a.requests, 3);
    assert!((of_a.mean_latency_ms - 100.0).abs() < 1e-9);
}

#[test]
fn a_stream_that_breaks_is_a_failure_and_no_second_request() {
    let fleet = fleet([served("a", NOW), broke("a", NOW)], NOW);
    assert_eq!(fleet.target_requests(&combo(), "a"), Some(1));
    assert_eq!(fleet.connection_requests(&account("a")), 1);
    let of_combo = fleet.of_combo(&combo(), &provider(), &model()).unwrap();
    assert!((of_combo.success_rate.unwrap() - 0.5).abs() < 1e-9);
}

fn policy() -> crate::settings::ProviderPolicy {
    let provider =
        serde_json::json!({"id": "p", "protocol": "openai", "baseUrl": "https://x.example"});
    crate::settings::ProviderPolicy::resolve(
        &crate::settings::Settings::default(),
        &serde_json::from_value(provider).unwrap(),
        &crate::settings::Overrides::default(),
    )
}

#[test]
fn three_failures_in_a_row_wherever_they_were_heard_of_keep_auto_away() {
    let until = |parts: Vec<Aggregate>| fleet(parts, NOW).adaptation_until(&combo(), "a");
    let two = vec![failed("a", NOW.minus_ms(3)), failed("a", NOW.minus_ms(2))];
    assert_eq!(until(two.clone()), None);
    let three = [two, vec![failed("a", NOW.minus_ms(1))]].concat();
    assert_eq!(until(three.clone()), Some(NOW.minus_ms(1).plus_ms(300_000)));
    assert_eq!(until([three, vec![served("a", NOW)]].concat()), None);
}

#[rstest]
#[case::server_error(500, "boom", Verdict::Failed)]
#[case::rate_limit(429, "slow down", Verdict::Failed)]
#[case::credential(401, "who are you", Verdict::Failed)]
#[case::the_clients_own(422, "no such field", Verdict::None)]
#[case::too_many_tools(400, "'tools': maximum number of items is 100", Verdict::None)]
#[case::too_long(400, "maximum context length is 8192 tokens", Verdict::None)]
fn only_the_targets_own_failures_count(
    #[case] status: u16,
    #[case] body: &str,
    #[case] expected: Verdict,
) {
    let (provider, model) = (provider(), model());
    let policy = policy();
    let context = crate::classify::ClassifyContext::of(&provider, &policy, &model, NOW);
    let outcome = crate::outcome::Outcome::Response(crate::outcome::UpstreamError {
        status,
        body: format!(r#"{{"error":{{"message":"{body}"}}}}"#),
        ..crate::outcome::UpstreamError::default()
    });
    let classification = crate::classify::classify(&outcome, &context);
    assert_eq!(Verdict::of_failure(&classification), expected);
}

#[rstest]
#[case::it_broke_off(Outcome::Stream(StreamFault::Truncated), Some(Verdict::Broke))]
#[case::it_fell_silent(Outcome::Stream(StreamFault::IdleTimeout), Some(Verdict::Broke))]
#[case::it_took_too_long(Outcome::Stream(StreamFault::DeadlineExceeded), Some(Verdict::Broke))]
#[case::an_error_of_the_upstream(embedded("server_error", ""), Some(Verdict::Broke))]
#[case::an_error_that_says_nothing(embedded("", "whatever"), Some(Verdict::Broke))]
#[case::a_refusal_of_content(embedded("invalid_request_error", "content_policy_violation"), None)]
#[case::a_refusal_of_content_and_no_type(embedded("", "content_filter"), None)]
#[case::a_type_says_more(embedded("server_error", "content_filter"), Some(Verdict::Broke))]
#[case::a_request_that_is_wrong(embedded("invalid_request_error", ""), None)]
#[case::the_time_of_its_combo(Outcome::Local(LocalFault::TargetExpired), None)]
#[case::its_lease(Outcome::Local(LocalFault::LeaseConflict), None)]
#[case::its_client_left(Outcome::ClientAbort, None)]
fn what_is_nobodys_fault_is_not_held_against_a_target_that_had_served(
    #[case] outcome: Outcome,
    #[case] expected: Option<Verdict>,
) {
    let (provider, model) = (provider(), model());
    let policy = policy();
    let context = crate::classify::ClassifyContext::of(&provider, &policy, &model, NOW);
    let classification = crate::classify::classify(&outcome, &context);
    assert_eq!(Verdict::of_break(&classification), expected);
}

/// An error event in a stream.
fn embedded(kind: &str, code: &str) -> Outcome {
    Outcome::Response(UpstreamError {
        status: 200,
        body: format!(r#"{{"error":{{"message":"no","type":"{kind}","code":"{code}"}}}}"#),
        embedded: true,
        ..UpstreamError::default()
    })
}

#[test]
fn a_request_without_a_combo_counts_for_its_connection_only() {
    let fleet = fleet(
        [Aggregate::of_end(End {
            target: None,
            ..end("a", Verdict::Failed, NOW)
        })],
        NOW,
    );
    assert_eq!(fleet.connection_requests(&account("a")), 1);
    assert_eq!(fleet.of_combo(&combo(), &provider(), &model()), None);
}

#[rstest]
#[case::newest(vec![served("a", NOW.minus_ms(2)), served("b", NOW.minus_ms(1))], Some("b"))]
#[case::newest_whatever_the_order(vec![served("b", NOW.minus_ms(1)), served("a", NOW.minus_ms(2))], Some("b"))]
#[case::cleared_by_its_failure(vec![served("a", NOW.minus_ms(2)), failed("a", NOW.minus_ms(1))], None)]
#[case::cleared_by_a_replica_that_never_saw_it(vec![failed("a", NOW.minus_ms(1)), served("a", NOW.minus_ms(2))], None)]
#[case::cleared_by_a_broken_stream(vec![served("a", NOW.minus_ms(2)), broke("a", NOW.minus_ms(1))], None)]
#[case::not_cleared_by_others(vec![served("a", NOW.minus_ms(2)), failed("b", NOW.minus_ms(1))], Some("a"))]
#[case::serves_again(vec![failed("a", NOW.minus_ms(2)), served("a", NOW.minus_ms(1))], Some("a"))]
fn the_last_target_that_served_stands_until_it_fails(
    #[case] parts: Vec<Aggregate>,
    #[case] expected: Option<&str>,
) {
    assert_eq!(last_known_good(parts), expected.map(account));
}

#[test]
fn what_is_under_way_is_the_sum_of_the_newest_words_of_live_planes() {
    let parts = [
        load(1, "a", 7, NOW.minus_ms(2_000)),
        load(1, "a", 2, NOW.minus_ms(1_000)),
        load(2, "a", 3, NOW.minus_ms(LOAD_MS - 1)),
        load(3, "a", 100, NOW.minus_ms(LOAD_MS)),
    ];
    let fleet = |now| fleet(parts.clone(), now).in_flight(&account("a"));
    assert_eq!(fleet(NOW), 5);
    assert_eq!(fleet(NOW.plus_ms(LOAD_MS)), 0);
}

#[rstest]
#[case::heard_by_one((1, 7, NOW.minus_ms(9)), (2, 2, NOW), 2)]
#[case::heard_by_one_whose_clock_is_behind((1, 7, NOW), (2, 2, NOW.minus_ms(9)), 2)]
#[case::sent_again((2, 7, NOW.minus_ms(9)), (2, 2, NOW), 2)]
fn the_last_message_of_a_plane_tells_what_is_under_way(
    #[case] first: (u64, u32, Timestamp),
    #[case] last: (u64, u32, Timestamp),
    #[case] expected: u32,
) {
    let said = |(number, count, at)| {
        let mut part = load(1, "a", count, at);
        part.planes
            .values_mut()
            .for_each(|load| load.number = number);
        part
    };
    for parts in [[first, last], [last, first]] {
        let in_flight = fleet(parts.map(said), NOW).in_flight(&account("a"));
        assert_eq!(in_flight, expected);
    }
}

#[rstest]
#[case::lower_counts(vec![limit(128, NOW.minus_ms(9)), limit(100, NOW)], 100)]
#[case::higher_does_not(vec![limit(100, NOW.minus_ms(9)), limit(120, NOW)], 100)]
#[case::whatever_the_order(vec![limit(120, NOW), limit(100, NOW.minus_ms(9))], 100)]
#[case::until_it_lapses(vec![limit(100, NOW.minus_ms(TOOL_LIMIT_MS)), limit(120, NOW)], 120)]
fn a_tool_limit_falls_at_once_and_rises_after_a_day(
    #[case] parts: Vec<Aggregate>,
    #[case] expected: u32,
) {
    assert_eq!(fleet(parts, NOW).tool_limit(&provider()), Some(expected));
}

#[test]
fn a_conversation_follows_its_last_success_for_15_minutes() {
    let parts = || {
        vec![
            bound("s", "a", NOW.minus_ms(10)),
            bound("s", "b", NOW),
            Aggregate::of_end(End {
                session: Some("s".to_owned()),
                ..end("c", Verdict::Failed, NOW.plus_ms(1))
            }),
        ]
    };
    let connection = |at| fleet(parts(), at).session_connection("s");
    assert_eq!(connection(NOW.plus_ms(1)), Some(account("b")));
    assert_eq!(connection(NOW.plus_ms(SESSION_MS)), None);
}

#[test]
fn beyond_its_bound_the_oldest_conversations_of_a_combo_leave() {
    let bounds = Bounds {
        sessions_per_combo: 3,
        ..Bounds::default()
    };
    let mut sum = Aggregate::default();
    for age in 0..5 {
        let part = bound(&format!("s{age}"), "a", NOW.minus_ms(age));
        assert_eq!(sum.absorb(part, &bounds), Refused::default());
    }
    sum.prune(NOW, &bounds);
    let kept: Vec<_> = sum.combos[&combo()].sessions.keys().cloned().collect();
    assert_eq!(kept, ["s0", "s1", "s2"]);
}

#[rstest]
#[case(Kind::Combos)]
#[case(Kind::Targets)]
#[case(Kind::Tracks)]
#[case(Kind::Sessions)]
#[case(Kind::Connections)]
#[case(Kind::ToolLimits)]
#[case(Kind::Planes)]
fn every_kind_has_a_bound_that_is_counted(#[case] kind: Kind) {
    let bounds = Bounds {
        combos: 2,
        targets: 3,
        tracks: 4,
        sessions_per_combo: 500,
        sessions: 1,
        connections: 5,
        tool_limits: 2,
        planes: 2,
        plane_connections: 1,
    };
    let mut sum = Aggregate::default();
    let mut refused = 0;
    for number in 0..20_u64 {
        let name = format!("n{number}");
        let mut part = Aggregate::of_end(End {
            target: Some((ComboName::new(&name).unwrap(), name.clone())),
            connection: account(&name),
            session: Some(name.clone()),
            ..end("a", Verdict::Served { ready_ms: 1 }, NOW)
        });
        if kind != Kind::Combos {
            let past = std::mem::take(&mut part.combos).into_values();
            part.combos = past.map(|past| (combo(), past)).collect();
        }
        part.planes = load(number, &name, 1, NOW).planes;
        let limit = ToolLimit { limit: 1, at: NOW };
        part.tool_limits = BTreeMap::from([(ProviderId::new(&name).unwrap(), limit)]);
        let counted = sum.absorb(part, &bounds);
        refused += counted.iter().find(|it| it.0 == kind).map_or(0, |it| it.1);
        assert!(sum.count(kind) <= bounds.most(kind));
    }
    assert_eq!(sum.count(kind), bounds.most(kind));
    assert!(refused > 0);
    // What is there already goes on counting.
    let again = sum.clone();
    assert_eq!(sum.absorb(again, &bounds), Refused::default());
}

#[test]
fn what_is_too_old_leaves() {
    let mut sum = Aggregate::default();
    let quota = QuotaSnapshot {
        observed_at: NOW,
        ..QuotaSnapshot::default()
    };
    for part in [
        bound("s", "a", NOW),
        limit(1, NOW),
        load(1, "a", 1, NOW),
        Aggregate::of_quota(account("b"), QuotaSource::Headers, quota),
    ] {
        assert_eq!(sum.absorb(part, &Bounds::default()), Refused::default());
    }
    sum.prune(NOW, &Bounds::default());
    assert_eq!(sum.combos[&combo()].sessions.len(), 1);
    sum.prune(NOW.plus_ms(QUOTA_MS), &Bounds::default());
    assert_eq!(sum.count(Kind::Targets), 1, "counts are kept for longer");
    assert_eq!((sum.count(Kind::Sessions), sum.count(Kind::Tracks)), (0, 0));
    sum.prune(NOW.plus_ms(7 * 86_400_000), &Bounds::default());
    assert!(sum.is_empty(), "{sum:?}");
}

#[test]
fn moments_that_lie_ahead_are_taken_for_now() {
    let ahead = NOW.plus_ms(86_400_000);
    let quota = QuotaSnapshot {
        observed_at: ahead,
        ..QuotaSnapshot::default()
    };
    let mut sum = Aggregate::default();
    for part in [
        bound("s", "a", ahead),
        failed("b", ahead),
        limit(1, ahead),
        load(1, "a", 1, ahead),
        Aggregate::of_quota(account("b"), QuotaSource::Fetched, quota),
    ] {
        assert_eq!(sum.absorb(part, &Bounds::default()), Refused::default());
    }
    sum.end_at(NOW);
    let shown = format!("{sum:?}");
    assert!(!shown.contains(&ahead.0.to_string()), "{shown}");
    assert!(shown.contains(&NOW.0.to_string()));
}

/// What one of the sources tells of some windows.
fn quota(share: u64, windows: u32, at: Timestamp) -> (QuotaSource, QuotaSnapshot) {
    let window = |ends_in_ms| QuotaWindow {
        used: Finite::new(f64::from(u32::try_from(share).unwrap()) / 5_000.0).unwrap(),
        resets_at: Some(at.plus_ms(ends_in_ms)),
        observed_at: None,
    };
    let told = QuotaSnapshot {
        session: (windows == 1).then(|| window(1_000 * share)),
        weekly: (windows == 2).then(|| window(2_000 * share)),
        weekly_by_model: (windows == 3)
            .then(|| (model(), window(3_000 * share)))
            .into_iter()
            .collect(),
        used: (windows == 0).then_some(Finite::ONE),
        limit_reached: share.is_multiple_of(3),
        observed_at: at,
        ..QuotaSnapshot::default()
    };
    let source = if share.is_multiple_of(2) {
        QuotaSource::Headers
    } else {
        QuotaSource::Fetched
    };
    (source, told)
}

fn any_part() -> impl Strategy<Value = Aggregate> {
    (0_usize..3, 0_u8..3, 0_u64..5_000, any::<bool>(), 0_u32..4).prop_map(
        |(key, verdict, age, session, tools)| {
            let key = ["a", "b", "c"][key];
            let at = NOW.minus_ms(age * 1_000 + u64::from(tools));
            let verdict = match verdict {
                0 => Verdict::Served { ready_ms: age },
                1 => Verdict::Failed,
                _ => Verdict::None,
            };
            let mut part = Aggregate::of_end(End {
                session: session.then(|| "s".to_owned()),
                ..end(key, verdict, at)
            });
            part.planes = load(age % 2, key, tools, at).planes;
            part.tool_limits = limit(tools, at).tool_limits;
            if let Some(past) = part.connections.get_mut(&account(key)) {
                past.quotas = BTreeMap::from([quota(age, tools, at)]);
            }
            part
        },
    )
}

/// What replicas made of two parts each.
fn added_in_pairs(parts: Vec<Aggregate>) -> Vec<Aggregate> {
    let sum = |pair: &[Aggregate]| {
        let mut sum = Aggregate::default();
        for part in pair {
            let refused = sum.absorb(part.clone(), &Bounds::default());
            assert_eq!(refused, Refused::default());
        }
        sum
    };
    parts.chunks(2).map(sum).collect()
}

proptest! {
    #[test]
    fn parts_give_the_same_counts_and_records_in_any_order(
        parts in prop::collection::vec(any_part(), 1..10),
        rotation in 0_usize..10,
        pairs in any::<bool>(),
    ) {
        // Of two that say something at the same moment neither is newer.
        let mut moments: Vec<_> = parts.iter().map(|part| part.connections.values().next().unwrap().at).collect();
        moments.sort_unstable();
        moments.dedup();
        prop_assume!(moments.len() == parts.len());
        let mut rotated = parts.clone();
        rotated.rotate_left(rotation % parts.len());
        let rotated = if pairs { added_in_pairs(rotated) } else { rotated };
        let (one, two) = (fleet(parts, NOW), fleet(rotated, NOW));
        for key in ["a", "b", "c"] {
            prop_assert_eq!(one.target_requests(&combo(), key), two.target_requests(&combo(), key));
            prop_assert_eq!(one.in_flight(&account(key)), two.in_flight(&account(key)));
            prop_assert_eq!(one.quota(&account(key)), two.quota(&account(key)));
        }
        prop_assert_eq!(one.last_known_good(&combo()), two.last_known_good(&combo()));
        prop_assert_eq!(one.session_connection("s"), two.session_connection("s"));
        prop_assert_eq!(one.tool_limit(&provider()), two.tool_limit(&provider()));
    }
}
