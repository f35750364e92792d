//! What applying an event costs: the same after any number of failures and beside any number of connections, and with
//! no more than 64 locks however many models fail.
//!
//! Counted in allocations, which are the same in every run, and in the size of the value that is stored. `make bench`
//! shows the times.

use serde_json::json;
use tidegate_core::config::{Config, Document};
use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use tidegate_core::lockout::MAX_LOCKS;
use tidegate_core::outcome::{Attempt, AttemptOutcome, Outcome, UpstreamError};
use tidegate_core::settings::Overrides;
use tidegate_core::state::apply::{Subject, apply};
use tidegate_core::state::{ConnectionState, Event, ProviderState, StateValue};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

const FIRST_AT_MS: u64 = 1_800_000_000_000;

/// A provider that keeps a quota per model, the first of its connections, and their values.
struct World {
    config: Config,
    provider: ProviderId,
    connection: ConnectionId,
    provider_state: ProviderState,
    connection_state: ConnectionState,
    failures: u64,
    /// Between two failures.
    step_ms: u64,
}

/// What applying one event took.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    allocations: u64,
    bytes: u64,
}

#[cfg(test)]
impl World {
    fn new(connections: usize) -> Self {
        let named = |number: usize| json!({"id": format!("c{number}"), "provider": "acme"});
        let document: Document = serde_json::from_value(json!({
            "providers": [{
                "id": "acme",
                "protocol": "openai",
                "baseUrl": "https://upstream.example/v1",
                "perModelQuota": true,
            }],
            "connections": (0..connections).map(named).collect::<Vec<_>>(),
        }))
        .unwrap();
        Self {
            config: Config::build(document, 1, &Overrides::default()).unwrap(),
            provider: ProviderId::new("acme").unwrap(),
            connection: ConnectionId::new("c0").unwrap(),
            provider_state: ProviderState::default(),
            connection_state: ConnectionState::default(),
            failures: 0,
            step_ms: 10_000,
        }
    }

    /// Applies a failure of a model, a step after the last one and decided after everything before it.
    fn fail(&mut self, status: u16, model: &str) -> Cost {
        self.failures += 1;
        let now = Timestamp(FIRST_AT_MS + self.failures * self.step_ms);
        let decided_on = Version::new(1, self.failures);
        let event = Event::Outcome(Box::new(AttemptOutcome {
            attempt: Attempt {
                id: AttemptId {
                    plane: PlaneIncarnation(1),
                    number: self.failures,
                },
                provider: self.provider.clone(),
                connection: self.connection.clone(),
                model: ModelId::new(model).unwrap(),
                decided_on,
                epoch: decided_on,
                credential_version: 1,
                egress: None,
                probe: false,
                synthetic: false,
            },
            outcome: Outcome::Response(UpstreamError {
                status,
                body: r#"{"error":{"message":"no luck"}}"#.to_owned(),
                ..UpstreamError::default()
            }),
            occurred_at: now,
            next_target_same_provider: false,
            combo: false,
            count: 1,
        }));
        let entry = self.config.provider(&self.provider).unwrap();
        let connection = self.config.connection(&self.connection).unwrap();
        let (provider_state, connection_state) =
            (&mut self.provider_state, &mut self.connection_state);
        let info = allocation_counter::measure(|| {
            let subject = Subject {
                provider: provider_state,
                connection: Some((connection, connection_state)),
            };
            apply(subject, &event, now, &entry.policy, &self.provider);
        });
        self.store(Version::new(1, self.failures));
        Cost {
            allocations: info.count_total,
            bytes: info.bytes_total,
        }
    }

    /// Gives both values the version they were stored under, as reading them back does.
    fn store(&mut self, version: Version) {
        let mut provider = StateValue::Provider(std::mem::take(&mut self.provider_state));
        let mut connection = StateValue::Connection(std::mem::take(&mut self.connection_state));
        provider.resolve_marks(version);
        connection.resolve_marks(version);
        if let (StateValue::Provider(provider), StateValue::Connection(connection)) =
            (provider, connection)
        {
            self.provider_state = provider;
            self.connection_state = connection;
        }
    }

    fn stored_bytes(&self) -> usize {
        serde_json::to_vec(&(&self.provider_state, &self.connection_state))
            .unwrap()
            .len()
    }
}

#[test]
fn cost_does_not_grow_with_the_number_of_failures() {
    let mut world = World::new(1);
    // The first ones fill what starts empty and climb the ladders to their tops.
    for _ in 0..100 {
        world.fail(500, "m");
    }
    let (early, early_bytes) = (world.fail(500, "m"), world.stored_bytes());
    for _ in 0..20_000 {
        world.fail(500, "m");
    }
    assert_eq!(world.fail(500, "m"), early);
    // A count may have more digits.
    assert!(world.stored_bytes() <= early_bytes + 40);
}

#[test]
fn cost_does_not_grow_with_the_number_of_connections() {
    let cost = |connections| {
        let mut world = World::new(connections);
        let costs: Vec<Cost> = (0..20).map(|_| world.fail(500, "m")).collect();
        costs
    };
    assert_eq!(cost(1_000), cost(1));
}

#[test]
fn cost_does_not_grow_beyond_the_most_locks() {
    let mut world = World::new(1);
    // So close together that no lock ends.
    world.step_ms = 1;
    for number in 0..MAX_LOCKS {
        world.fail(429, &format!("model-{number:05}"));
    }
    assert_eq!(world.connection_state.locks.len(), MAX_LOCKS);
    let costs: Vec<Cost> = (MAX_LOCKS..MAX_LOCKS * 20)
        .map(|number| world.fail(429, &format!("model-{number:05}")))
        .collect();
    let bytes = world.stored_bytes();
    assert_eq!(world.connection_state.locks.len(), MAX_LOCKS);
    let most = |costs: &[Cost]| costs.iter().map(|cost| cost.allocations).max();
    let (first, last) = costs.split_at(MAX_LOCKS);
    assert!(
        most(last) <= most(first),
        "{:?} {:?}",
        most(first),
        most(last)
    );
    world.fail(429, "model-99999");
    assert!(world.stored_bytes() <= bytes + 40);
}
