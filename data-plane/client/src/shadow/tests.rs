use super::*;
use tidegate_core::breaker::BreakerStatus;
use tidegate_core::config::Document;
use tidegate_core::ids::{ModelId, PlaneIncarnation};
use tidegate_core::outcome::{Attempt, UpstreamError};
use tidegate_core::settings::Overrides;
use tidegate_core::state::codec::{encode_payload, key_text};
use tidegate_core::state::{StateKey, StateValue, StoredValue, VALUE_SCHEMA};
use tidegate_proto::config::v1::HotValue;
use tidegate_wire::version_to_proto;

const START: u64 = 1_000_000;

struct Bench {
    config: Config,
    view: LocalView,
    shadow: Shadow,
    provider: ProviderId,
    newest_attempt: u64,
}

impl Bench {
    fn new() -> Self {
        let document: Document = serde_json::from_str(
            r#"{"providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://p.test/v1"}],
                "connections": [{"id": "c1", "provider": "p"}, {"id": "c2", "provider": "p"},
                    {"id": "c3", "provider": "p"}],
                "settings": {"providerBreaker": {"dedupConnectionMs": 0,
                    "apikey": {"failureThreshold": 3, "degradationThreshold": 2, "resetTimeoutMs": 30000}}}}"#,
        )
        .unwrap();
        Self {
            config: Config::build(document, 1, &Overrides::default()).unwrap(),
            view: LocalView::new(),
            shadow: Shadow::default(),
            provider: ProviderId::new("p").unwrap(),
            newest_attempt: 0,
        }
    }

    fn scene(&self, now: u64) -> Scene<'_> {
        Scene {
            config: &self.config,
            view: &self.view,
            now: Timestamp(now),
            newest_attempt: self.newest_attempt,
        }
    }

    fn attempt(&mut self) -> AttemptId {
        self.newest_attempt += 1;
        AttemptId {
            plane: PlaneIncarnation(1),
            number: self.newest_attempt,
        }
    }

    /// An attempt that is decided now and ends with this status.
    fn ends(&mut self, status: u16, at: u64) {
        let id = self.attempt();
        self.ends_as(id, status, at);
    }

    fn ends_as(&mut self, id: AttemptId, status: u16, at: u64) {
        let outcome = match status {
            200 => Outcome::Success,
            status => Outcome::Response(UpstreamError {
                status,
                ..UpstreamError::default()
            }),
        };
        let report = AttemptOutcome {
            attempt: Attempt {
                id,
                provider: self.provider.clone(),
                connection: ConnectionId::new("c1").unwrap(),
                model: ModelId::new("m").unwrap(),
                decided_on: self.view.version(Shard::of_provider(&self.provider)),
                epoch: Version::default(),
                credential_version: 1,
                egress: None,
                probe: false,
                synthetic: false,
            },
            outcome,
            occurred_at: Timestamp(at),
            next_target_same_provider: false,
            combo: false,
            count: 1,
        };
        self.shadow.record(&report, self.scene(at));
    }

    fn breaker(&self) -> (BreakerStatus, u32) {
        let state = self.shadow.over(&self.view).provider(&self.provider);
        let breaker = state.unwrap_or_default().breaker.clone();
        (breaker.status, breaker.failure_count)
    }

    fn has_copy(&self) -> bool {
        !self.shadow.copies.lock().is_empty()
    }

    /// The store's view of the provider moves.
    fn watch_brings(&self, revision: u64, failure_count: u32) {
        let mut state = ProviderState::default();
        state.breaker.failure_count = failure_count;
        let key = key_text(&StateKey::Provider(self.provider.clone()));
        let stored = StoredValue::from_live(
            StateValue::Provider(state),
            Version::default(),
            Timestamp(u64::MAX),
        );
        let version = Version::new(7, revision);
        let value = HotValue {
            payload: encode_payload(&key, &stored).unwrap().into(),
            key,
            version: Some(version_to_proto(version)),
            schema: VALUE_SCHEMA,
            expires_at_unix_ms: u64::MAX,
        };
        self.view
            .change(Shard::of_provider(&self.provider), version, &[value]);
    }
}

#[test]
fn failures_nobody_took_open_a_breaker_of_our_own() {
    let mut bench = Bench::new();
    for failure in 0..3 {
        assert_ne!(bench.breaker().0, BreakerStatus::Open);
        bench.ends(500, START + failure);
    }
    assert_eq!(bench.breaker(), (BreakerStatus::Open, 3));
}

#[test]
fn successes_where_all_is_well_leave_no_trace() {
    let mut bench = Bench::new();
    bench.ends(200, START);
    assert!(!bench.has_copy());
    bench.ends(500, START + 1);
    bench.ends(200, START + 2);
    assert_eq!(bench.breaker().1, 0);
}

#[test]
fn the_local_probe_is_one_and_its_success_closes() {
    let mut bench = Bench::new();
    for failure in 0..3 {
        bench.ends(500, START + failure);
    }
    let late = bench.attempt();
    let probe = bench.attempt();
    let other = bench.attempt();
    let provider = bench.provider.clone();
    assert!(
        !bench
            .shadow
            .take_probe(&provider, probe, bench.scene(START + 100))
    );
    let half_open = bench.scene(START + 60_000);
    assert!(bench.shadow.take_probe(&provider, probe, half_open));
    assert!(!bench.shadow.take_probe(&provider, other, half_open));
    assert!(
        bench.shadow.take_probe(&provider, probe, half_open),
        "asking twice changes nothing"
    );
    bench.ends_as(late, 200, START + 60_001);
    assert_ne!(
        bench.breaker().0,
        BreakerStatus::Closed,
        "only the probe's verdict closes"
    );
    bench.ends_as(probe, 200, START + 60_002);
    assert_eq!(bench.breaker(), (BreakerStatus::Closed, 0));
}

#[test]
fn after_it_closed_what_was_decided_before_no_longer_counts_and_what_comes_after_does() {
    let mut bench = Bench::new();
    let before: Vec<AttemptId> = (0..3).map(|_| bench.attempt()).collect();
    for failure in 0..3 {
        bench.ends(500, START + failure);
    }
    let probe = bench.attempt();
    let provider = bench.provider.clone();
    let scene = bench.scene(START + 60_000);
    assert!(bench.shadow.take_probe(&provider, probe, scene));
    bench.ends_as(probe, 200, START + 60_001);
    for late in before {
        bench.ends_as(late, 500, START + 60_002);
    }
    assert_eq!(bench.breaker(), (BreakerStatus::Closed, 0));
    for failure in 0..3 {
        bench.ends(500, START + 60_003 + failure);
    }
    assert_eq!(bench.breaker(), (BreakerStatus::Open, 3));
}

#[test]
fn a_probe_that_is_not_sent_comes_back() {
    let mut bench = Bench::new();
    for failure in 0..3 {
        bench.ends(500, START + failure);
    }
    let (probe, other) = (bench.attempt(), bench.attempt());
    let provider = bench.provider.clone();
    let scene = bench.scene(START + 60_000);
    assert!(bench.shadow.take_probe(&provider, probe, scene));
    bench
        .shadow
        .return_probe(&provider, probe, scene, Instant::now());
    assert!(bench.shadow.take_probe(&provider, other, scene));
}

#[test]
fn when_the_view_moves_what_is_not_acknowledged_is_applied_to_it_again() {
    let mut bench = Bench::new();
    bench.ends(500, START);
    assert_eq!(bench.breaker().1, 1);
    bench.watch_brings(1, 1);
    bench.ends(500, START + 1);
    // The other failure may or may not be in the view already; it is not forgotten.
    assert_eq!(bench.breaker().1, 3);
}

#[test]
fn an_acknowledged_copy_goes_when_the_view_had_time_to_catch_up() {
    let mut bench = Bench::new();
    let moment = Instant::now();
    bench.ends(500, START);
    bench.shadow.settled(&bench.provider, moment);
    bench.shadow.refresh(bench.scene(START), moment, true);
    assert_eq!(bench.breaker().1, 1);
    let later = moment + LINGER;
    bench.shadow.refresh(bench.scene(START), later, false);
    assert!(bench.has_copy(), "cut off, the copy is all there is");
    bench.shadow.refresh(bench.scene(START), later, true);
    assert!(!bench.has_copy());
}

#[test]
fn a_copy_whose_reports_were_dropped_does_not_stay_for_ever() {
    let mut bench = Bench::new();
    let moment = Instant::now();
    bench.ends(500, START);
    let old = bench.scene(START + MAX_PENDING_AGE_MS + 1);
    bench.shadow.refresh(old, moment, false);
    bench.shadow.refresh(old, moment + LINGER, false);
    assert!(bench.has_copy());
    bench.shadow.refresh(old, moment + LINGER, true);
    bench.shadow.refresh(old, moment + LINGER + LINGER, true);
    assert!(!bench.has_copy());
}
