//! Notes that follow conversations to another account: asked for, announced and handed over, each within a limit.
//!
//! **Stance:** fail-open. Without an answer there is no note. Nothing is queued; a note that was made is offered a few
//! times, since it cost a request.

use std::time::Duration;

use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::relay::{HandoffName, Note, Terms};
use tidegate_core::time::Timestamp;
use tidegate_proto::routing::v1 as proto;
use tidegate_proto::routing::v1::handoff_service_client::HandoffServiceClient;
use tidegate_wire as wire;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Response, Status};

use crate::PlaneClient;
use crate::endpoint::PlaneChannel;
use crate::port::Success;
use crate::replicas::Asked;

/// How long a call may take that no request waits for, other replicas included.
const LIMIT: Duration = Duration::from_secs(2);
/// How often a note is offered, and the pause in between.
const OFFERS: u32 = 4;
const OFFER_PAUSE: Duration = Duration::from_millis(500);

impl PlaneClient {
    /// The note that stands, and the connection that it was made on. Takes at most as long as a decision
    /// ([`crate::Limits::decide`]); without an answer by then there is none. While answers about notes or decisions do
    /// not come, nobody is asked, so that no request waits in vain.
    pub async fn fetch_handoff(&self, name: &HandoffName) -> Option<(Note, ConnectionId)> {
        let request = proto::FetchHandoffRequest {
            name: Some(wire::handoff::name_to_proto(name)),
        };
        let gate = &self.inner.gate;
        if !gate.admits_note(Instant::now()) {
            return None;
        }
        let limit = self.inner.limits.decide;
        let answer = self
            .ask_handoffs(limit, |mut client| {
                let request = request.clone();
                async move { client.fetch_handoff(request).await }
            })
            .await;
        gate.looked_up_note(answer.is_some(), Instant::now());
        let answer = answer?;
        // Unset means that there is none.
        answer.note.as_ref()?;
        let note = wire::handoff::note_from_proto(answer.note);
        let connection = ConnectionId::new(&answer.connection);
        match (note, connection) {
            (Ok(note), Ok(connection)) => Some((note, connection)),
            (Err(error), _) => {
                tracing::warn!(%error, "a note is not understood");
                None
            }
            (_, Err(error)) => {
                tracing::warn!(%error, "the connection of a note is not understood");
                None
            }
        }
    }

    /// Whether a note is to be made after a success, and how; `None` without an answer, too.
    pub async fn begin_handoff(&self, name: &HandoffName, success: &Success) -> Option<Terms> {
        let request = proto::BeginHandoffRequest {
            name: Some(wire::handoff::name_to_proto(name)),
            provider: success.provider.to_string(),
            connection: success.connection.to_string(),
            model: success.model.to_string(),
            quota: success.quota.as_ref().map(wire::quota::to_proto),
        };
        let answer = self
            .ask_handoffs(LIMIT, |mut client| {
                let request = request.clone();
                async move { client.begin_handoff(request).await }
            })
            .await?;
        wire::handoff::terms_from_proto(answer)
    }

    /// Hands a note over; whether it is kept. `false` without an answer after a few offers, too, and when an offer whose
    /// answer was lost had been taken.
    pub async fn save_handoff(
        &self,
        name: &HandoffName,
        note: &Note,
        made_on: &ConnectionId,
        expires_at: Timestamp,
    ) -> bool {
        let request = proto::SaveHandoffRequest {
            name: Some(wire::handoff::name_to_proto(name)),
            note: Some(wire::handoff::note_to_proto(note)),
            connection: made_on.to_string(),
            expires_at_unix_ms: expires_at.0,
        };
        for offer in 0..OFFERS {
            if offer > 0 {
                sleep(OFFER_PAUSE).await;
            }
            let answer = self.ask_handoffs(LIMIT, |mut client| {
                let request = request.clone();
                async move { client.save_handoff(request).await }
            });
            if let Some(answer) = answer.await {
                return answer.saved;
            }
        }
        false
    }

    /// Asks one replica after the other until one answers. All have the same answer, whoever was asked before.
    async fn ask_handoffs<T, F>(&self, limit: Duration, call: impl Fn(Client) -> F) -> Option<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + limit;
        let mut asked = Asked::default();
        while let Some(replica) = self.inner.replicas.choose(Instant::now(), asked) {
            asked.add(replica.index);
            let client = HandoffServiceClient::new(replica.channel());
            match timeout_at(deadline, call(client)).await {
                Ok(Ok(answer)) => return Some(answer.into_inner()),
                Ok(Err(status)) => {
                    tracing::debug!(replica = %replica.name, error = %status, "no answer about a note");
                }
                Err(_elapsed) => {
                    tracing::debug!(replica = %replica.name, "too late an answer about a note");
                    return None;
                }
            }
        }
        None
    }
}

type Client = HandoffServiceClient<PlaneChannel>;
