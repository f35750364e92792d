//! Settings of what errors mean: operator rules, allowlists, ban phrases and the daily reset.

use serde::{Deserialize, Serialize};

use crate::classify::Reason;
use crate::ids::ProviderId;

use super::member::Member;

/// Members of `banDetection`.
pub(super) const BAN_DETECTION: &[Member] =
    &[Member::entries("extraPhrases"), Member::flag("autoDisable")];

/// Members of `errorRules`.
pub(super) const ALLOWLISTS: &[Member] = &[
    Member::entries("fullTextProviders"),
    Member::entries("scopeProviders"),
    Member::entries("egressBucketedProviders"),
];

/// `banDetection` (`failure-state.md` §3.7, §3.8-20).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BanDetectionSettings {
    /// Further texts that mean a ban, compared without regard to case; at most 100 of 3 to 200 characters.
    pub extra_phrases: Vec<String>,
    /// A banned connection is also switched off in the configuration's sense: it is listed as disabled.
    pub auto_disable: bool,
}

/// `errorRules`: which providers may use what the rules offer (decision 18). A provider with an operator rule is
/// exempt from the first two lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ErrorRulesSettings {
    /// Rules see the text of the body; of others only its code and type.
    pub full_text_providers: Vec<ProviderId>,
    /// The scope of a rule is acted on; of others it is a label.
    pub scope_providers: Vec<ProviderId>,
    /// A 429 also locks the egress identity it was seen under (`failure-state.md` §6).
    pub egress_bucketed_providers: Vec<ProviderId>,
}

impl Default for ErrorRulesSettings {
    fn default() -> Self {
        let ids = |ids: &[&str]| {
            ids.iter()
                .filter_map(|id| ProviderId::new(*id).ok())
                .collect()
        };
        Self {
            full_text_providers: ids(&["agentrouter"]),
            scope_providers: ids(&["agentrouter"]),
            egress_bucketed_providers: ids(&["opencode", "opencode-go", "opencode-cli"]),
        }
    }
}

/// An operator's rule: an answer with this status and text means that (`failure-state.md` §5.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProviderErrorRule {
    /// Status of the answer, 100..=599.
    pub status: u16,
    /// Text that the body contains, without regard to case; 1 to 200 characters.
    #[serde(rename = "match")]
    pub text: String,
    /// What it acts on.
    pub scope: RuleScope,
    /// Why.
    #[serde(default = "quota_exhausted")]
    pub reason: Reason,
    /// How long, 1 000..=2 592 000 000; unset = as the scope says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cooldown_ms: Option<u64>,
}

/// What a rule acts on (decision 18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum RuleScope {
    /// The model is locked on the connection.
    Model,
    /// The connection cools.
    Connection,
    /// The provider enters its gate.
    Provider,
}

/// `dailyReset.<provider>` (decision 22).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DailyResetSettings {
    /// IANA name of the zone, for example `Asia/Shanghai`.
    pub time_zone: String,
    /// Hour of that zone's clock, 0..=23; the whole is resolved to a [`crate::daily_reset::DailyReset`].
    pub hour: u8,
}

impl Default for DailyResetSettings {
    fn default() -> Self {
        Self {
            time_zone: "UTC".to_owned(),
            hour: 0,
        }
    }
}

fn quota_exhausted() -> Reason {
    Reason::QuotaExhausted
}
