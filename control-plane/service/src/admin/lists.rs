//! Breakers, connections and locks as they stand. Reading changes nothing: lazy moves of a breaker are computed, not
//! written (`failure-state.md` §11.22).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::config::{Config, Connection, ProviderEntry};
use tidegate_core::egress::{self, EgressLock};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::lockout::{LockKey, ModelLock};
use tidegate_core::refresh::TokenCondition;
use tidegate_core::routing::View as _;
use tidegate_core::settings::TokenRefreshSettings;
use tidegate_core::state::{ConnectionState, ProviderState, Transition, TransitionKind};
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1 as proto;
use tidegate_store::durable::TokenRow;
use tidegate_wire::routing::{original_status, rule_word, serde_word};

use crate::config::Current;

use super::Admin;
use super::page::Page;
use super::permits::{ConnectionKey, connections};

/// Limit of reading renewals of access tokens (decision 54).
const TOKENS_LIMIT: Duration = Duration::from_millis(500);

/// The later end first.
pub(crate) type LockoutKey = (Reverse<u64>, String, LockKey);

/// A model lock that runs.
#[derive(Clone, Debug)]
pub(crate) struct RunningLock<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) lock: ModelLock,
}

impl RunningLock<'_> {
    fn key(&self) -> LockoutKey {
        let connection = self.connection.id.to_string();
        (
            Reverse(self.lock.until.0),
            connection,
            self.lock.key.clone(),
        )
    }
}

impl Admin {
    /// A page of the breakers of configured providers, by id, and the token of the next one.
    pub(crate) fn breakers(
        &self,
        config: &Config,
        provider: Option<&ProviderId>,
        page: &Page<String>,
    ) -> (Vec<proto::BreakerStatus>, String) {
        let now = self.clock.now();
        let entries = config.providers.values();
        let entries = entries.filter(|it| provider.is_none_or(|only| it.provider.id == *only));
        let (entries, next) = page.of(entries.map(|entry| (entry.provider.id.to_string(), entry)));
        let breakers = entries.into_iter().map(|entry| {
            let state = self.view.provider(&entry.provider.id).unwrap_or_default();
            breaker(entry, &state, &self.egress_locks(entry, now), now)
        });
        (breakers.collect(), next)
    }

    /// A page of connections, by provider and priority, and the token of the next one. Only where renewals of access tokens
    /// are wanted, the durable store is asked for them.
    pub(crate) async fn connections(
        &self,
        current: &Current,
        (provider, connection_id): (Option<&ProviderId>, Option<&ConnectionId>),
        with_tokens: bool,
        page: &Page<ConnectionKey>,
    ) -> (Vec<proto::ConnectionStatus>, String) {
        let (page, next) = page.of(connections(&current.config, provider, connection_id));
        let tokens = if with_tokens {
            self.tokens_of(current, &page).await
        } else {
            BTreeMap::new()
        };
        let now = self.clock.now();
        let settings = &current.config.settings.token_refresh;
        let mut of_provider: Option<(&ProviderEntry, Option<Timestamp>)> = None;
        let mut listed = Vec::with_capacity(page.len());
        for config in page {
            // What all connections of a provider share is looked up once.
            let known = of_provider.filter(|(entry, _)| entry.provider.id == config.provider);
            let found = || {
                let entry = current.config.provider(&config.provider)?;
                let locks = self.egress_locks(entry, now);
                Some((entry, locks.iter().map(|lock| lock.until).max()))
            };
            let Some((entry, locked_until)) = known.or_else(found) else {
                continue;
            };
            of_provider = Some((entry, locked_until));
            let state = self.state_of(config);
            let credential = current.credentials.get(&config.id);
            let version = credential.map_or(0, |credential| credential.version);
            let token = tokens.get(&config.id);
            let token = token.map(|row| token_status(row, config, &state, settings));
            listed.push(proto::ConnectionStatus {
                token,
                ..connection(entry, config, version, &state, locked_until, now)
            });
        }
        (listed, next)
    }

    /// A page of all running model locks, longest remaining first, and the token of the next one.
    pub(crate) fn lockouts(
        &self,
        config: &Config,
        provider: Option<&ProviderId>,
        connection: Option<&ConnectionId>,
        page: &Page<LockoutKey>,
    ) -> (Vec<proto::Lockout>, String) {
        let now = self.clock.now();
        let locks = self.running_locks(config, provider, connection, now);
        let locks = locks.into_iter();
        page.of(locks.map(|it| (it.key(), lockout(it.connection, &it.lock, now))))
    }

    /// All running model locks, longest remaining first.
    pub(crate) fn running_locks<'a>(
        &self,
        config: &'a Config,
        provider: Option<&'a ProviderId>,
        connection: Option<&'a ConnectionId>,
        now: Timestamp,
    ) -> Vec<RunningLock<'a>> {
        let selected = connections(config, provider, connection);
        let mut locks: Vec<RunningLock<'a>> = selected
            .flat_map(|(_, connection)| {
                let state = self.state_of(connection);
                let running = state.locks.iter().filter(|lock| lock.is_active(now));
                running
                    .map(|lock| RunningLock {
                        connection,
                        lock: lock.clone(),
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        locks.sort_by_cached_key(RunningLock::key);
        locks
    }

    /// What the provider's family locked and still runs, by identity.
    pub(super) fn egress_locks(&self, entry: &ProviderEntry, now: Timestamp) -> Vec<EgressLock> {
        let family = entry.policy.egress_family.iter();
        let states: Vec<_> = family.filter_map(|id| self.view.provider(id)).collect();
        egress::all_running(states.iter().map(|state| &state.egress_locks), now)
    }

    /// Renewals of access tokens, by connection; none when no connection of the page has one, or the durable store does not
    /// answer in time.
    async fn tokens_of(
        &self,
        current: &Current,
        page: &[&Connection],
    ) -> BTreeMap<ConnectionId, TokenRow> {
        let mut providers = page.iter().map(|connection| &connection.provider);
        if !providers.any(|provider| renews_tokens(&current.config, provider)) {
            return BTreeMap::new();
        }
        match tokio::time::timeout(TOKENS_LIMIT, self.durable.list_tokens()).await {
            Ok(Ok((_, rows))) => rows
                .into_iter()
                .map(|row| (row.connection.clone(), row))
                .collect(),
            Ok(Err(error)) => {
                tracing::warn!(%error, "renewals of tokens were not read");
                BTreeMap::new()
            }
            Err(_elapsed) => BTreeMap::new(),
        }
    }

    pub(super) fn state_of(&self, config: &Connection) -> Arc<ConnectionState> {
        self.view
            .connection(&config.provider, &config.id)
            .unwrap_or_default()
    }
}

/// Tokens of connections of this provider can be renewed.
pub(super) fn renews_tokens(config: &Config, provider: &ProviderId) -> bool {
    let entry = config.provider(provider);
    entry.is_some_and(|entry| entry.provider.oauth.is_some())
}

/// When the connection can be used from everywhere (decision 23): a terminal state has no end, and one that must not
/// cool is not kept from any address.
fn effective_until(
    config: &Connection,
    state: &ConnectionState,
    locked_until: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    if state.terminal.is_some() {
        return None;
    }
    let own = state.cooldown.until.filter(|until| *until > now);
    own.max(locked_until.filter(|_| !config.disable_cooling))
}

fn breaker(
    entry: &ProviderEntry,
    state: &ProviderState,
    egress_locks: &[EgressLock],
    now: Timestamp,
) -> proto::BreakerStatus {
    let policy = &entry.policy.breaker;
    let breaker = &state.breaker;
    let phase = breaker.phase(now, policy);
    let gate_policy = &entry.policy.gate;
    let gate_end = state.gate.end(now, gate_policy);
    let in_window = state.gate.failures_in_window(now, gate_policy);
    proto::BreakerStatus {
        provider: entry.provider.id.to_string(),
        state: phase.wire_name().to_owned(),
        failure_count: breaker.failure_count,
        last_failure_unix_ms: breaker.last_failure_at.map(|at| at.0),
        retry_after_ms: phase.retry_after_ms(),
        open_cycle_count: breaker.open_cycles,
        degradation_threshold: policy.degradation_threshold,
        failure_threshold: policy.failure_threshold,
        effective_reset_timeout_ms: breaker.effective_reset_timeout_ms(policy),
        gate_enabled: gate_policy.enabled,
        gate_failure_count: u32::try_from(in_window).unwrap_or(u32::MAX),
        gate_failure_threshold: gate_policy.failure_threshold,
        gate_remaining_ms: gate_end.map(|end| end.until.remaining_ms(now)),
        gate_reason: gate_end
            .map(|end| serde_word(&end.reason))
            .unwrap_or_default(),
        egress_locks: egress_locks
            .iter()
            .map(|lock| proto::EgressLock {
                egress: lock.egress.to_string(),
                remaining_ms: lock.until.remaining_ms(now),
                until_unix_ms: lock.until.0,
                reason: serde_word(&lock.reason),
            })
            .collect(),
    }
}

fn connection(
    entry: &ProviderEntry,
    config: &Connection,
    credential_version: u64,
    state: &ConnectionState,
    locked_until: Option<Timestamp>,
    now: Timestamp,
) -> proto::ConnectionStatus {
    let cooling = state.cooldown.is_running(now);
    let word = match &state.terminal {
        _ if !config.enabled => "disabled".to_owned(),
        Some(terminal) if terminal.switched_off => "disabled".to_owned(),
        Some(terminal) => serde_word(&terminal.kind),
        None if cooling => "unavailable".to_owned(),
        None => "active".to_owned(),
    };
    let error = state.last_error.as_ref();
    let origin = error.and_then(|error| error.origin.as_ref());
    let gate_end = state.gate.end(now, &entry.policy.gate);
    let locked = state
        .locks
        .iter()
        .filter(|lock| lock.is_active(now))
        .count();
    proto::ConnectionStatus {
        id: config.id.to_string(),
        provider: config.provider.to_string(),
        priority: config.priority,
        state: word,
        cooldown_remaining_ms: cooling.then(|| state.cooldown.remaining_ms(now)),
        backoff_level: state.cooldown.backoff_level,
        last_error_status: error.map(|error| u32::from(error.status)),
        last_error_reason: error
            .map(|error| serde_word(&error.reason))
            .unwrap_or_default(),
        last_error_unix_ms: error.map(|error| error.at.0),
        credential_version,
        locked_models: u32::try_from(locked).unwrap_or(u32::MAX),
        cooldown_until_unix_ms: cooling
            .then_some(state.cooldown.until)
            .flatten()
            .map(|until| until.0),
        rule: rule_word(origin),
        original_status: original_status(origin),
        terminal: state
            .terminal
            .as_ref()
            .map(|terminal| serde_word(&terminal.kind))
            .unwrap_or_default(),
        gate_remaining_ms: gate_end.map(|end| end.until.remaining_ms(now)),
        gate_failure_count: state.gate.failures,
        effective_until_unix_ms: effective_until(config, state, locked_until, now)
            .map(|until| until.0),
        token: None,
    }
}

fn token_status(
    row: &TokenRow,
    config: &Connection,
    hot: &ConnectionState,
    settings: &TokenRefreshSettings,
) -> proto::TokenStatus {
    let condition = TokenCondition::of(hot, row.credential_version);
    let next = row
        .state
        .next_attempt(condition, settings)
        .filter(|_| config.enabled);
    proto::TokenStatus {
        expires_unix_ms: row.state.expires_at.map(|at| at.0),
        retries: row.state.retries,
        failures: row.state.failures,
        next_attempt_unix_ms: next.map(|at| at.0),
        inactive: row.state.is_inactive(),
    }
}

fn lockout(config: &Connection, lock: &ModelLock, now: Timestamp) -> proto::Lockout {
    proto::Lockout {
        provider: config.provider.to_string(),
        connection: config.id.to_string(),
        model: lock_name(&lock.key),
        reason: serde_word(&lock.reason),
        remaining_ms: lock.until.remaining_ms(now),
        failure_count: lock.failure_count,
        until_unix_ms: lock.until.0,
        locked_at_unix_ms: lock.locked_at.0,
        rule: rule_word(lock.origin.as_ref()),
        original_status: original_status(lock.origin.as_ref()),
    }
}

/// What is locked, as it is written.
pub(crate) fn lock_name(key: &LockKey) -> String {
    match key {
        LockKey::Family(family) => family.clone(),
        LockKey::Model(model) => model.to_string(),
        LockKey::Exact(model) => model.clone(),
    }
}

/// A change of state for people.
pub(crate) fn transition(transition: &Transition) -> proto::Transition {
    let (kind, description) = match &transition.kind {
        TransitionKind::Breaker {
            from,
            to,
            failure_count,
        } => (
            "breaker",
            format!("{from} -> {to} at {failure_count} failures"),
        ),
        TransitionKind::Cooldown {
            until,
            backoff_level,
            reason,
        } => (
            "cooldown",
            format!(
                "{} for {} ms, level {backoff_level}",
                serde_word(reason),
                until.ms_since(transition.at)
            ),
        ),
        TransitionKind::ProviderCooldown { until, reason } => (
            "provider_cooldown",
            format!(
                "{} for {} ms",
                serde_word(reason),
                until.ms_since(transition.at)
            ),
        ),
        TransitionKind::EgressLock {
            egress,
            until,
            reason,
        } => (
            "egress_locked",
            format!(
                "{egress}: {} for {} ms",
                serde_word(reason),
                until.ms_since(transition.at)
            ),
        ),
        TransitionKind::ConnectionGate {
            until,
            failures,
            reason,
        } => (
            "provider_cooldown",
            format!(
                "{} for {} ms, failure {failures} in a row",
                serde_word(reason),
                until.ms_since(transition.at)
            ),
        ),
        TransitionKind::Terminal { kind } => ("terminal", serde_word(kind)),
        TransitionKind::Lock { key, until, reason } => (
            "lock",
            format!(
                "{}: {} for {} ms",
                lock_name(key),
                serde_word(reason),
                until.ms_since(transition.at)
            ),
        ),
        TransitionKind::Leased { until } => (
            "leased",
            format!("for {} ms, unless extended", until.ms_since(transition.at)),
        ),
        TransitionKind::LeaseEnded => ("lease_ended", "before its time".to_owned()),
        TransitionKind::Cleared => ("cleared", "as new".to_owned()),
        TransitionKind::Refreshed => ("refreshed", "the access token was renewed".to_owned()),
        TransitionKind::RefreshFailed { cause, retries: 0 } => ("refresh_failed", cause.clone()),
        TransitionKind::RefreshFailed { cause, retries } => {
            ("refresh_failed", format!("{cause}, retry {retries}"))
        }
        TransitionKind::Inactive => (
            "inactive",
            "the last allowed refresh failed; new credentials or an operator end it".to_owned(),
        ),
    };
    proto::Transition {
        at_unix_ms: transition.at.0,
        provider: transition.provider.to_string(),
        connection: transition
            .connection
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        kind: kind.to_owned(),
        description,
        attempt: transition
            .attempt
            .map(|attempt| attempt.to_string())
            .unwrap_or_default(),
        rule: rule_word(transition.origin.as_ref()),
        original_status: original_status(transition.origin.as_ref()),
    }
}
