//! A provider with its connections and a store that hands out versions, so that a test can send attempts and
//! end them in any order.

use std::collections::BTreeMap;

use tidegate_core::config::{Connection, Protocol, Provider};
use tidegate_core::cooldown::Terminal;
use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use tidegate_core::outcome::{Attempt, AttemptOutcome, Outcome, UpstreamError};
use tidegate_core::settings::{Overrides, ProviderClass, ProviderPolicy, Settings};
use tidegate_core::state::apply::{Applied, Subject, apply};
use tidegate_core::state::{ConnectionState, Event, ProviderState, StateValue};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Mark, Version};

/// The model attempts ask for unless they say otherwise.
pub(crate) const MODEL: &str = "m";

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) provider: ProviderId,
    pub(crate) policy: ProviderPolicy,
    pub(crate) state: ProviderState,
    connections: BTreeMap<String, (Connection, ConnectionState)>,
    revision: u64,
    attempts: u64,
}

impl World {
    /// A provider of a class with the connection `c1` and the policy of the built-in defaults.
    pub(crate) fn new(class: ProviderClass) -> Self {
        Self::named("acme", class)
    }

    pub(crate) fn named(provider: &str, class: ProviderClass) -> Self {
        Self::under(provider, class, &Settings::default())
    }

    /// The same under other settings.
    pub(crate) fn under(provider: &str, class: ProviderClass, settings: &Settings) -> Self {
        let id = ProviderId::new(provider).unwrap();
        let written = Provider {
            id: id.clone(),
            protocol: Protocol::Openai,
            base_url: "https://upstream.example/v1".to_owned(),
            class: Some(class),
            models: Vec::new(),
            // Ordinary, unless a test says otherwise.
            per_model_quota: Some(false),
            account_strategy: Default::default(),
            oauth: None,
            quota_endpoint: None,
        };
        let policy = ProviderPolicy::resolve(settings, &written, &Overrides::default());
        let mut world = Self {
            provider: id,
            policy,
            state: ProviderState::default(),
            connections: BTreeMap::new(),
            revision: 0,
            attempts: 0,
        };
        world.add("c1");
        world
    }

    pub(crate) fn add(&mut self, connection: &str) {
        let config = Connection {
            id: ConnectionId::new(connection).unwrap(),
            provider: self.provider.clone(),
            priority: 100,
            enabled: true,
            credential: None,
            disable_cooling: false,
            max_concurrent: None,
            rate_limit_protection: None,
            per_model_quota: None,
            models: Vec::new(),
            refresh_token: None,
            client_id: None,
            client_secret: None,
            quota_endpoint: None,
        };
        self.connections
            .insert(connection.to_owned(), (config, ConnectionState::default()));
    }

    pub(crate) fn config(&mut self, connection: &str) -> &mut Connection {
        &mut self.connections.get_mut(connection).unwrap().0
    }

    pub(crate) fn connection(&self, connection: &str) -> &ConnectionState {
        &self.connections[connection].1
    }

    pub(crate) fn connection_mut(&mut self, connection: &str) -> &mut ConnectionState {
        &mut self.connections.get_mut(connection).unwrap().1
    }

    pub(crate) fn c1(&self) -> &ConnectionState {
        self.connection("c1")
    }

    /// An attempt decided on what is stored now.
    pub(crate) fn send(&mut self, connection: &str) -> Attempt {
        self.attempts += 1;
        Attempt {
            id: AttemptId {
                plane: PlaneIncarnation(1),
                number: self.attempts,
            },
            provider: self.provider.clone(),
            connection: ConnectionId::new(connection).unwrap(),
            model: ModelId::new(MODEL).unwrap(),
            decided_on: Version::new(1, self.revision),
            epoch: match self.state.breaker.epoch {
                Mark::At(version) => version,
                Mark::Never | Mark::ThisWrite => Version::default(),
            },
            credential_version: self.connection(connection).credential_version,
            egress: None,
            probe: false,
            synthetic: false,
        }
    }

    /// Ends an attempt of a request that names no combo.
    pub(crate) fn end(&mut self, attempt: &Attempt, at: u64, outcome: Outcome) -> Applied {
        self.report(AttemptOutcome {
            attempt: attempt.clone(),
            outcome,
            occurred_at: Timestamp(at),
            next_target_same_provider: false,
            combo: false,
            count: 1,
        })
    }

    /// Ends an attempt of a request that names a combo.
    pub(crate) fn end_combo(&mut self, attempt: &Attempt, at: u64, outcome: Outcome) -> Applied {
        self.report(AttemptOutcome {
            attempt: attempt.clone(),
            outcome,
            occurred_at: Timestamp(at),
            next_target_same_provider: false,
            combo: true,
            count: 1,
        })
    }

    /// Sends an attempt on `c1` and ends it.
    pub(crate) fn fail(&mut self, at: u64, outcome: Outcome) -> Applied {
        let attempt = self.send("c1");
        self.end(&attempt, at, outcome)
    }

    /// The same for a combo.
    pub(crate) fn fail_combo(&mut self, at: u64, outcome: Outcome) -> Applied {
        let attempt = self.send("c1");
        self.end_combo(&attempt, at, outcome)
    }

    pub(crate) fn report(&mut self, outcome: AttemptOutcome) -> Applied {
        let connection = outcome.attempt.connection.as_str().to_owned();
        let now = outcome.occurred_at;
        self.event(Some(&connection), &Event::Outcome(Box::new(outcome)), now)
    }

    /// Applies any event, as a store would: what changed gets the next version.
    pub(crate) fn event(
        &mut self,
        connection: Option<&str>,
        event: &Event,
        now: Timestamp,
    ) -> Applied {
        let before = (self.state.clone(), self.connections.clone());
        let applied = apply(
            Subject {
                provider: &mut self.state,
                connection: connection
                    .and_then(|connection| self.connections.get_mut(connection))
                    .map(|(config, state)| (&*config, state)),
            },
            event,
            now,
            &self.policy,
            &self.provider,
        );
        let changed = before != (self.state.clone(), self.connections.clone());
        assert_eq!(applied.changed, changed, "says whether anything changed");
        if changed {
            self.store();
        }
        applied
    }

    /// Gives what is there the next version, as a write does.
    pub(crate) fn store(&mut self) {
        self.revision += 1;
        let version = Version::new(1, self.revision);
        let mut value = StateValue::Provider(self.state.clone());
        value.resolve_marks(version);
        if let StateValue::Provider(state) = value {
            self.state = state;
        }
        for (_, state) in self.connections.values_mut() {
            let mut value = StateValue::Connection(state.clone());
            value.resolve_marks(version);
            if let StateValue::Connection(resolved) = value {
                *state = resolved;
            }
        }
    }

    /// Name on the wire and failure count of the breaker.
    pub(crate) fn breaker(&self, now: u64) -> (&'static str, u32) {
        let phase = self
            .state
            .breaker
            .phase(Timestamp(now), &self.policy.breaker);
        (phase.wire_name(), self.state.breaker.failure_count)
    }

    pub(crate) fn retry_after_ms(&self, now: u64) -> u64 {
        self.state
            .breaker
            .phase(Timestamp(now), &self.policy.breaker)
            .retry_after_ms()
    }

    /// End and level of the cooldown of `c1`.
    pub(crate) fn cooldown(&self) -> (Option<u64>, u32) {
        let cooldown = &self.c1().cooldown;
        (cooldown.until.map(|until| until.0), cooldown.backoff_level)
    }
}

/// An answer with a status and a body.
pub(crate) fn answer(status: u16, body: &str) -> Outcome {
    Outcome::Response(UpstreamError {
        status,
        body: body.to_owned(),
        ..UpstreamError::default()
    })
}

/// An answer with a status and no body.
pub(crate) fn status(status: u16) -> Outcome {
    answer(status, "")
}

/// An answer with a status and one header.
pub(crate) fn with_header(status: u16, name: &str, value: &str) -> Outcome {
    Outcome::Response(UpstreamError {
        status,
        headers: vec![(name.to_owned(), value.to_owned())],
        ..UpstreamError::default()
    })
}

/// A terminal state of the connection's first credential.
pub(crate) fn terminal(kind: tidegate_core::classify::TerminalKind) -> Terminal {
    Terminal {
        kind,
        since: Timestamp(0),
        credential_version: 0,
        switched_off: false,
    }
}
