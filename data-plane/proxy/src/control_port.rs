//! What the phases of a request need from the control plane. `PlaneClient` is it in production; component
//! tests write their own.
//!
//! **Stance:** no method fails and none waits beyond its documented limit: whoever implements this decides
//! locally when it must.

mod plane_client;

use std::future::Future;
use std::sync::Arc;

use tidegate_core::ids::{AttemptId, ConnectionId, EgressId, KeyId, ModelId, ProviderId};
use tidegate_core::lease::{LeaseError, LeaseName, Lifecycle};
use tidegate_core::outcome::AttemptOutcome;
use tidegate_core::routing::relay::{HandoffName, Note, Terms};
use tidegate_core::routing::{ModelAvailability, RequestFacts};
use tidegate_core::time::Timestamp;
use tidegate_core::usage::{OpenAttempt, UsageRecord};
use tidegate_plane_client::{
    Admission, AdmissionAsk, Answer, Ask, LeaseAnswer, Leased, Lesson, ManagementAnswer,
    ManagementCall, Observation, PermitWait, PermitWaited, Snapshot, Success,
};

/// The control plane as one request sees it.
pub trait ControlPort: Send + Sync + 'static {
    /// The id of the next attempt; each is handed out once.
    fn next_attempt(&self) -> AttemptId;
    /// The id of an attempt that nobody is asked about and nothing is granted to: a request goes once more to where it
    /// went.
    fn next_unasked_attempt(&self) -> AttemptId;
    /// The newest configuration, if there ever was one.
    fn snapshot(&self) -> Option<Arc<Snapshot>>;
    /// The store's time as known here.
    fn now(&self) -> Timestamp;
    /// The next step of a request, after at most 50 ms unless the request is managed (decision 54).
    /// Dropped before its answer, it gives back by itself what it may still be granted.
    fn decide(&self, ask: Ask) -> impl Future<Output = Answer> + Send;
    /// Waits for a permit with an attempt that nothing else was asked with. Dropped, it gives back what it may still be
    /// granted.
    fn await_permit(
        &self,
        attempt: AttemptId,
        wait: &PermitWait,
    ) -> impl Future<Output = PermitWaited> + Send;
    /// What a client wants of its lease.
    fn lease(
        &self,
        asked: &Lifecycle,
        key: &KeyId,
    ) -> impl Future<Output = Result<LeaseAnswer, LeaseError>> + Send;
    /// Lets an attempt under a lease pass; it is sent at once then. What is returned is dropped when it has ended.
    fn fence(
        &self,
        lease: LeaseName,
        key: &KeyId,
        connection: &ConnectionId,
    ) -> impl Future<Output = Result<Leased, LeaseError>> + Send;
    /// Has a request to one of the contract's management endpoints answered; `None` when no control plane does.
    fn manage(&self, call: ManagementCall)
    -> impl Future<Output = Option<ManagementAnswer>> + Send;
    /// Whether what a request that leaves under this identity asks for can be had, as far as it is known here; `None`
    /// without a configuration.
    fn availability(
        &self,
        facts: &RequestFacts,
        egress: Option<&EgressId>,
    ) -> Option<ModelAvailability>;
    /// Whether a request may go now to a connection with a limited pace. Dropped, it gives back what it may still be
    /// granted.
    fn admit(&self, ask: &AdmissionAsk) -> impl Future<Output = Admission> + Send;
    /// Takes what an answer told of its upstream's limits.
    fn learn(&self, lesson: &Lesson);
    /// Whether requests to this model on this connection ask before they go, whatever an operator set.
    fn is_learned(&self, connection: &ConnectionId, model: &ModelId) -> bool;
    /// Queues a report; an urgent one is sent at once.
    fn report(&self, report: AttemptOutcome, urgent: bool);
    /// The answer of an attempt begins, so a usage record of it is due.
    fn opens(&self, open: OpenAttempt);
    /// Queues a usage record: the attempt has ended.
    fn record_usage(&self, record: UsageRecord);
    /// Takes what strategies want to know of (decisions 37 and 39).
    fn observe(&self, observation: Observation);
    /// The note that follows a conversation, and the connection that it was made on; `None` when it is not here as
    /// soon as a decision would be.
    fn fetch_handoff(
        &self,
        name: &HandoffName,
    ) -> impl Future<Output = Option<(Note, ConnectionId)>> + Send;
    /// Whether a note is to be made after a success, and how.
    fn begin_handoff(
        &self,
        name: &HandoffName,
        success: &Success,
    ) -> impl Future<Output = Option<Terms>> + Send;
    /// Hands a note over; whether it is kept.
    fn save_handoff(
        &self,
        name: &HandoffName,
        note: &Note,
        made_on: &ConnectionId,
        expires_at: Timestamp,
    ) -> impl Future<Output = bool> + Send;
    /// An attempt is not sent; gives back the probe of `provider` that it was granted, if any is known.
    fn abandon(&self, attempt: AttemptId, provider: Option<ProviderId>);
    /// The body of an attempt has ended, or a later attempt took its place: gives back its permit, if it holds one.
    fn release(&self, attempt: AttemptId);
    /// Requests can be served (decision 55).
    fn is_ready(&self) -> bool;
    /// How many data planes live, this one included; at least 1.
    fn live_data_planes(&self) -> u32;
}

impl<T: ControlPort> ControlPort for Arc<T> {
    fn next_attempt(&self) -> AttemptId {
        T::next_attempt(self)
    }

    fn next_unasked_attempt(&self) -> AttemptId {
        T::next_unasked_attempt(self)
    }

    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        T::snapshot(self)
    }

    fn now(&self) -> Timestamp {
        T::now(self)
    }

    fn decide(&self, ask: Ask) -> impl Future<Output = Answer> + Send {
        T::decide(self, ask)
    }

    fn await_permit(
        &self,
        attempt: AttemptId,
        wait: &PermitWait,
    ) -> impl Future<Output = PermitWaited> + Send {
        T::await_permit(self, attempt, wait)
    }

    fn lease(
        &self,
        asked: &Lifecycle,
        key: &KeyId,
    ) -> impl Future<Output = Result<LeaseAnswer, LeaseError>> + Send {
        T::lease(self, asked, key)
    }

    fn fence(
        &self,
        lease: LeaseName,
        key: &KeyId,
        connection: &ConnectionId,
    ) -> impl Future<Output = Result<Leased, LeaseError>> + Send {
        T::fence(self, lease, key, connection)
    }

    fn manage(
        &self,
        call: ManagementCall,
    ) -> impl Future<Output = Option<ManagementAnswer>> + Send {
        T::manage(self, call)
    }

    fn availability(
        &self,
        facts: &RequestFacts,
        egress: Option<&EgressId>,
    ) -> Option<ModelAvailability> {
        T::availability(self, facts, egress)
    }

    fn admit(&self, ask: &AdmissionAsk) -> impl Future<Output = Admission> + Send {
        T::admit(self, ask)
    }

    fn learn(&self, lesson: &Lesson) {
        T::learn(self, lesson);
    }

    fn is_learned(&self, connection: &ConnectionId, model: &ModelId) -> bool {
        T::is_learned(self, connection, model)
    }

    fn report(&self, report: AttemptOutcome, urgent: bool) {
        T::report(self, report, urgent);
    }

    fn opens(&self, open: OpenAttempt) {
        T::opens(self, open);
    }

    fn record_usage(&self, record: UsageRecord) {
        T::record_usage(self, record);
    }

    fn observe(&self, observation: Observation) {
        T::observe(self, observation);
    }

    fn fetch_handoff(
        &self,
        name: &HandoffName,
    ) -> impl Future<Output = Option<(Note, ConnectionId)>> + Send {
        T::fetch_handoff(self, name)
    }

    fn begin_handoff(
        &self,
        name: &HandoffName,
        success: &Success,
    ) -> impl Future<Output = Option<Terms>> + Send {
        T::begin_handoff(self, name, success)
    }

    fn save_handoff(
        &self,
        name: &HandoffName,
        note: &Note,
        made_on: &ConnectionId,
        expires_at: Timestamp,
    ) -> impl Future<Output = bool> + Send {
        T::save_handoff(self, name, note, made_on, expires_at)
    }

    fn abandon(&self, attempt: AttemptId, provider: Option<ProviderId>) {
        T::abandon(self, attempt, provider);
    }

    fn release(&self, attempt: AttemptId) {
        T::release(self, attempt);
    }

    fn is_ready(&self) -> bool {
        T::is_ready(self)
    }

    fn live_data_planes(&self) -> u32 {
        T::live_data_planes(self)
    }
}
