//! The real control plane.

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
    ManagementCall, Observation, PermitWait, PermitWaited, PlaneClient, Snapshot, Success,
};

use super::ControlPort;

impl ControlPort for PlaneClient {
    fn next_attempt(&self) -> AttemptId {
        Self::next_attempt(self)
    }

    fn next_unasked_attempt(&self) -> AttemptId {
        Self::next_unasked_attempt(self)
    }

    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        Self::snapshot(self)
    }

    fn now(&self) -> Timestamp {
        Self::now(self)
    }

    async fn decide(&self, ask: Ask) -> Answer {
        Self::decide(self, ask).await
    }

    async fn await_permit(&self, attempt: AttemptId, wait: &PermitWait) -> PermitWaited {
        Self::await_permit(self, attempt, wait).await
    }

    async fn lease(&self, asked: &Lifecycle, key: &KeyId) -> Result<LeaseAnswer, LeaseError> {
        Self::lease(self, asked, key).await
    }

    async fn fence(
        &self,
        lease: LeaseName,
        key: &KeyId,
        connection: &ConnectionId,
    ) -> Result<Leased, LeaseError> {
        Self::fence(self, lease, key, connection).await
    }

    async fn manage(&self, call: ManagementCall) -> Option<ManagementAnswer> {
        Self::manage(self, call).await
    }

    fn availability(
        &self,
        facts: &RequestFacts,
        egress: Option<&EgressId>,
    ) -> Option<ModelAvailability> {
        Self::availability(self, facts, egress)
    }

    async fn admit(&self, ask: &AdmissionAsk) -> Admission {
        Self::admit(self, ask).await
    }

    fn learn(&self, lesson: &Lesson) {
        Self::learn(self, lesson);
    }

    fn is_learned(&self, connection: &ConnectionId, model: &ModelId) -> bool {
        Self::is_learned(self, connection, model)
    }

    fn report(&self, report: AttemptOutcome, urgent: bool) {
        Self::report(self, report, urgent);
    }

    fn opens(&self, open: OpenAttempt) {
        Self::opens(self, open);
    }

    fn record_usage(&self, record: UsageRecord) {
        Self::record_usage(self, record);
    }

    fn observe(&self, observation: Observation) {
        Self::observe(self, observation);
    }

    async fn fetch_handoff(&self, name: &HandoffName) -> Option<(Note, ConnectionId)> {
        Self::fetch_handoff(self, name).await
    }

    async fn begin_handoff(&self, name: &HandoffName, success: &Success) -> Option<Terms> {
        Self::begin_handoff(self, name, success).await
    }

    async fn save_handoff(
        &self,
        name: &HandoffName,
        note: &Note,
        made_on: &ConnectionId,
        expires_at: Timestamp,
    ) -> bool {
        Self::save_handoff(self, name, note, made_on, expires_at).await
    }

    fn abandon(&self, attempt: AttemptId, provider: Option<ProviderId>) {
        Self::abandon(self, attempt, provider);
    }

    fn release(&self, attempt: AttemptId) {
        Self::release(self, attempt);
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn live_data_planes(&self) -> u32 {
        Self::live_data_planes(self)
    }
}
