//! Taking and returning the half-open probe.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use tidegate_core::ids::{AttemptId, ProviderId};
use tidegate_core::routing::View as _;
use tidegate_core::state::{Event, ProviderState};
use tidegate_store::hot::HotStoreError;

use crate::clock::local_now;
use crate::config::Current;
use crate::hot::WRITE_LIMIT;
use crate::record::direct::NotDone;
use crate::telemetry::metrics::ProbeGrant;

use super::Decider;

/// Limit of giving a probe back; nobody waits for it but the data plane's own bookkeeping.
const RETURN_LIMIT: Duration = Duration::from_millis(500);

/// Limit of renewing all probes of a data plane.
const RENEW_LIMIT: Duration = Duration::from_secs(1);
/// Probes that are renewed at once.
const RENEWED_AT_ONCE: usize = 16;

/// What became of a wish for the probe.
#[derive(Debug)]
pub(super) enum Probe {
    /// The attempt holds it.
    Taken,
    /// It does not; the provider is to be seen like this.
    Refused(Arc<ProviderState>),
}

impl Decider {
    /// Takes the probe for an attempt, in the fleet or, while the store is away, in this replica.
    pub(super) async fn take_probe(
        self: &Arc<Self>,
        current: &Current,
        provider: &ProviderId,
        attempt: AttemptId,
        deadline: Instant,
    ) -> Probe {
        let event = Event::TakeProbe { attempt };
        let done = if self.hot.is_away() {
            Err(None)
        } else {
            self.recorder
                .direct(provider, None, &event, self.limits.store_call, deadline)
                .await
                .map_err(Some)
        };
        match done {
            Ok(done) if done.applied.probe_granted => {
                self.metrics.probe(ProbeGrant::Shared);
                Probe::Taken
            }
            Ok(_) => self.refused(current, provider),
            // The store is there and says no in its own way: somebody else is at it.
            Err(Some(NotDone::Contended | NotDone::NewerSchema | NotDone::Unconfigured)) => {
                self.refused(current, provider)
            }
            // Slow once is not away: while the store answers others, a probe of this replica's own could be a second
            // one. The call may still have taken it.
            Err(Some(NotDone::Store(HotStoreError::Timeout))) if !self.hot.is_away() => {
                self.give_back_afterwards(provider.clone(), attempt);
                self.refused(current, provider)
            }
            Err(None | Some(NotDone::Store(_) | NotDone::Restoring)) => {
                // A call without an answer may have taken it for this very attempt, which changes nothing here.
                let applied = self.recorder.apply_locally(provider, None, &event);
                if applied.probe_granted {
                    self.metrics.probe(ProbeGrant::Local);
                    Probe::Taken
                } else {
                    self.refused(current, provider)
                }
            }
        }
    }

    fn give_back_afterwards(self: &Arc<Self>, provider: ProviderId, attempt: AttemptId) {
        let decider = Arc::clone(self);
        self.afterwards.spawn(async move {
            // What cannot be given back expires.
            if let Err(error) = decider.abandon(attempt, Some(provider)).await {
                tracing::debug!(%attempt, %error, "a probe that may have been taken was not given back");
            }
        });
    }

    fn refused(&self, current: &Current, provider: &ProviderId) -> Probe {
        self.metrics.probe(ProbeGrant::Refused);
        Probe::Refused(self.probe_out(current, provider))
    }

    /// The provider as a decision must see it that did not get the probe: as it is now, and if that would still
    /// admit, with its probe out.
    pub(super) fn probe_out(&self, current: &Current, provider: &ProviderId) -> Arc<ProviderState> {
        let now = self.clock.now();
        let mut state = self
            .view
            .provider(provider)
            .map_or_else(ProviderState::default, Arc::unwrap_or_clone);
        if let Some(entry) = current.config.provider(provider) {
            state.breaker.withhold_probe(now, &entry.policy.breaker);
        }
        Arc::new(state)
    }

    /// Lets the probes of attempts that are under way last; `false` when that could not be written for all that are still
    /// held. A replica that does not know of one yet leaves it to the next message, long before the probe ends.
    pub(crate) async fn renew_probes(&self, probes: Vec<(ProviderId, AttemptId)>) -> bool {
        let deadline = local_now() + RENEW_LIMIT;
        let renewals = probes.into_iter().map(|(provider, attempt)| async move {
            let event = Event::RenewProbe { attempt };
            self.recorder.apply_locally_if_overlaid(&provider, &event);
            let renewed = self
                .recorder
                .direct(&provider, None, &event, WRITE_LIMIT, deadline);
            match renewed.await {
                Ok(_) => true,
                Err(error) => {
                    tracing::debug!(%attempt, %error, "a probe was not renewed");
                    false
                }
            }
        });
        let mut renewals = futures::stream::iter(renewals).buffer_unordered(RENEWED_AT_ONCE);
        let mut all = true;
        while let Some(renewed) = renewals.next().await {
            all &= renewed;
        }
        all
    }

    /// Gives back the probe that an attempt may hold. A data plane that never got the answer to its question does not
    /// know the provider; then it is the one whose probe the attempt holds, if this replica knows of one.
    pub(crate) async fn abandon(
        &self,
        attempt: AttemptId,
        provider: Option<ProviderId>,
    ) -> Result<(), NotDone> {
        let Some(provider) = provider.or_else(|| self.view.probed_by(attempt)) else {
            return Ok(());
        };
        let provider = &provider;
        let event = Event::ReturnProbe { attempt };
        let deadline = local_now() + RETURN_LIMIT;
        if !self.recorder.shows_probe(provider, attempt) {
            // Another replica may have granted it a moment ago.
            self.recorder.catch_up_with_probe(provider, attempt).await?;
        }
        // Also in the overlay, where the probe may be one of this replica's own.
        self.recorder.apply_locally_if_overlaid(provider, &event);
        self.recorder
            .direct(provider, None, &event, WRITE_LIMIT, deadline)
            .await
            .map(|_done| ())
    }
}
