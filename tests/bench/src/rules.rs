//! The rules in this process, without a store: one provider with one connection, as a document configures them.

use anyhow::{Result, anyhow};
use tidegate_core::config::Config;
use tidegate_core::settings::Overrides;

/// The provider.
pub(crate) const PROVIDER: &str = "bench";

/// Its connection.
pub(crate) const CONNECTION: &str = "bench-1";

/// The configuration. The provider keeps a quota per model, so that models can be locked.
pub(crate) fn config() -> Result<Config> {
    let text = format!(
        "providers:\n  - {{id: {PROVIDER}, protocol: openai, baseUrl: \"https://upstream.example/v1\", perModelQuota: true}}\n\
         connections:\n  - {{id: {CONNECTION}, provider: {PROVIDER}}}\n"
    );
    let document = tidegate_document::parse(&text)?;
    Config::build(document, 1, &Overrides::default())
        .map_err(|violations| anyhow!("the configuration is refused: {violations:?}"))
}
