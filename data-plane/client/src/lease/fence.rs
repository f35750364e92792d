//! The fence before each attempt under a lease, and the watch over what is in flight (decision 42).
//!
//! The authority is asked immediately before something is sent, after every wait. When it does not answer in time, what
//! it granted before may still let the attempt start. From then on its registration is renewed as long as anything is in
//! flight, and whatever comes to its horizon is cut. A question goes on when its request is dropped: only after its
//! answer it is known that nothing is registered any more.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::{ConnectionId, KeyId};
use tidegate_core::lease::{ActivityName, Grant, LeaseError, LeaseName};
use tidegate_core::routing::View as _;
use tidegate_proto::lease::v1 as proto;
use tidegate_wire::WireError;
use tidegate_wire::lease::{grant_from_proto, refusal_from_proto, registration_to_proto};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::leased::Leased;
use super::presences::{Asking, Place, Shown};
use crate::PlaneClient;
use crate::ask::Persist;
use crate::client::Inner;

/// Questions for one attempt: one more when an answer comes too late to start by it, or when the lease was refused to
/// another attempt meanwhile.
const MAX_QUESTIONS: u32 = 2;
/// While something is in flight the clock is looked at this often: a machine that slept does not fire its timers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the authority says to an attempt.
enum Said {
    Granted(Grant),
    Refused(LeaseError),
    /// The question was overtaken.
    Superseded,
}

impl PlaneClient {
    /// Lets an attempt on this connection pass, under this lease and with this key. Must be asked immediately before it
    /// is sent, and again for each retry; it takes at most [`crate::Limits::lease`]. Dropped meanwhile, nothing is left
    /// registered.
    ///
    /// # Errors
    /// Why it must not be sent; [`LeaseError::ServiceUnavailable`] when nobody answers and nothing that was granted before
    /// allows it.
    pub async fn fence(
        &self,
        lease: LeaseName,
        key: &KeyId,
        connection: &ConnectionId,
    ) -> Result<Leased, LeaseError> {
        let place = Place {
            lease,
            connection: connection.clone(),
        };
        let asking = self.inner.leases.ask(place);
        let asking = asking.ok_or(LeaseError::ServiceUnavailable)?;
        let (sender, answer) = oneshot::channel();
        let (inner, key) = (Arc::clone(&self.inner), key.clone());
        self.inner.tracker.spawn(async move {
            let passed = inner.pass(asking, &key).await;
            // Nobody may be there any more: what could have been sent then ends here.
            drop(sender.send(passed));
        });
        let unanswered = |_| Err(LeaseError::ServiceUnavailable);
        answer.await.unwrap_or_else(unanswered)
    }
}

impl Inner {
    async fn pass(&self, mut asking: Asking, key: &KeyId) -> Result<Leased, LeaseError> {
        let deadline = Instant::now() + self.limits.lease;
        for _ in 0..MAX_QUESTIONS {
            let asked_at = self.leases.now();
            match self.ask_fence(&asking, key, deadline).await {
                Some(Said::Granted(grant)) => {
                    asking.granted(key, asked_at, grant);
                    match asking.start(key) {
                        Ok(leased) => return Ok(leased),
                        Err(_) if self.leases.is_closed() => {
                            return Err(LeaseError::ServiceUnavailable);
                        }
                        Err(not_yet) => asking = not_yet,
                    }
                }
                Some(Said::Refused(error)) => {
                    asking.refused(key, error);
                    return Err(error);
                }
                Some(Said::Superseded) => {}
                None => {
                    let leased = asking.start(key);
                    if leased.is_ok() {
                        self.metrics.lease_fences_unanswered.inc();
                    }
                    return leased.map_err(|_| LeaseError::ServiceUnavailable);
                }
            }
        }
        // It was granted twice and not for long enough: the lease is as good as over.
        Err(LeaseError::FenceStale)
    }

    /// `None` without an answer in time that means anything.
    async fn ask_fence(&self, asking: &Asking, key: &KeyId, deadline: Instant) -> Option<Said> {
        let request = proto::FenceRequest {
            registration: Some(registration_to_proto(&asking.registration())),
            key_id: key.to_string(),
        };
        asking.sends();
        let limit = deadline.saturating_duration_since(Instant::now());
        let persist = if asking.may_start(key) {
            Persist::Once
        } else {
            Persist::Again
        };
        let answer = self.ask_leases(limit, persist, |mut client| {
            let request = request.clone();
            async move { client.fence(request).await }
        });
        match said(answer.await?) {
            // The authority's store is away, as whoever asked for it says.
            Ok(Said::Refused(LeaseError::ServiceUnavailable)) => None,
            Ok(said) => Some(said),
            Err(error) => {
                tracing::warn!(%error, "the answer of the fence is not understood");
                None
            }
        }
    }

    /// Renews what is in flight and cuts what has come to its horizon, until told to stop.
    pub(crate) async fn watch_leases(self: Arc<Self>) {
        loop {
            self.leases.hear(|connection| self.shown_lease(connection));
            let due = self.leases.due();
            for (place, number) in due.renewals {
                let inner = Arc::clone(&self);
                self.tracker
                    .spawn(async move { inner.renew(place, number).await });
            }
            let looks = async {
                match due.next {
                    Some(at) => {
                        let ahead = Duration::from_millis(at.remaining_ms(self.leases.now()));
                        sleep(ahead.min(LOOK_EVERY)).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return self.leases.close(),
                () = self.leases.changed.notified() => {}
                () = looks => {}
            }
        }
    }

    fn shown_lease(&self, connection: &ConnectionId) -> Option<Shown> {
        let snapshot = self.snapshot.load();
        let provider = &snapshot.as_ref()?.config.connection(connection)?.provider;
        let state = self.view.connection(provider, connection)?;
        let lease = state.lease.as_ref()?;
        Some(Shown {
            lease: lease.lease,
            has_ended: lease.ended_at.is_some(),
        })
    }

    async fn renew(&self, place: Place, number: u64) {
        let registration = self.leases.registration(&place, number);
        let asked_at = self.leases.now();
        let answer = self.ask_renewal(&registration).await;
        self.leases.renewed(&place, number, asked_at, answer);
    }

    async fn ask_renewal(&self, registration: &ActivityName) -> Option<Option<Grant>> {
        let request = proto::RenewActivityRequest {
            registration: Some(registration_to_proto(registration)),
        };
        // It is tried anew in a second.
        let answer = self.ask_leases(self.limits.lease, Persist::Once, |mut client| {
            let request = request.clone();
            async move { client.renew_activity(request).await }
        });
        Some(answer.await?.grant.map(grant_from_proto))
    }
}

fn said(response: proto::FenceResponse) -> Result<Said, WireError> {
    match response.answer.ok_or(WireError::Missing("answer"))? {
        proto::fence_response::Answer::Grant(grant) => Ok(Said::Granted(grant_from_proto(grant))),
        proto::fence_response::Answer::Refused(refused) => {
            Ok(Said::Refused(refusal_from_proto(&refused)))
        }
        proto::fence_response::Answer::Superseded(_) => Ok(Said::Superseded),
    }
}
