//! Where the quotas of a provider's connections are asked for (decision 39), and where they stand in the answer.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::ids::ModelId;
use crate::telemetry::quota::MAX_MODEL_WINDOWS;

use super::{Violations, base_url};

/// Time between two polls of a connection, in ms: less than the 24 hours that a quota counts.
const INTERVAL_MS: RangeInclusive<u64> = 1_000..=21_600_000;
/// Limit of a poll, in ms.
const TIMEOUT_MS: RangeInclusive<u64> = 100..=30_000;
/// Longest JSON pointer, in bytes.
const MAX_POINTER_BYTES: usize = 256;
/// Most headers that are added.
const MAX_HEADERS: usize = 8;
/// Longest name and longest value of a header that is added, in bytes.
const MAX_HEADER_BYTES: usize = 256;
/// Headers that are not the configuration's to set: credentials, and what the connection is made of.
const KEPT_HEADERS: [&str; 12] = [
    "accept",
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
];

/// `quotaEndpoint` of a provider or a connection. Asked with GET; redirects are not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaEndpoint {
    /// `https://`, or `http://` to a loopback address; no query.
    pub url: String,
    /// How the connection's credential is shown.
    #[serde(default)]
    pub authentication: QuotaAuthentication,
    /// Further headers, at most 8; no secrets, they stand in the document as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Time between two polls of a connection, in ms, 1 000..=21 600 000; default 60 000.
    #[serde(default = "default_interval_ms")]
    pub interval_ms: u64,
    /// How long an answer is waited for, in ms, 100..=30 000; default 5 000.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// What the members that `resetsAt` names hold.
    #[serde(default)]
    pub reset_format: ResetFormat,
    /// Where the windows stand in the answer; at least one, or `limitReached`.
    #[serde(default)]
    pub windows: QuotaWindowPlaces,
    /// JSON pointer to `true` when the provider says that the limit is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_reached: Option<String>,
}

/// How a connection's credential is shown to a quota endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum QuotaAuthentication {
    /// As in requests to the provider: `Authorization: Bearer` or `x-api-key`, by its protocol.
    #[default]
    Provider,
    /// `Authorization: Bearer`.
    Bearer,
    /// Not at all, for a fetcher of one's own.
    None,
}

/// How an answer says when a window begins anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ResetFormat {
    /// A moment as text, such as `2026-01-31T12:00:00Z`.
    #[default]
    Rfc3339,
    /// Seconds since the Unix epoch.
    EpochSeconds,
    /// Milliseconds since the Unix epoch.
    EpochMilliseconds,
    /// Seconds from now.
    SecondsFromNow,
}

/// Where windows stand in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaWindowPlaces {
    /// The window of 5 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<WindowPlace>,
    /// The window of 7 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weekly: Option<WindowPlace>,
    /// The window of 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monthly: Option<WindowPlace>,
    /// Windows of 7 days of single models, by model, at most 64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weekly_by_model: BTreeMap<ModelId, WindowPlace>,
}

/// Where one window stands in an answer, as JSON pointers (RFC 6901). What is used is said in one of five ways:
/// `usedShare`, `usedPercent`, `remainingPercent`, `used` with `limit`, or `remaining` with `limit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WindowPlace {
    /// Share that is used, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_share: Option<String>,
    /// Percent that are used, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_percent: Option<String>,
    /// Percent that are left, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_percent: Option<String>,
    /// What is used, in the unit of `limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// What is left, in the unit of `limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
    /// All of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// When the window begins anew, in the format that `resetFormat` names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<String>,
}

/// How an answer says what is used of a window. Each is a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure<'a> {
    /// As a share.
    UsedShare(&'a str),
    /// In percent.
    UsedPercent(&'a str),
    /// As what is left, in percent.
    RemainingPercent(&'a str),
    /// As a part of a limit.
    Used {
        /// What is used.
        used: &'a str,
        /// All of it.
        limit: &'a str,
    },
    /// As what is left of a limit.
    Remaining {
        /// What is left.
        remaining: &'a str,
        /// All of it.
        limit: &'a str,
    },
}

impl WindowPlace {
    /// How what is used is said; `None` when that is in no way, or in several.
    #[must_use]
    pub fn measure(&self) -> Option<Measure<'_>> {
        let Self {
            used_share,
            used_percent,
            remaining_percent,
            used,
            remaining,
            limit,
            resets_at: _,
        } = self;
        let members = (
            used_share.as_deref(),
            used_percent.as_deref(),
            remaining_percent.as_deref(),
            used.as_deref(),
            remaining.as_deref(),
            limit.as_deref(),
        );
        match members {
            (Some(used), None, None, None, None, None) => Some(Measure::UsedShare(used)),
            (None, Some(used), None, None, None, None) => Some(Measure::UsedPercent(used)),
            (None, None, Some(left), None, None, None) => Some(Measure::RemainingPercent(left)),
            (None, None, None, Some(used), None, Some(limit)) => {
                Some(Measure::Used { used, limit })
            }
            (None, None, None, None, Some(remaining), Some(limit)) => {
                Some(Measure::Remaining { remaining, limit })
            }
            _ => None,
        }
    }

    fn check(&self, path: &str, found: &mut Violations) {
        let pointers = [
            ("usedShare", &self.used_share),
            ("usedPercent", &self.used_percent),
            ("remainingPercent", &self.remaining_percent),
            ("used", &self.used),
            ("remaining", &self.remaining),
            ("limit", &self.limit),
            ("resetsAt", &self.resets_at),
        ];
        for (member, pointer) in pointers {
            if let Some(pointer) = pointer {
                check_pointer(format!("{path}.{member}"), pointer, found);
            }
        }
        if self.measure().is_none() {
            let message = "must have exactly one of usedShare, usedPercent, remainingPercent, used with limit, and \
                           remaining with limit";
            found.push(path, message);
        }
    }
}

impl QuotaEndpoint {
    /// Adds what is wrong with it.
    pub(super) fn check(&self, path: &str, found: &mut Violations) {
        base_url::check_endpoint(format!("{path}.url"), &self.url, found);
        found.within(format!("{path}.intervalMs"), self.interval_ms, &INTERVAL_MS);
        found.within(format!("{path}.timeoutMs"), self.timeout_ms, &TIMEOUT_MS);
        self.check_headers(path, found);
        let QuotaWindowPlaces {
            session,
            weekly,
            monthly,
            weekly_by_model,
        } = &self.windows;
        let windows = [
            ("session", session),
            ("weekly", weekly),
            ("monthly", monthly),
        ];
        for (name, place) in windows {
            if let Some(place) = place {
                place.check(&format!("{path}.windows.{name}"), found);
            }
        }
        let field = format!("{path}.windows.weeklyByModel");
        if found.at_most(field.as_str(), weekly_by_model.len(), MAX_MODEL_WINDOWS) {
            for (model, place) in weekly_by_model {
                place.check(&format!("{field}.{model}"), found);
            }
        }
        match &self.limit_reached {
            Some(pointer) => check_pointer(format!("{path}.limitReached"), pointer, found),
            None if self.windows == QuotaWindowPlaces::default() => {
                let message = "must name a window, unless limitReached is set";
                found.push(format!("{path}.windows"), message);
            }
            None => {}
        }
    }

    fn check_headers(&self, path: &str, found: &mut Violations) {
        let field = format!("{path}.headers");
        if !found.at_most(field.as_str(), self.headers.len(), MAX_HEADERS) {
            return;
        }
        let in_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let in_value = |byte: u8| (0x20..=0x7e).contains(&byte);
        let fits = |text: &str| (1..=MAX_HEADER_BYTES).contains(&text.len());
        for (name, value) in &self.headers {
            if !fits(name) || !name.bytes().all(in_name) {
                let message = "a name has 1 to 256 lower-case letters, digits and -";
                found.push(field.as_str(), message);
            } else if KEPT_HEADERS.contains(&name.as_str()) {
                found.push(format!("{field}.{name}"), "is not set here");
            } else if !fits(value) || !value.bytes().all(in_value) || value.trim() != value {
                let message =
                    "must have 1 to 256 printable ASCII characters, none of them a space at an end";
                found.push(format!("{field}.{name}"), message);
            }
        }
    }
}

fn check_pointer(field: String, pointer: &str, found: &mut Violations) {
    let mut escapes = pointer.split('~').skip(1);
    let escaped = escapes.all(|after| after.starts_with(['0', '1']));
    if !pointer.starts_with('/') || pointer.len() > MAX_POINTER_BYTES || !escaped {
        let message = "must be a JSON pointer of at most 256 bytes, such as /five_hour/utilization";
        found.push(field, message);
    }
}

fn default_interval_ms() -> u64 {
    60_000
}

fn default_timeout_ms() -> u64 {
    5_000
}
