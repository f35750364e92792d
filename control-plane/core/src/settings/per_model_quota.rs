//! Which providers keep a quota per model (`failure-state.md` §3.4).
//!
//! Of the list there, "compatible nodes" and "registry passthrough" name entries of a product that has a registry
//! of providers. Here every provider is written down by its operator, most of them speak a compatible protocol, and
//! that alone says nothing about quotas. So only ids that carry those names are taken for them; who runs a gateway
//! under another id says `perModelQuota: true`. Whatever is `local`, declared or by its address, is one model server
//! with a limit per model.

use crate::config::Connection;
use crate::ids::ProviderId;

use super::{ProviderClass, ProviderPolicy};

/// Providers known to.
const KNOWN: &[&str] = &["codex", "antigravity", "agy", "gemini", "github"];
/// How ids of compatible nodes begin.
const COMPATIBLE_NODES: &[&str] = &["openai-compatible-", "anthropic-compatible-"];
/// How ids of providers that hand models on to others end.
const PASSTHROUGH: &str = "-passthrough";

/// Whether a provider that does not say keeps a quota per model.
pub(super) fn by_default(provider: &ProviderId, class: ProviderClass) -> bool {
    let id = provider.as_str();
    class == ProviderClass::Local
        || KNOWN.contains(&id)
        || COMPATIBLE_NODES.iter().any(|node| id.starts_with(node))
        || id.ends_with(PASSTHROUGH)
}

impl ProviderPolicy {
    /// Whether the quota is kept per model on a connection: as it says itself, else as its provider.
    #[must_use]
    pub fn keeps_quota_per_model(&self, connection: Option<&Connection>) -> bool {
        connection
            .and_then(|connection| connection.per_model_quota)
            .unwrap_or(self.per_model_quota)
    }
}
