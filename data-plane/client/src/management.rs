//! The contract's management endpoints, asked for on behalf of a client (decision 61).
//!
//! **Stance:** nothing is decided here, neither what is answered nor who may ask: what the client showed travels with its
//! request. All of it may be repeated, so it goes to whichever replica answers. A change is put to one replica at a time, and
//! travels with the time that is left, and with the moment in the store's time when it is over, since nobody knows how long a
//! request is on its way: one that came too late would undo what was changed after it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::management::{Operation, Right};
use tidegate_proto::management::v1 as proto;
use tidegate_proto::management::v1::management_service_client::ManagementServiceClient;
use tokio::time::Instant;

use crate::PlaneClient;
use crate::ask::{Company, Persist};

/// A client's request to a management endpoint.
#[derive(Clone)]
pub struct ManagementCall {
    /// What it asks for.
    pub operation: Operation,
    /// Its method.
    pub method: String,
    /// Its path, without a query.
    pub path: &'static str,
    /// Its `Authorization` header; shown by nothing.
    pub authorization: Option<SecretString>,
    /// Its body.
    pub body: Bytes,
    /// Nobody waits for an answer any more.
    pub deadline: Instant,
}

impl fmt::Debug for ManagementCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ManagementCall")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

/// What the control plane answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagementAnswer {
    /// The HTTP status.
    pub status: u16,
    /// JSON, or nothing.
    pub body: Bytes,
    /// Methods for an `Allow` header.
    pub allow: Option<String>,
}

impl PlaneClient {
    /// Has a management request answered by its deadline. `None` without an answer; a change may have been made then.
    /// What was not saved by then, settings or state, is not changed later.
    pub async fn manage(&self, call: ManagementCall) -> Option<ManagementAnswer> {
        let inner = &self.inner;
        let deadline = call.deadline;
        let company = match call.operation.right() {
            Right::Anyone | Right::Read => Company::Joined,
            Right::Manage => Company::Alone,
        };
        let now = Instant::now();
        let limit = deadline.saturating_duration_since(now);
        let store_now = inner.clock.heard_at(now);
        let not_after = store_now.map(|store_now| store_now.plus_ms(millis(limit)));
        let authorization = call.authorization.as_ref();
        let request = proto::CallRequest {
            method: call.method,
            path: call.path.to_owned(),
            authorization: authorization.map(|shown| shown.expose_secret().to_owned()),
            body: call.body.into(),
            remaining_ms: None,
            not_after_unix_ms: not_after.map(|not_after| not_after.0),
        };
        let ask = |channel| {
            let left = deadline.saturating_duration_since(Instant::now());
            let request = proto::CallRequest {
                remaining_ms: Some(millis(left)),
                ..request.clone()
            };
            let mut client = ManagementServiceClient::new(channel);
            async move { client.call(request).await }
        };
        let answer = inner.ask_any(limit, Persist::Once, company, ask).await;
        let Some(answer) = answer else {
            inner.metrics.management_unanswered.inc();
            return None;
        };
        let proto::CallResponse {
            status,
            body,
            allow,
        } = answer;
        Some(ManagementAnswer {
            status: u16::try_from(status).ok()?,
            body: body.into(),
            allow: Some(allow).filter(|allow| !allow.is_empty()),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
