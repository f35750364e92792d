//! What applying an outcome costs, classification included: on a new state, after a million failures, and with as many
//! model locks as a connection can have. In this process, on two values, as the recorder does it for each report.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tidegate_core::config::Config;
use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use tidegate_core::lockout::MAX_LOCKS;
use tidegate_core::outcome::{Attempt, AttemptOutcome, Outcome, UpstreamError};
use tidegate_core::state::apply::{Subject, apply};
use tidegate_core::state::{ConnectionState, Event, ProviderState, StateValue};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

use crate::ROUNDS;
use crate::load::median;
use crate::rules;
use crate::summary::Summary;

const MANY: u64 = 1_000_000;
/// How long each state is measured in a round.
const TURN: Duration = Duration::from_millis(50);
const FIRST_AT: Timestamp = Timestamp(1_800_000_000_000);
const BODY: &str = r#"{"error":{"message":"The server had an error","type":"server_error"}}"#;

/// The values of a provider and its connection, and their configuration.
#[derive(Clone)]
struct World<'a> {
    config: &'a Config,
    provider: ProviderId,
    connection: ConnectionId,
    provider_state: ProviderState,
    connection_state: ConnectionState,
    failures: u64,
}

/// Measures the three states in turns and notes the figures.
pub(crate) fn measure(summary: &mut Summary) -> Result<()> {
    let config = rules::config()?;
    let mut new = World {
        config: &config,
        provider: ProviderId::new(rules::PROVIDER)?,
        connection: ConnectionId::new(rules::CONNECTION)?,
        provider_state: ProviderState::default(),
        connection_state: ConnectionState::default(),
        failures: 0,
    };
    new.fail(500, "m")?;
    let mut old = new.clone();
    for _ in 0..MANY {
        old.fail(500, "m")?;
    }
    let mut locked = new.clone();
    for number in 0..MAX_LOCKS {
        locked.fail(429, &format!("m{number}"))?;
    }
    let (mut of_new, mut of_old, mut of_locked) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_new.push(new.clone().time()?);
        of_old.push(old.clone().time()?);
        of_locked.push(locked.clone().time()?);
    }
    let ns = median(of_new);
    summary.set("transitions.ns", ns);
    summary.set("transitions.million_failures_ratio", median(of_old) / ns);
    summary.set("transitions.all_locks_ratio", median(of_locked) / ns);
    Ok(())
}

impl World<'_> {
    /// Applies a failure that was decided after everything before it.
    fn fail(&mut self, status: u16, model: &str) -> Result<()> {
        self.failures += 1;
        let now = FIRST_AT.plus_ms(self.failures);
        let seen = Version::new(1, self.failures);
        let event = Event::Outcome(Box::new(AttemptOutcome {
            attempt: Attempt {
                id: AttemptId {
                    plane: PlaneIncarnation(1),
                    number: self.failures,
                },
                provider: self.provider.clone(),
                connection: self.connection.clone(),
                model: ModelId::new(model)?,
                decided_on: seen,
                epoch: seen,
                credential_version: 1,
                egress: None,
                probe: false,
                synthetic: false,
            },
            outcome: Outcome::Response(UpstreamError {
                status,
                body: BODY.to_owned(),
                ..UpstreamError::default()
            }),
            occurred_at: now,
            next_target_same_provider: false,
            combo: false,
            count: 1,
        }));
        let entry = self
            .config
            .provider(&self.provider)
            .context("no provider")?;
        let connection = self
            .config
            .connection(&self.connection)
            .context("no connection")?;
        let subject = Subject {
            provider: &mut self.provider_state,
            connection: Some((connection, &mut self.connection_state)),
        };
        black_box(apply(subject, &event, now, &entry.policy, &self.provider));
        self.stored(seen);
        Ok(())
    }

    /// Both values have been written.
    fn stored(&mut self, version: Version) {
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

    /// Nanoseconds for each failure.
    fn time(&mut self) -> Result<f64> {
        let started = Instant::now();
        let mut calls: u64 = 0;
        while started.elapsed() < TURN {
            self.fail(500, "m")?;
            calls += 1;
        }
        Ok(started.elapsed().as_nanos() as f64 / calls.max(1) as f64)
    }
}
