//! Ending states by hand (decision 24).
//!
//! Each value is one compare-and-set, and none is made when the time for the whole is over: what happened since to a value that
//! comes late is to stand. When all are written they are saved in the checkpoint, since the answer says whether the
//! reset would survive the loss of the hot store; a durable store that is away keeps no value from being reset. What it alone
//! knows, how often a token could not be renewed, is forgotten last. A terminal state ends only when its connection is named.
//! The cooldown gate is a cooldown: the provider's ends with the cooldowns of the provider, a connection's entry with its
//! connection's. Egress locks end with the cooldowns of the provider too, and as they hold for its whole family, so does what
//! the failures of its siblings locked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tidegate_core::config::Config;
use tidegate_core::ids::{ConnectionId, ModelId, ProviderId, Shard};
pub(crate) use tidegate_core::management::ResetScope as Scope;
use tidegate_core::routing::View as _;
use tidegate_core::state::Event;
use tidegate_store::hot::Entry;

use crate::access::Caller;
use crate::clock::{Deadline, local_now};
use crate::hot::WRITE_LIMIT;
use crate::record::direct::NotDone;

use super::lists::renews_tokens;
use super::{Admin, Operation};

/// Limit of one value.
const VALUE_LIMIT: std::time::Duration = std::time::Duration::from_secs(1);

/// Of what.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) scope: Scope,
    pub(crate) provider: Option<ProviderId>,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) model: Option<ModelId>,
}

impl fmt::Display for Selection {
    /// Such as `cooldowns of connection c1`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.scope {
            Scope::Breakers => "breakers",
            Scope::Cooldowns => "cooldowns",
            Scope::Lockouts => "lockouts",
            Scope::All => "everything",
        })?;
        if let Some(provider) = &self.provider {
            write!(formatter, " of provider {provider}")?;
        }
        if let Some(connection) = &self.connection {
            write!(formatter, " of connection {connection}")?;
        }
        if let Some(model) = &self.model {
            write!(formatter, " of model {model}")?;
        }
        Ok(())
    }
}

/// What a reset did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Breakers, gates, egress locks of a provider, connections and model locks that changed.
    pub(crate) count: u32,
    /// Something of it is not in the checkpoint.
    pub(crate) unsaved: bool,
}

/// What a reset has done so far.
#[derive(Debug)]
struct Progress {
    count: u32,
    /// Nothing more of it is done then.
    deadline: Option<Deadline>,
    /// What is to be saved, in the order of writing.
    written: BTreeMap<Shard, Vec<Entry>>,
}

impl Progress {
    /// Until when the next value may be reset.
    fn of_a_value(&self) -> Deadline {
        let limit = local_now() + VALUE_LIMIT;
        self.deadline
            .map_or_else(|| limit.into(), |deadline| deadline.at_most(limit))
    }
}

/// Why nothing, or not everything, was reset.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("there is no provider {0}")]
    NoProvider(ProviderId),
    #[error("there is no connection {0}")]
    NoConnection(ConnectionId),
    #[error("a breaker is a provider's: name no connection")]
    BreakerOfConnection,
    #[error("{done} were reset, then: {source}")]
    Interrupted { done: u32, source: NotDone },
    #[error("{done} were reset, but failed renewals of the token may not be forgotten: {reason}")]
    RetriesKept { done: u32, reason: String },
}

impl Refused {
    /// How much had changed by then; none: it was refused before.
    fn done(&self) -> Option<u32> {
        match self {
            Self::Interrupted { done, .. } | Self::RetriesKept { done, .. } => {
                Some(*done).filter(|done| *done > 0)
            }
            Self::NoProvider(_) | Self::NoConnection(_) | Self::BreakerOfConnection => None,
        }
    }
}

impl Admin {
    /// Resets what is selected, as far as it gets by `deadline`, and writes down who did it.
    pub(crate) async fn reset(
        &self,
        caller: &Caller,
        config: &Config,
        selection: &Selection,
        deadline: Option<Deadline>,
    ) -> Result<Outcome, Refused> {
        let mut progress = Progress {
            count: 0,
            deadline,
            written: BTreeMap::new(),
        };
        let ended = self.reset_selected(config, selection, &mut progress).await;
        // Also what was written before it was interrupted.
        let is_saved = self.checkpoint.save_now(&progress.written).await;
        let outcome = ended.map(|()| Outcome {
            count: progress.count,
            unsaved: !is_saved,
        });
        let changed = match &outcome {
            Ok(outcome) => Some(outcome.count),
            Err(refused) => refused.done(),
        };
        if let Some(count) = changed {
            let summary = format!("{selection} reset, {count} changed");
            self.audit(caller, Operation::Reset, &summary).await;
        }
        outcome
    }

    async fn reset_selected(
        &self,
        config: &Config,
        selection: &Selection,
        progress: &mut Progress,
    ) -> Result<(), Refused> {
        let connections = selected(config, selection)?;
        // Breaker and gate are a provider's; a named connection asks for neither.
        let only = selection.provider.as_ref();
        let providers = config.providers.iter().filter(|(provider, _)| {
            selection.connection.is_none() && only.is_none_or(|only| only == *provider)
        });
        let mut families = BTreeSet::new();
        for (provider, entry) in providers {
            if selection.scope.breakers() {
                self.reset_breaker(provider, progress).await?;
            }
            if selection.scope.cooldowns() {
                self.reset_gate(provider, progress).await?;
                families.extend(entry.policy.egress_family.iter());
            }
        }
        for provider in families {
            self.reset_egress_locks(provider, progress).await?;
        }
        for (provider, connection) in connections {
            if selection.scope.cooldowns() {
                let event = Event::ResetConnection {
                    connection: connection.clone(),
                    terminal_too: selection.connection.is_some(),
                };
                self.reset_value(provider, Some(connection), &event, 1, progress)
                    .await?;
            }
            if selection.scope.lockouts() {
                self.clear_locks(provider, connection, selection.model.as_ref(), progress)
                    .await?;
            }
            if selection.scope.cooldowns() && selection.connection.is_some() {
                let forgotten = self.forget_refresh_failures(connection, progress).await;
                // Where no token is renewed, none is kept from it.
                if let Err(reason) = forgotten
                    && renews_tokens(config, provider)
                {
                    let done = progress.count;
                    return Err(Refused::RetriesKept { done, reason });
                }
            }
        }
        Ok(())
    }

    /// A connection that is named may renew its token again, also an inactive one (`failure-state.md` §3.9). Fails with the
    /// reason why that is not known to be so.
    async fn forget_refresh_failures(
        &self,
        connection: &ConnectionId,
        progress: &mut Progress,
    ) -> Result<(), String> {
        let late = "no answer in time";
        let left = progress.of_a_value().left(local_now());
        if left.is_zero() {
            return Err(late.to_owned());
        }
        let forget = self.durable.forget_refresh_failures(connection);
        let forgotten = tokio::time::timeout(left, forget)
            .await
            .map_err(|_elapsed| late.to_owned())?
            .map_err(|error| error.to_string())?;
        progress.count = progress.count.saturating_add(u32::from(forgotten));
        Ok(())
    }

    async fn reset_breaker(
        &self,
        provider: &ProviderId,
        progress: &mut Progress,
    ) -> Result<(), Refused> {
        let Some(before) = self.view.provider(provider) else {
            // Nothing ever happened there.
            return Ok(());
        };
        // Also a clean breaker begins a new epoch, so that what is under way does not count.
        let weight = u32::from(!before.breaker.is_clean());
        self.reset_value(provider, None, &Event::ResetBreaker, weight, progress)
            .await
    }

    async fn reset_gate(
        &self,
        provider: &ProviderId,
        progress: &mut Progress,
    ) -> Result<(), Refused> {
        let Some(before) = self.view.provider(provider) else {
            return Ok(());
        };
        let weight = u32::from(!before.gate.is_clean());
        self.reset_value(provider, None, &Event::ResetGate, weight, progress)
            .await
    }

    async fn reset_egress_locks(
        &self,
        provider: &ProviderId,
        progress: &mut Progress,
    ) -> Result<(), Refused> {
        let Some(before) = self.view.provider(provider) else {
            return Ok(());
        };
        let weight = u32::from(!before.egress_locks.is_clean());
        self.reset_value(provider, None, &Event::ResetEgressLocks, weight, progress)
            .await
    }

    async fn clear_locks(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
        model: Option<&ModelId>,
        progress: &mut Progress,
    ) -> Result<(), Refused> {
        let Some(before) = self.view.connection(provider, connection) else {
            return Ok(());
        };
        let event = Event::ClearLocks {
            connection: connection.clone(),
            model: model.cloned(),
        };
        self.reset_value(provider, Some(connection), &event, 0, progress)
            .await?;
        let left = self
            .view
            .connection(provider, connection)
            .map_or(0, |state| state.locks.len());
        let cleared = before.locks.len().saturating_sub(left);
        let cleared = u32::try_from(cleared).unwrap_or(u32::MAX);
        progress.count = progress.count.saturating_add(cleared);
        Ok(())
    }

    async fn reset_value(
        &self,
        provider: &ProviderId,
        connection: Option<&ConnectionId>,
        event: &Event,
        weight: u32,
        progress: &mut Progress,
    ) -> Result<(), Refused> {
        let deadline = progress.of_a_value();
        let done = self
            .recorder
            .direct(provider, connection, event, WRITE_LIMIT, deadline)
            .await
            .map_err(|source| Refused::Interrupted {
                done: progress.count,
                source,
            })?;
        if done.applied.changed {
            progress.count = progress.count.saturating_add(weight);
        }
        if !done.entries.is_empty() {
            let shard = Shard::of_provider(provider);
            let written = progress.written.entry(shard).or_default();
            written.extend(done.entries);
        }
        Ok(())
    }
}

/// The connections a selection names.
fn selected<'a>(
    config: &'a Config,
    selection: &Selection,
) -> Result<Vec<(&'a ProviderId, &'a ConnectionId)>, Refused> {
    if let Some(provider) = &selection.provider
        && config.provider(provider).is_none()
    {
        return Err(Refused::NoProvider(provider.clone()));
    }
    if let Some(connection) = &selection.connection {
        if selection.scope == Scope::Breakers {
            return Err(Refused::BreakerOfConnection);
        }
        let known = config
            .connection(connection)
            .filter(|known| {
                selection
                    .provider
                    .as_ref()
                    .is_none_or(|it| *it == known.provider)
            })
            .ok_or_else(|| Refused::NoConnection(connection.clone()))?;
        return Ok(vec![(&known.provider, &known.id)]);
    }
    Ok(config
        .connections
        .values()
        .filter(|known| {
            selection
                .provider
                .as_ref()
                .is_none_or(|it| *it == known.provider)
        })
        .map(|known| (&known.provider, &known.id))
        .collect())
}
