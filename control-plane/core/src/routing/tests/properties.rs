//! What holds whatever the configuration, the outcomes and the data planes say.

use proptest::prelude::*;

use super::*;
use crate::classify::{
    Consequence, CooldownLength, HintSource, LockLength, RetryHint, TerminalKind,
};
use crate::settings::RuleScope;

fn reasons() -> impl Strategy<Value = Reason> {
    prop::sample::select(vec![
        Reason::QuotaExhausted,
        Reason::RateLimitExceeded,
        Reason::ModelCapacity,
        Reason::ServerError,
        Reason::AuthError,
        Reason::NotFound,
        Reason::Credits,
        Reason::Forbidden,
        Reason::RequestRejected,
        Reason::ClientFault,
        Reason::Local,
        Reason::Unknown,
    ])
}

fn consequences() -> impl Strategy<Value = Consequence> {
    prop_oneof![
        Just(Consequence::Nothing),
        Just(Consequence::RecordError),
        Just(Consequence::CoolConnection(CooldownLength::Ladder)),
        any::<u64>().prop_map(|ms| Consequence::CoolConnection(CooldownLength::Hint(ms))),
        any::<u64>().prop_map(|ms| Consequence::CoolConnection(CooldownLength::Flat(ms))),
        Just(Consequence::EndConnection(TerminalKind::Banned)),
        prop::option::of(any::<u64>()).prop_map(Consequence::HoldProvider),
        any::<u64>().prop_map(|ms| Consequence::LockModel(LockLength::Exact {
            ms,
            authoritative: true
        })),
    ]
}

prop_compose! {
    fn classifications()(
        status in prop_oneof![any::<u16>(), prop::sample::select(vec![
            400, 401, 403, 404, 408, 413, 429, 499, 500, 502, 503, 504,
        ])],
        reason in reasons(),
        consequence in consequences(),
        flags in any::<[bool; 5]>(),
        hint in prop::option::of(any::<u64>()),
        advertised in prop::option::of(any::<u64>()),
        scope in prop::sample::select(vec![
            None,
            Some(RuleScope::Model),
            Some(RuleScope::Connection),
            Some(RuleScope::Provider),
        ]),
    ) -> Classification {
        let [success, account_fallback, counts_for_breaker, network, request_scoped] = flags;
        Classification {
            status,
            reason,
            success,
            account_fallback,
            consequence,
            counts_for_breaker,
            network,
            request_scoped,
            hint: hint.map(|wait_ms| RetryHint { wait_ms, source: HintSource::Header }),
            advertised_ms: advertised,
            scope,
            origin: None,
            spent_model: None,
            over_budget: false,
        }
    }
}

fn world(cooling: bool) -> World {
    let world = World::combo(
        &["p1/k1", "p1/k2", "p2/k3", "p3/k4"],
        &["p1/m1", "p2/k3/m1", "p1/m2", "p3/m3"],
        json!({"maxRetries": 2, "maxSetRetries": 2}),
        json!({}),
    );
    if cooling {
        world
    } else {
        world.without_cooling()
    }
}

prop_compose! {
    /// Attempts as no honest data plane would tell them.
    fn hostile_attempts()(
        attempts in prop::collection::vec(
            (classifications(), any::<u64>(), 0_u32..4, 0_u32..6, 0_usize..5, any::<bool>()),
            0..40,
        ),
        waits in prop_oneof![0_u32..7, any::<u32>()],
        waited_ms in any::<u64>(),
        wild in any::<bool>(),
        order in prop::collection::vec(0_u32..6, 0..6),
        elsewhere in prop_oneof![Just(0), 0_u32..40, any::<u32>()],
    ) -> AttemptsSoFar {
        let connections = ["k1", "k2", "k3", "k4", "gone"];
        let providers = ["p1", "p1", "p2", "p3", "nobody"];
        let attempts = attempts
            .into_iter()
            .enumerate()
            .map(|(index, (classification, failed_at, pass, target, account, probe))| PriorAttempt {
                attempt: Attempt {
                    id: AttemptId {
                        plane: PlaneIncarnation(1),
                        number: u64::try_from(index).unwrap(),
                    },
                    provider: ProviderId::new(providers[account]).unwrap(),
                    connection: ConnectionId::new(connections[account]).unwrap(),
                    model: ModelId::new("m1").unwrap(),
                    decided_on: Version::default(),
                    epoch: Version::default(),
                    credential_version: failed_at,
                    egress: None,
                    probe,
                    synthetic: false,
                },
                classification,
                failed_at: Timestamp(failed_at),
                pass: if wild { pass.wrapping_mul(u32::MAX / 2) } else { pass },
                target: if wild { target.wrapping_mul(u32::MAX / 3) } else { target },
            })
            .collect();
        AttemptsSoFar { attempts, waits, waited_ms, order, elsewhere, ..AttemptsSoFar::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_within_its_limits(
        script in prop::collection::vec(classifications(), 1..12),
        cooling in any::<bool>(),
        random in any::<u64>(),
    ) {
        let mut world = world(cooling);
        world.random = random;
        let (mut attempts, mut waits, mut ended) = (0_usize, 0_u32, false);
        for _ in 0..MAX_STEPS {
            match world.decide() {
                Decision::Dispatch(dispatch) => {
                    let classification = script[attempts % script.len()].clone();
                    attempts += 1;
                    let failed = prior(&dispatch, classification, world.now, attempts);
                    world.so_far.attempts.push(failed);
                }
                Decision::Wait(wait) => {
                    prop_assert!(wait.wait_ms > 0 && wait.wait_ms <= 300_000);
                    world.now = world.now.plus_ms(wait.wait_ms);
                    if wait.kind == WaitKind::Cooldown {
                        waits += 1;
                        world.so_far.waits += 1;
                        world.so_far.waited_ms += wait.wait_ms;
                    }
                }
                Decision::Reject(rejection) => {
                    prop_assert!((400..=599).contains(&rejection.status));
                    ended = true;
                    break;
                }
                other @ (Decision::TakeTurn(_) | Decision::ReadPin(_) | Decision::Plan(_)) => {
                    prop_assert!(false, "neither sends nor ends: {other:?}");
                }
            }
        }
        prop_assert!(ended, "attempts {attempts}, waits {waits}");
        prop_assert!(attempts <= 30 && waits <= 5);
        prop_assert!(world.so_far.waited_ms <= 300_000);
    }

    #[test]
    fn no_history_makes_a_decision_panic_or_pick_what_is_not_there(
        so_far in hostile_attempts(),
        cooling in any::<bool>(),
        now in any::<u64>(),
        random in any::<u64>(),
    ) {
        let mut world = world(cooling);
        world.so_far = so_far;
        world.now = Timestamp(now);
        world.random = random;
        let decision = world.decide();
        prop_assert_eq!(&decision, &world.decide());
        prop_assert_eq!(&world.with_input(explain).decision, &decision);
        match decision {
            Decision::Dispatch(dispatch) => {
                let connection = world.config.connection(&dispatch.connection).unwrap();
                prop_assert_eq!(&connection.provider, &dispatch.provider);
                prop_assert!(world.so_far.attempts.len() < 30);
            }
            Decision::Wait(wait) => prop_assert!(wait.wait_ms <= 300_000),
            Decision::Reject(rejection) => {
                prop_assert!((400..=599).contains(&rejection.status));
                prop_assert!(rejection.excluded.len() <= MAX_EXCLUSIONS);
            }
            other @ (Decision::TakeTurn(_) | Decision::ReadPin(_) | Decision::Plan(_)) => {
                    prop_assert!(false, "neither sends nor ends: {other:?}");
                }
        }
    }
}

/// Strategies that order targets.
const ORDERS: [crate::config::Strategy; 17] = {
    use crate::config::Strategy as S;
    [
        S::Priority,
        S::Weighted,
        S::RoundRobin,
        S::ContextRelay,
        S::FillFirst,
        S::P2c,
        S::Random,
        S::LeastUsed,
        S::CostOptimized,
        S::ResetAware,
        S::ResetWindow,
        S::Headroom,
        S::StrictRandom,
        S::Auto,
        S::Lkgp,
        S::ContextOptimized,
        S::CacheOptimized,
    ]
};

/// What may stand in the way of a target.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    None,
    Cooling,
    NoCredential,
    OpenBreaker,
    Blind,
    Limited,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    // A request whose every attempt fails in a way that rules out nothing else is sent to each eligible target exactly
    // once, and to no excluded one, in the order that an explanation shows.
    #[test]
    fn every_eligible_target_is_tried_once_and_no_other(
        strategy in prop::sample::select(ORDERS.to_vec()),
        obstacles in prop::collection::vec(
            prop::sample::select(vec![
                Obstacle::None,
                Obstacle::None,
                Obstacle::Cooling,
                Obstacle::NoCredential,
                Obstacle::OpenBreaker,
                Obstacle::Blind,
                Obstacle::Limited,
            ]),
            1..8,
        ),
        weights in prop::collection::vec(0_u32..3, 8),
        random in any::<u64>(),
    ) {
        let names: Vec<(String, String)> = (0..obstacles.len())
            .map(|index| (format!("p{index}/k{index}"), format!("p{index}/k{index}/m{index}")))
            .collect();
        let connections: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
        let steps: Vec<&str> = names.iter().map(|(_, step)| step.as_str()).collect();
        let mut world = World::combo(&connections, &steps, json!({"maxRetries": 0}), no_waits());
        let mut document = Document::clone(&world.config.document);
        document.combos[0].strategy = strategy;
        world.config = Config::build(document, 1, &Overrides::default()).unwrap();
        world.counters = Counters::of(&world.config, None, random);
        world.random = random;
        world.facts.vision = true;
        world.facts.tools = 10;
        let mut rows = Vec::new();
        for (index, obstacle) in obstacles.iter().enumerate() {
            world.change_targets(|targets| targets[index].weight = weights[index].into());
            match obstacle {
                Obstacle::None => {}
                Obstacle::Cooling => world
                    .connection_state(&format!("k{index}"), cooling(60_000, Reason::ServerError)),
                Obstacle::NoCredential => {
                    let connection = ConnectionId::new(format!("k{index}")).unwrap();
                    world.without_credential.insert(connection);
                }
                Obstacle::OpenBreaker => world.open_breaker(&format!("p{index}"), 60_000),
                Obstacle::Blind => rows.push((
                    format!("p{index}/m{index}"),
                    ModelInfo { vision: Some(false), ..ModelInfo::default() },
                )),
                Obstacle::Limited => {
                    let provider = ProviderId::new(format!("p{index}")).unwrap();
                    world.telemetry.tool_limits.insert(provider, 5);
                }
            }
        }
        let rows: Vec<(&str, ModelInfo)> =
            rows.iter().map(|(name, info)| (name.as_str(), info.clone())).collect();
        world.catalogue(&rows);

        if let Decision::Dispatch(first) = world.decide() {
            prop_assert!(world.with_input(explain).targets.iter().any(|target| target.chosen));
            // What the request carries along from here on, so that nobody's turn comes in between.
            world.so_far.order = first.order;
        }
        let explained = world.with_input(explain);
        let eligible: Vec<String> = explained
            .targets
            .iter()
            .filter(|target| target.exclusions.is_empty())
            .map(|target| {
                let connection = target.connection.as_ref().unwrap();
                format!("{}/{connection}/{}", target.provider, target.model)
            })
            .collect();
        if !world.so_far.order.is_empty() {
            prop_assert_eq!(&explained.decision, &world.decide());
        }
        let mut tried = Vec::new();
        loop {
            match world.decide() {
                Decision::Dispatch(dispatch) => {
                    tried.push(format!(
                        "{}/{}/{}",
                        dispatch.provider, dispatch.connection, dispatch.model
                    ));
                    let unsupported = r#"{"error":{"message":"unsupported model"}}"#;
                    world.fail(&dispatch, &upstream_error(400, unsupported, None));
                }
                Decision::Reject(_) => break,
                other @ (Decision::Wait(_) | Decision::TakeTurn(_) | Decision::ReadPin(_) | Decision::Plan(_)) => {
                    prop_assert!(false, "unexpected {other:?}");
                }
            }
        }
        let once: BTreeSet<&String> = tried.iter().collect();
        prop_assert_eq!(once.len(), tried.len());
        prop_assert_eq!(tried, eligible);
    }
}
