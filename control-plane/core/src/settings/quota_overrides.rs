//! Limits that an operator knows of one provider (`sessions-and-streams.md` §3.3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::admission::PaceLimits;
use crate::config::{MAX_ENTRIES, Violations};
use crate::ids::ProviderId;

/// Most requests to a whole provider at once.
const MAX_PROVIDER_CONCURRENCY: u32 = 100_000;

/// An entry of `providerQuotaOverrides`. Unset = as `requestQueue` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProviderQuotaOverride {
    /// Requests a minute to a connection, in the whole fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpm: Option<u32>,
    /// Requests to a connection at once, in the whole fleet; above 4 096 as 4 096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Accepted and kept without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_concurrency: Option<u32>,
}

impl ProviderQuotaOverride {
    /// These limits in place of others.
    pub(super) fn over(self, pace: PaceLimits) -> PaceLimits {
        PaceLimits {
            per_minute: self.rpm.or(pace.per_minute),
            concurrent: self.concurrency.or(pace.concurrent),
            ..pace
        }
    }
}

/// Adds what is out of bounds.
pub(super) fn conflicts(
    overrides: &BTreeMap<ProviderId, ProviderQuotaOverride>,
    found: &mut Violations,
) {
    if !found.at_most("providerQuotaOverrides", overrides.len(), MAX_ENTRIES) {
        return;
    }
    for (provider, stated) in overrides {
        for (member, value) in [("rpm", stated.rpm), ("concurrency", stated.concurrency)] {
            if value == Some(0) {
                found.push(
                    format!("providerQuotaOverrides.{provider}.{member}"),
                    "must be at least 1, is 0",
                );
            }
        }
        if let Some(value) = stated.provider_concurrency
            && value > MAX_PROVIDER_CONCURRENCY
        {
            found.push(
                format!("providerQuotaOverrides.{provider}.providerConcurrency"),
                format!("must be at most {MAX_PROVIDER_CONCURRENCY}, is {value}"),
            );
        }
    }
}
