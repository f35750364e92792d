//! What this data plane knows of its own failures before the control plane does (`architecture.md` §4.7).
//!
//! For each provider with something to remember there is a private copy of its values: the view's, with our
//! reports that are not acknowledged applied to it by the same rules. Only local decisions look at it. When the
//! view of the provider moves, the copy is made again from it and from what is still not acknowledged; when
//! everything is acknowledged, the copy stays for [`LINGER`], until the view must have caught up, and goes.
//! So a data plane that is cut off keeps a breaker of its own, with one probe of its own, and forgets it once
//! the fleet has taken over.
//!
//! Applying a failure twice, here and in a view that holds it already, changes nothing that matters: the
//! episode rule and the de-duplication marks see to that (decisions 9 and 10).
//!
//! **Marks.** A change made here has no version of the store. It gets one of our own, later than all of the
//! store's, that counts attempts: `(MAX, newest attempt number at the change)`. An attempt that saw the whole
//! base is compared as if decided on `(MAX, its number - 1)`: it saw the changes that were made before it was
//! numbered. None of this leaves the process; attempts carry the store's versions only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::config::Config;
use tidegate_core::ids::{AttemptId, ConnectionId, ProviderId, Shard};
use tidegate_core::outcome::{AttemptOutcome, Outcome};
use tidegate_core::routing::View;
use tidegate_core::state::apply::{Subject, apply};
use tidegate_core::state::{ConnectionState, Event, ProviderState};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tokio::time::Instant;

use crate::view::LocalView;

/// How long a copy outlives the acknowledgement of everything in it.
const LINGER: Duration = Duration::from_secs(2);
/// What happened longer ago than this is no longer applied again while the view is followed, in ms: a report of
/// that age was acknowledged or dropped.
const MAX_PENDING_AGE_MS: u64 = 300_000;
/// Most reports of a provider that are applied again when its view moves; older ones are left out.
const MAX_PENDING: usize = 256;
/// The incarnation of our own marks: later than every one of a store.
const OWN_INCARNATION: u64 = u64::MAX;

/// What an event is applied with.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    /// Configuration in force.
    pub(crate) config: &'a Config,
    /// The view as the watch brought it.
    pub(crate) view: &'a LocalView,
    /// The store's time.
    pub(crate) now: Timestamp,
    /// The newest attempt number handed out.
    pub(crate) newest_attempt: u64,
}

/// The copies.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    copies: Mutex<BTreeMap<ProviderId, Copy>>,
}

#[derive(Debug)]
struct Copy {
    /// The newest write in the view of the provider when the copy was made.
    base: Version,
    provider: Arc<ProviderState>,
    /// Connections that something happened to; the view's stand for the others.
    connections: BTreeMap<ConnectionId, Arc<ConnectionState>>,
    /// What is applied, in order, as far as it is not acknowledged.
    pending: VecDeque<Pending>,
    settled_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Pending {
    event: Event,
    at: Timestamp,
    newest_attempt: u64,
}

impl Shadow {
    /// Remembers a report until [`Shadow::settled`]. Successes where all is well leave no trace.
    pub(crate) fn record(&self, report: &AttemptOutcome, scene: Scene<'_>) {
        let provider = &report.attempt.provider;
        let mut copies = self.copies.lock();
        let copy = match copies.get_mut(provider) {
            Some(copy) => copy,
            None if is_without_effect(report, scene.view) => return,
            None => copies
                .entry(provider.clone())
                .or_insert_with(|| Copy::of(provider, scene.view)),
        };
        copy.catch_up(provider, scene);
        copy.settled_at = None;
        let event = Event::Outcome(Box::new(report.clone()));
        copy.apply(provider, &event, scene, scene.newest_attempt);
        copy.remember(event, scene);
    }

    /// Gives the probe to an attempt if the breaker is half-open and no probe is out, as far as is known here.
    pub(crate) fn take_probe(
        &self,
        provider: &ProviderId,
        attempt: AttemptId,
        scene: Scene<'_>,
    ) -> bool {
        let mut copies = self.copies.lock();
        let copy = copies
            .entry(provider.clone())
            .or_insert_with(|| Copy::of(provider, scene.view));
        copy.catch_up(provider, scene);
        let event = Event::TakeProbe { attempt };
        let granted = copy.apply(provider, &event, scene, scene.newest_attempt);
        if granted {
            copy.remember(event, scene);
            copy.settled_at = None;
        }
        granted
    }

    /// Takes the probe back from an attempt that will not be sent, if it got it here.
    pub(crate) fn return_probe(
        &self,
        provider: &ProviderId,
        attempt: AttemptId,
        scene: Scene<'_>,
        now: Instant,
    ) {
        let mut copies = self.copies.lock();
        if let Some(copy) = copies.get_mut(provider) {
            let event = Event::ReturnProbe { attempt };
            copy.apply(provider, &event, scene, scene.newest_attempt);
            copy.remember(event, scene);
            // Without a report no acknowledgement will settle the copy.
            let is_report = |pending: &Pending| matches!(pending.event, Event::Outcome(_));
            if !copy.pending.iter().any(is_report) {
                copy.settled_at = Some(now);
            }
        }
    }

    /// Every report of the provider is acknowledged.
    pub(crate) fn settled(&self, provider: &ProviderId, now: Instant) {
        let mut copies = self.copies.lock();
        if let Some(copy) = copies.get_mut(provider) {
            copy.pending.clear();
            copy.settled_at = Some(now);
        }
    }

    /// Brings all copies up to the view and lets go of those that are no longer needed. `following` says
    /// whether the view still moves: if not, copies are all there is.
    pub(crate) fn refresh(&self, scene: Scene<'_>, now: Instant, following: bool) {
        let mut copies = self.copies.lock();
        copies.retain(|provider, copy| {
            if following {
                copy.forget_old(scene.now, now);
            }
            let over = copy
                .settled_at
                .is_some_and(|at| now.saturating_duration_since(at) >= LINGER);
            if scene.config.provider(provider).is_none() || (over && following) {
                return false;
            }
            copy.catch_up(provider, scene);
            true
        });
    }

    /// The view with the copies over it.
    pub(crate) fn over<'a>(&'a self, view: &'a LocalView) -> Overlay<'a> {
        Overlay { shadow: self, view }
    }
}

fn is_without_effect(report: &AttemptOutcome, view: &LocalView) -> bool {
    match report.outcome {
        Outcome::Local(_) | Outcome::ClientAbort => true,
        Outcome::Success => {
            let attempt = &report.attempt;
            view.provider(&attempt.provider)
                .is_none_or(|state| state.is_clean())
                && view
                    .connection(&attempt.provider, &attempt.connection)
                    .is_none_or(|state| state.is_clean())
        }
        Outcome::Response(_) | Outcome::Transport(_) | Outcome::Stream(_) => false,
    }
}

impl Copy {
    fn of(provider: &ProviderId, view: &LocalView) -> Self {
        Self {
            base: view.newest_of(provider),
            provider: view.provider(provider).unwrap_or_default(),
            connections: BTreeMap::new(),
            pending: VecDeque::new(),
            settled_at: None,
        }
    }

    /// Starts over from the view if it moved.
    fn catch_up(&mut self, provider: &ProviderId, scene: Scene<'_>) {
        if scene.view.newest_of(provider) == self.base {
            return;
        }
        let mut fresh = Self::of(provider, scene.view);
        for pending in &self.pending {
            fresh.apply(provider, &pending.event, scene, pending.newest_attempt);
        }
        fresh.pending = std::mem::take(&mut self.pending);
        fresh.settled_at = self.settled_at;
        *self = fresh;
    }

    fn remember(&mut self, event: Event, scene: Scene<'_>) {
        if self.pending.len() >= MAX_PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back(Pending {
            event,
            at: scene.now,
            newest_attempt: scene.newest_attempt,
        });
    }

    fn forget_old(&mut self, now: Timestamp, moment: Instant) {
        while let Some(oldest) = self.pending.front()
            && now.ms_since(oldest.at) > MAX_PENDING_AGE_MS
        {
            self.pending.pop_front();
        }
        if self.pending.is_empty() {
            self.settled_at.get_or_insert(moment);
        }
    }

    /// Applies an event; says whether it granted a probe.
    fn apply(
        &mut self,
        provider: &ProviderId,
        event: &Event,
        scene: Scene<'_>,
        newest_attempt: u64,
    ) -> bool {
        let Some(entry) = scene.config.provider(provider) else {
            return false;
        };
        let event = self.in_own_versions(event);
        let connection = match &event {
            Event::Outcome(outcome) => scene.config.connection(&outcome.attempt.connection),
            Event::TakeProbe { .. }
            | Event::RenewProbe { .. }
            | Event::ReturnProbe { .. }
            | Event::ResetBreaker
            | Event::ResetGate
            | Event::ResetEgressLocks
            | Event::ResetConnection { .. }
            | Event::ClearLocks { .. }
            | Event::CredentialReplaced { .. }
            | Event::TokenRefreshed { .. }
            | Event::LeaseShown { .. } => None,
        };
        let written_at = Version::new(OWN_INCARNATION, newest_attempt);
        let provider_state = Arc::make_mut(&mut self.provider);
        let mut connection_state = connection.map(|connection| {
            let state = self
                .connections
                .entry(connection.id.clone())
                .or_insert_with(|| {
                    scene
                        .view
                        .connection(provider, &connection.id)
                        .unwrap_or_default()
                });
            (connection.as_ref(), Arc::make_mut(state))
        });
        let applied = apply(
            Subject {
                provider: &mut *provider_state,
                connection: connection_state
                    .as_mut()
                    .map(|(config, state)| (*config, &mut **state)),
            },
            &event,
            scene.now,
            &entry.policy,
            provider,
        );
        provider_state.resolve_marks(written_at);
        if let Some((_, state)) = connection_state {
            state.resolve_marks(written_at);
        }
        applied.probe_granted
    }

    /// The event with its attempt in the versions of our own marks, if it saw all of the base.
    fn in_own_versions(&self, event: &Event) -> Event {
        let mut event = event.clone();
        if let Event::Outcome(outcome) = &mut event {
            let attempt = &mut outcome.attempt;
            if attempt.decided_on >= self.base {
                let own = Version::new(OWN_INCARNATION, attempt.id.number.saturating_sub(1));
                attempt.decided_on = own;
                attempt.epoch = own;
            }
        }
        event
    }
}

/// The hot state as a local decision sees it.
#[derive(Debug)]
pub(crate) struct Overlay<'a> {
    shadow: &'a Shadow,
    view: &'a LocalView,
}

impl View for Overlay<'_> {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        if let Some(copy) = self.shadow.copies.lock().get(provider) {
            return Some(Arc::clone(&copy.provider));
        }
        self.view.provider(provider)
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        if let Some(copy) = self.shadow.copies.lock().get(provider)
            && let Some(state) = copy.connections.get(connection)
        {
            return Some(Arc::clone(state));
        }
        self.view.connection(provider, connection)
    }

    fn version(&self, shard: Shard) -> Version {
        self.view.version(shard)
    }
}

#[cfg(test)]
mod tests;
