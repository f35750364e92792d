//! The contract's management endpoints, asked for on behalf of a client (decision 61).
//!
//! **Stance:** nothing is decided here, neither what is answered nor who may ask: what the client showed travels with its
//! request. All of it may be repeated, so it goes to whichever replica answers.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::management::{Operation, Right};
use tidegate_proto::management::v1 as proto;
use tidegate_proto::management::v1::management_service_client::ManagementServiceClient;

use crate::PlaneClient;
use crate::ask::Persist;

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
    /// Has a management request answered, within [`crate::Limits::management_read`] or
    /// [`crate::Limits::management_change`]. `None` without an answer; a change may have been made then.
    pub async fn manage(&self, call: ManagementCall) -> Option<ManagementAnswer> {
        let inner = &self.inner;
        let limit = inner.management_limit(call.operation);
        let authorization = call.authorization.as_ref();
        let request = proto::CallRequest {
            method: call.method,
            path: call.path.to_owned(),
            authorization: authorization.map(|shown| shown.expose_secret().to_owned()),
            body: call.body.into(),
        };
        let ask = |channel| {
            let request = request.clone();
            let mut client = ManagementServiceClient::new(channel);
            async move { client.call(request).await }
        };
        let answer = inner.ask_any(limit, Persist::Once, ask).await;
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

impl crate::client::Inner {
    fn management_limit(&self, operation: Operation) -> Duration {
        match operation.right() {
            Right::Anyone | Right::Read => self.limits.management_read,
            Right::Manage => self.limits.management_change,
        }
    }
}
