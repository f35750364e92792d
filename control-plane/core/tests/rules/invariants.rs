//! What holds for any input: any outcomes, in any order, any number of times.

use proptest::prelude::*;
use tidegate_core::breaker::{BreakerPolicy, BreakerStatus, Phase};
use tidegate_core::classify::{ClassifyContext, classify};
use tidegate_core::cooldown::ladder_ms;
use tidegate_core::ids::{AttemptId, ModelId, PlaneIncarnation};
use tidegate_core::lockout::MAX_LOCKS;
use tidegate_core::outcome::{
    Attempt, AttemptOutcome, LocalFault, Outcome, StreamFault, TransportFault, UpstreamError,
};
use tidegate_core::settings::ProviderClass;
use tidegate_core::state::Event;
use tidegate_core::time::Timestamp;

use super::world::{MODEL, World, answer, status, with_header};

/// One thing that happens in a world with two connections.
#[derive(Clone, Debug)]
enum Step {
    /// An attempt is sent on the connection with this number.
    Send { connection: usize, model: u8 },
    /// One of the attempts sent so far ends, perhaps again.
    End {
        attempt: usize,
        outcome: usize,
        at: u64,
        combo: bool,
        count: u32,
    },
    /// One of the attempts asks for the probe.
    TakeProbe { attempt: usize },
    /// One of the attempts gives back the probe, which it may not hold.
    ReturnProbe { attempt: usize },
    /// An operator resets something, or a connection gets another credential.
    Operate { connection: usize, what: u8 },
    /// Other settings are in force from now on.
    Settings {
        thresholds: (u32, u32),
        steps: u32,
        times: (u64, u64),
    },
    /// Time passes.
    Pass { ms: u64 },
}

const CONNECTIONS: [&str; 2] = ["c1", "c2"];

fn outcomes() -> Vec<Outcome> {
    vec![
        Outcome::Success,
        Outcome::ClientAbort,
        status(503),
        status(500),
        status(429),
        status(404),
        status(401),
        status(402),
        answer(403, "Request not allowed"),
        answer(429, "daily quota exceeded"),
        with_header(429, "retry-after", "99999999999999999999"),
        Outcome::Transport(TransportFault::Connect),
        Outcome::Transport(TransportFault::ProxyUnreachable),
        Outcome::Stream(StreamFault::Truncated),
        Outcome::Local(LocalFault::QueueFull),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..2_usize, 0..3_u8).prop_map(|(connection, model)| Step::Send { connection, model }),
        5 => (any::<usize>(), any::<usize>(), 0..400_000_u64, any::<bool>(), 0..3_u32).prop_map(
            |(attempt, outcome, at, combo, count)| Step::End { attempt, outcome, at, combo, count }
        ),
        2 => any::<usize>().prop_map(|attempt| Step::TakeProbe { attempt }),
        1 => any::<usize>().prop_map(|attempt| Step::ReturnProbe { attempt }),
        1 => (0..2_usize, 0..5_u8).prop_map(|(connection, what)| Step::Operate { connection, what }),
        1 => ((1..10_u32, 1..20_u32), 0..32_u32, (1_000..100_000_u64, 1..100_000_u64)).prop_map(
            |(thresholds, steps, times)| Step::Settings { thresholds, steps, times }
        ),
        2 => (0..400_000_u64).prop_map(|ms| Step::Pass { ms }),
    ];
    prop::collection::vec(step, 1..80)
}

fn classes() -> impl Strategy<Value = ProviderClass> {
    prop_oneof![
        Just(ProviderClass::Oauth),
        Just(ProviderClass::Apikey),
        Just(ProviderClass::Local),
    ]
}

fn pick<T>(items: &[T], index: usize) -> Option<&T> {
    (!items.is_empty()).then(|| &items[index % items.len()])
}

/// What must hold between a world before and after an event.
fn check(before: &Snapshot, world: &World, event: &Event, now: Timestamp) {
    let success = matches!(event, Event::Outcome(outcome) if outcome.outcome == Outcome::Success);
    let operated = matches!(
        event,
        Event::ResetConnection { .. } | Event::ClearLocks { .. } | Event::CredentialReplaced { .. }
    );
    for (connection, old) in CONNECTIONS.iter().zip(&before.connections) {
        let new = world.connection(connection);
        assert!(
            old.terminal.is_none() || new.terminal == old.terminal || ends_terminal(event),
            "sticky"
        );
        if !success && !operated && new.terminal.is_none() {
            assert!(
                new.cooldown.until >= old.cooldown.until,
                "an end moves earlier"
            );
        }
        let latest = Some(now.plus_ms(LONGEST_MS));
        assert!(
            new.cooldown.until <= old.cooldown.until.max(latest),
            "too long"
        );
        for lock in &old.locks {
            let kept = new.locks.iter().find(|kept| kept.key == lock.key);
            let end = kept.map(|kept| kept.until);
            let over = lock.until < now;
            assert!(
                success || operated || over || end >= Some(lock.until),
                "a lock ends earlier"
            );
        }
        assert!(new.locks.len() <= MAX_LOCKS);
        let steps = world.policy.cooldown.max_backoff_steps;
        assert!(new.cooldown.backoff_level <= old.cooldown.backoff_level.max(steps));
    }
    let (old, new) = (&before.provider.breaker, &world.state.breaker);
    if let (
        BreakerStatus::HalfOpen { probe: Some(old) },
        BreakerStatus::HalfOpen { probe: Some(new) },
    ) = (old.status, new.status)
    {
        assert!(old == new || old.expires_at <= now, "two unexpired probes");
    }
    assert!(new.last_failure_at >= old.last_failure_at || new.failure_count == 0);
    let failure = matches!(event, Event::Outcome(_)) && !success;
    assert!(
        failure || new.status != BreakerStatus::Open || old.status == BreakerStatus::Open,
        "only a failure opens"
    );
    assert!(
        new.failure_count <= old.failure_count.saturating_add(1),
        "one event counts once"
    );
}

/// Longest that anything may ask a connection to be left alone: a hint at its cap, in ms.
const LONGEST_MS: u64 = 30 * 86_400_000;

fn ends_terminal(event: &Event) -> bool {
    matches!(
        event,
        Event::CredentialReplaced { .. }
            | Event::ResetConnection {
                terminal_too: true,
                ..
            }
    )
}

struct Snapshot {
    provider: tidegate_core::state::ProviderState,
    connections: Vec<tidegate_core::state::ConnectionState>,
}

impl Snapshot {
    fn of(world: &World) -> Self {
        Self {
            provider: world.state.clone(),
            connections: CONNECTIONS
                .iter()
                .map(|connection| world.connection(connection).clone())
                .collect(),
        }
    }
}

fn operation(world: &mut World, connection: &str, what: u8) -> Event {
    let credential_version = world.connection(connection).credential_version + 1;
    let connection = world.config(connection).id.clone();
    match what {
        0 => Event::ResetBreaker,
        1 => Event::CredentialReplaced {
            connection,
            credential_version,
        },
        2 => Event::ClearLocks {
            connection,
            model: None,
        },
        what => Event::ResetConnection {
            connection,
            terminal_too: what == 3,
        },
    }
}

fn run(world: &mut World, steps: &[Step]) {
    let outcomes = outcomes();
    let mut sent: Vec<(Attempt, &str)> = Vec::new();
    let mut now = Timestamp(1_000_000);
    for step in steps {
        let (connection, event) = match step {
            Step::Send { connection, model } => {
                let name = CONNECTIONS[*connection];
                let mut attempt = world.send(name);
                attempt.model = ModelId::new(format!("{MODEL}{model}")).unwrap();
                sent.push((attempt, name));
                continue;
            }
            Step::Pass { ms } => {
                now = now.plus_ms(*ms);
                continue;
            }
            Step::Operate { connection, what } => {
                let name = CONNECTIONS[*connection];
                let event = operation(world, name, *what);
                (Some(name), event)
            }
            Step::Settings {
                thresholds,
                steps,
                times,
            } => {
                let policy = &mut world.policy;
                policy.breaker.degradation_threshold = thresholds.0;
                policy.breaker.failure_threshold = thresholds.1;
                policy.breaker.reset_timeout_ms = times.0;
                policy.breaker.dedup_connection_ms = times.1;
                policy.cooldown.max_backoff_steps = *steps;
                policy.cooldown.base_ms = times.1;
                policy.lockout.max_backoff_steps = *steps;
                policy.lockout.base_ms = times.0;
                policy.lockout.window_ms = times.1;
                continue;
            }
            Step::ReturnProbe { attempt } => match pick(&sent, *attempt) {
                Some((attempt, _)) => (
                    None,
                    Event::ReturnProbe {
                        attempt: attempt.id,
                    },
                ),
                None => continue,
            },
            Step::TakeProbe { attempt } => match pick(&sent, *attempt) {
                Some((attempt, _)) => (
                    None,
                    Event::TakeProbe {
                        attempt: attempt.id,
                    },
                ),
                None => continue,
            },
            Step::End {
                attempt,
                outcome,
                at,
                combo,
                count,
            } => match pick(&sent, *attempt) {
                Some((attempt, connection)) => {
                    let report = AttemptOutcome {
                        attempt: attempt.clone(),
                        outcome: pick(&outcomes, *outcome).unwrap().clone(),
                        occurred_at: Timestamp(now.0.saturating_add(1_000).saturating_sub(*at)),
                        next_target_same_provider: false,
                        combo: *combo,
                        count: *count,
                    };
                    (Some(*connection), Event::Outcome(Box::new(report)))
                }
                None => continue,
            },
        };
        let before = Snapshot::of(world);
        world.event(connection, &event, now);
        check(&before, world, &event, now);
    }
}

proptest! {
    #[test]
    fn invariants_hold_for_outcomes_in_any_order_and_number(
        class in classes(),
        refusing in any::<bool>(),
        per_model in any::<bool>(),
        steps in steps(),
    ) {
        let mut world = World::named(if refusing { "claude" } else { "acme" }, class);
        world.add("c2");
        world.policy.per_model_quota = per_model;
        world.policy.lockout.enabled = true;
        run(&mut world, &steps);
    }

    #[test]
    fn a_report_applied_twice_in_a_row_counts_once(class in classes(), outcome in any::<usize>()) {
        let outcome = pick(&outcomes(), outcome).unwrap().clone();
        let mut world = World::new(class);
        let attempt = world.send("c1");
        world.end(&attempt, 1_000, outcome.clone());
        let after = (world.state.clone(), world.c1().clone());
        world.end(&attempt, 1_000, outcome);
        prop_assert_eq!(after, (world.state.clone(), world.c1().clone()));
    }

    /// Whatever a lock has counted, and whatever else is locked, successes end it: one for each bit of its count.
    #[test]
    fn decay_ends_every_lock(counts in prop::array::uniform2(any::<u32>())) {
        let mut world = World::new(ProviderClass::Apikey);
        world.policy.lockout.enabled = true;
        world.fail_combo(0, status(429));
        world.fail_combo(100_000, status(503));
        let longest = counts.iter().copied().max().unwrap_or_default();
        let locks = &mut world.connection_mut("c1").locks;
        prop_assert_eq!(locks.len(), 2);
        for (lock, count) in locks.iter_mut().zip(&counts) {
            lock.failure_count = *count;
        }
        for _ in 0..(u32::BITS - longest.leading_zeros()).max(1) {
            prop_assert!(!world.c1().locks.is_empty());
            let attempt = world.send("c1");
            world.end_combo(&attempt, 300_000, Outcome::Success);
        }
        prop_assert!(world.c1().locks.is_empty());
        prop_assert!(world.c1().cooldown.is_clean());
    }

    #[test]
    fn ladders_grow_and_end_at_their_cap(
        base in any::<u64>(),
        level in any::<u32>(),
        steps in any::<u32>(),
        cap in any::<u64>(),
    ) {
        let here = ladder_ms(base, level, steps, cap);
        prop_assert!(here <= cap);
        prop_assert!(here <= ladder_ms(base, level.saturating_add(1), steps, cap));
        prop_assert!(here >= base.min(cap));
    }

    #[test]
    fn waits_of_a_breaker_grow_and_nothing_overflows(
        cycles in any::<u32>(),
        count in any::<u32>(),
        last in any::<u64>(),
        now in any::<u64>(),
        reset_timeout_ms in any::<u64>(),
        escalate_after_cycles in any::<u32>(),
        max_backoff_multiplier in any::<u32>(),
    ) {
        let policy = BreakerPolicy {
            degradation_threshold: 1,
            failure_threshold: 1,
            reset_timeout_ms,
            escalate_after_cycles,
            max_backoff_multiplier,
            probe_ttl_ms: u64::MAX,
            dedup_connection_ms: u64::MAX,
            dedup_provider_ms: u64::MAX,
        };
        let mut world = World::new(ProviderClass::Local);
        let breaker = &mut world.state.breaker;
        breaker.status = BreakerStatus::Open;
        breaker.failure_count = count;
        breaker.open_cycles = cycles;
        breaker.last_failure_at = Some(Timestamp(last));
        let wait_ms = breaker.effective_reset_timeout_ms(&policy);
        let mut next = breaker.clone();
        next.open_cycles = cycles.saturating_add(1);
        prop_assert!(wait_ms >= reset_timeout_ms);
        prop_assert!(next.effective_reset_timeout_ms(&policy) >= wait_ms);
        match breaker.phase(Timestamp(now), &policy) {
            Phase::Open { retry_after_ms } => prop_assert!((1..=wait_ms).contains(&retry_after_ms)),
            phase => prop_assert_eq!(phase, Phase::HalfOpen { probe_out: false }),
        }
        let attempt = AttemptId { plane: PlaneIncarnation(1), number: 1 };
        if breaker.take_probe(attempt, Timestamp(now), &policy) {
            breaker.probe_failed(Timestamp(now));
            prop_assert!(breaker.failure_count >= count && breaker.open_cycles >= cycles);
        }
    }

    #[test]
    fn any_answer_is_classified(
        code in any::<u16>(),
        body in "\\PC{0,200}",
        name in "(retry-after|retry-after-ms|x-ratelimit-reset)",
        value in "[0-9.:a-zA-Z ]{0,40}",
        embedded in any::<bool>(),
        class in classes(),
        now in any::<u64>(),
    ) {
        let world = World::new(class);
        let model = ModelId::new(MODEL).unwrap();
        let context = ClassifyContext::of(&world.provider, &world.policy, &model, Timestamp(now));
        let outcome = Outcome::Response(UpstreamError {
            status: code,
            headers: vec![(name, value)],
            body,
            embedded,
        });
        let classification = classify(&outcome, &context);
        prop_assert!(!classification.success);
        let month_ms = 30 * 86_400_000;
        prop_assert!(classification.hint.is_none_or(|hint| (1..=month_ms).contains(&hint.wait_ms)));
        prop_assert_eq!(classification, classify(&outcome, &context));
    }
}
