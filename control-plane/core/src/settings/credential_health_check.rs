//! `credentialHealthCheck` (`sessions-and-streams.md` §3.3).

use serde::{Deserialize, Serialize};

use super::member::{Bounds, Member};

/// Members of `credentialHealthCheck`.
pub(super) const MEMBERS: &[Member] = &[Member::whole("intervalMinutes", Bounds::same(0, 1_440))];

/// `credentialHealthCheck`, accepted and kept without effect: nothing is sent to upstreams but requests of clients. An account
/// is judged by how those end, and access tokens are renewed by `tokenRefresh`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CredentialHealthCheckSettings {
    /// Accepted and kept without effect, since nothing is sent to upstreams but requests of clients: an account is judged by
    /// how those end, and access tokens are renewed by `tokenRefresh`.
    pub interval_minutes: u32,
}

impl Default for CredentialHealthCheckSettings {
    fn default() -> Self {
        Self {
            interval_minutes: 60,
        }
    }
}
