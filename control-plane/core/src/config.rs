//! The configuration document as people write it, and its indexed form for decisions.
//!
//! One versioned [`Document`] holds providers, connections, combos, keys and settings. It is replaced whole
//! and only by one that validates ([`Config::build`]). Credentials are not in it: a connection names where
//! its credential comes from, and the secret itself travels and is stored apart.

pub mod base_url;
mod cascade;
mod combo;
mod index;
mod mapping;
mod meaning;
mod merge;
mod names;
mod oauth;
mod pool;
mod quota_endpoint;
mod resource;
mod scope;
mod step;
#[cfg(test)]
mod tests;
mod tiers;
mod validate;
mod violations;
mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use cascade::Legacy;
pub use combo::{
    AccountStrategy, AutoConfig, BudgetFallback, Combo, ComboConfig, CompositeTier, CompositeTiers,
    FusionConfig, NestedComboMode, ResetWindow, Strategy,
};
pub use index::key_hash;
pub use mapping::ModelMapping;
pub(crate) use meaning::split_model;
pub use merge::Merged;
pub use oauth::{ClientAuthentication, OauthClient};
pub use pool::{PoolConnection, QuotaPool};
pub use quota_endpoint::{
    Measure, QuotaAuthentication, QuotaEndpoint, QuotaWindowPlaces, ResetFormat, WindowPlace,
};
pub use resource::Resource;
pub use scope::KeyScope;
pub use step::{ComboStep, ModelStep, Step};
pub(crate) use validate::check_combo_config;
pub use violations::MAX_VIOLATIONS;
pub(crate) use violations::Violations;
pub use warnings::Warning;

use crate::catalogue::{Catalogue, ModelRow};
use crate::ids::{ComboName, ConnectionId, KeyId, ModelId, ProviderId};
use crate::number::Finite;
use crate::routing::strategy;
pub use crate::secret_source::SecretSource;
use crate::settings::{ProviderClass, ProviderPolicy, Settings, WrittenSettings};

/// Most entries of each list of the document.
pub const MAX_ENTRIES: usize = 100_000;
/// Most models of a provider.
pub const MAX_PROVIDER_MODELS: usize = 10_000;
/// Most steps of a combo.
pub const MAX_STEPS: usize = 1_000;
/// Most steps of a combo that asks all of them for one request: `fusion` and `pipeline`.
pub const MAX_PLAN_STEPS: usize = 32;
/// Most targets that the steps of a combo come to (`routing.md` §1.6).
pub const MAX_TARGETS: usize = 1_000;
/// Most mappings of models to combos.
pub const MAX_MAPPINGS: usize = 100;
/// Most models of a connection, and most connections or models that a key is limited to.
pub const MAX_LIMITED_TO: usize = 1_000;

/// The configuration as written in YAML or sent to the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Document {
    /// Upstream families.
    pub providers: Vec<Provider>,
    /// Credentials at providers.
    pub connections: Vec<Connection>,
    /// Named ordered lists of steps.
    pub combos: Vec<Combo>,
    /// Models that stand for combos; the first that fits counts.
    pub model_mappings: Vec<ModelMapping>,
    /// Accounts that several clients share fairly.
    pub quota_pools: Vec<QuotaPool>,
    /// What models cost and can do, over what ships (decision 38).
    pub models: Vec<ModelRow>,
    /// Clients' API keys.
    pub keys: Vec<ApiKey>,
    /// Resilience settings, as written.
    #[cfg_attr(test, schemars(with = "crate::settings::Settings"))]
    pub settings: WrittenSettings,
}

/// The wire protocol a provider speaks (decision 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Protocol {
    /// `/chat/completions`, `/responses`, `/embeddings`; credential as a bearer token.
    Openai,
    /// `/messages`; credential in `x-api-key`.
    Anthropic,
}

/// An upstream family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Provider {
    /// Unique id.
    pub id: ProviderId,
    /// What it speaks.
    pub protocol: Protocol,
    /// URL up to and including the version, for example `https://api.openai.com/v1`; paths such as
    /// `/chat/completions` are appended.
    pub base_url: String,
    /// Which defaults it has; unset = `local` for a loopback or private address, else `apikey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ProviderClass>,
    /// Models it serves; empty = any. Listed by `/v1/models`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelId>,
    /// It keeps a quota per model, so some failures lock models instead of cooling connections; unset = as built in
    /// for its id and class (`failure-state.md` §3.4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_model_quota: Option<bool>,
    /// How an account is chosen for an unpinned target (decision 25).
    #[serde(default)]
    pub account_strategy: AccountStrategy,
    /// Where and how access tokens of its connections are renewed (decision 15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth: Option<OauthClient>,
    /// Where quotas of its connections are asked for (decision 39).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_endpoint: Option<QuotaEndpoint>,
}

/// One credential at a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Connection {
    /// Unique id over all providers.
    pub id: ConnectionId,
    /// The provider it is at.
    pub provider: ProviderId,
    /// Lower is chosen first.
    #[serde(default = "default_priority")]
    pub priority: u32,
    /// Switched off connections are never chosen.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub enabled: bool,
    /// Where the credential is read from when the document is applied; unset = keep the stored one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<SecretSource>,
    /// Recoverable failures do not cool this connection (`failure-state.md` §3.10).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_cooling: bool,
    /// As for its provider, for this connection alone; unset = as its provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_model_quota: Option<bool>,
    /// Most requests at once in the whole fleet, 0..=4 096; unset or 0 = no limit (`routing.md` §11.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// Requests to this connection pass through its queue (`settings.requestQueue`); unset = where its provider is of
    /// class `apikey` and `requestQueue.autoEnableApiKeyProviders` is on (`sessions-and-streams.md` §3.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_protection: Option<bool>,
    /// Models this connection may serve; empty = all of the provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelId>,
    /// Where the refresh token is read from when the document is applied; unset = keep the stored one. What
    /// `credential` names is then an access token, and may be left out: the first one is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<SecretSource>,
    /// OAuth client this connection's tokens were issued to; unset = the provider's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Where the client's secret is read from when the document is applied; unset = keep the stored one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<SecretSource>,
    /// Where this connection's quotas are asked for; unset = where its provider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_endpoint: Option<QuotaEndpoint>,
}

/// A client's API key. Only its SHA-256 is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApiKey {
    /// Unique id, for logs and people.
    pub id: KeyId,
    /// Where the key is read from when the document is applied; exactly one of `secret` and `sha256`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretSource>,
    /// Lower-case hex SHA-256 of the whole key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Connections the key may use; empty = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_connections: Vec<ConnectionId>,
    /// Combo names and `provider/model` strings the key may ask for; empty = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_models: Vec<String>,
    /// What the key may do besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<KeyScope>,
}

/// One thing wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where, as a path such as `combos[2].steps[0].model`.
    pub field: String,
    /// What is wrong and what is expected.
    pub message: String,
}

/// A validated document, indexed for decisions. Immutable.
#[derive(Clone, Debug)]
pub struct Config {
    /// Version of the document in the durable store.
    pub version: u64,
    /// The document as applied.
    pub document: Arc<Document>,
    /// Its settings as they act.
    pub settings: Arc<Settings>,
    /// What had to be mended in settings and combos, where they are stored ones.
    pub mended: Vec<Violation>,
    /// Providers with their policies and connections.
    pub providers: BTreeMap<ProviderId, ProviderEntry>,
    /// Combos by name, steps resolved; those nobody wrote are hidden ([`ComboEntry::hidden`]).
    pub combos: BTreeMap<ComboName, ComboEntry>,
    /// Keys by lower-case hex SHA-256. A key that still names a secret to read is not in it.
    pub keys: BTreeMap<String, Arc<ApiKey>>,
    /// All connections by id.
    pub connections: BTreeMap<ConnectionId, Arc<Connection>>,
    /// What some key may lease, of any key (`sessions-and-streams.md` §1.2).
    pub lease_pool: Arc<BTreeSet<ConnectionId>>,
    /// Which provider a bare model name means: the first, as written, that lists it.
    pub bare_models: BTreeMap<ModelId, ProviderId>,
    /// What models cost and can do.
    pub catalogue: Catalogue,
}

/// A provider as decisions need it.
#[derive(Clone, Debug)]
pub struct ProviderEntry {
    /// As written, but for slashes at the end of the base URL.
    pub provider: Provider,
    /// Its state machines' numbers.
    pub policy: ProviderPolicy,
    /// Its connections by ascending priority number, then as written.
    pub connections: Vec<Arc<Connection>>,
    /// The models it serves; empty = any.
    pub models: BTreeSet<ModelId>,
}

/// A combo as decisions need it.
#[derive(Clone, Debug)]
pub struct ComboEntry {
    /// As written.
    pub combo: Combo,
    /// Its members after the cascade (`routing.md` §1.5).
    pub config: ComboConfig,
    /// Its steps as targets, those of combos it refers to in their place, and accounts in place of targets that name none
    /// where it orders accounts; empty where it cannot be used.
    pub targets: Arc<[ComboTarget]>,
    /// What its strategy orders, where that is not each target by itself: combos it refers to, as units of their own
    /// (`routing.md` §1.6, `execute`). Together they cover all targets in order.
    pub units: Vec<Unit>,
    /// Nobody wrote it, so nobody is told of it; who knows its name may ask for it.
    pub hidden: bool,
}

/// What an order that follows the target that served last (`routing.md` §8.15) reads of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastServed {
    /// Its provider: no target names an account.
    Provider,
    /// Its provider and account.
    Account,
}

impl LastServed {
    /// Whether for such an order two that served are the same.
    #[must_use]
    pub fn is_same(
        self,
        one: (&ProviderId, Option<&ConnectionId>),
        two: (&ProviderId, Option<&ConnectionId>),
    ) -> bool {
        match self {
            Self::Provider => one.0 == two.0,
            Self::Account => one == two,
        }
    }
}

impl ComboEntry {
    /// What its order depends on of the target that served it last; `None`: nothing.
    #[must_use]
    pub fn follows_last_served(&self) -> Option<LastServed> {
        if !strategy::of(self.combo.strategy).follows_last_served(&self.config) {
            return None;
        }
        let names_account = self
            .targets
            .iter()
            .any(|target| target.connection.is_some());
        Some(if names_account {
            LastServed::Account
        } else {
            LastServed::Provider
        })
    }
}

/// Targets that a strategy orders as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// As [`ComboTarget::key`], of the step.
    pub key: Arc<str>,
    /// Position of its step in the combo that orders it.
    pub group: u32,
    /// Weight of that step, 0..=100.
    pub weight: Finite,
    /// Position of its first target.
    pub start: u32,
    /// Position behind its last target.
    pub end: u32,
    /// The combo that orders what is in it; absent for a single target.
    pub nested: Option<Box<NestedCombo>>,
}

/// A combo within another one that orders its targets itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestedCombo {
    /// Its name.
    pub name: ComboName,
    /// How it orders.
    pub strategy: Strategy,
    /// Its members after the cascade.
    pub config: Arc<ComboConfig>,
    /// What it orders.
    pub units: Vec<Unit>,
}

/// A step after resolution (`routing.md` §1.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComboTarget {
    /// Where.
    pub provider: ProviderId,
    /// What.
    pub model: ModelId,
    /// Pinned to this connection.
    pub connection: Option<ConnectionId>,
    /// No step said so: it is one of the accounts that an unpinned target was expanded to.
    pub expanded: bool,
    /// Its identity for counts, decks and stickiness (`routing.md` §1.3, `executionKey`).
    pub key: Arc<str>,
    /// Position of the top-level step it comes from.
    pub group: u32,
    /// Weight of that step, 0..=100.
    pub weight: Finite,
    /// Only these accounts; empty = all.
    pub allowed_connections: BTreeSet<ConnectionId>,
    /// Tags that requests may ask for.
    pub tags: Vec<String>,
    /// `priority`: the walk goes on from here only when its quota is used up (`routing.md` §5.7).
    pub fallback_only_on_quota_exhaustion: bool,
}

fn default_priority() -> u32 {
    100
}

fn yes() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde asks for"
)]
fn is_true(value: &bool) -> bool {
    *value
}
