//! The demo's fake providers and the configuration that names them.

use std::path::Path;

use anyhow::Result;
use tidegate_fake_upstream::{Behaviour, FakeUpstream, Mode, Selector};

/// Good answers of the bursty provider in a row, and bad ones.
const BURST: usize = 6;
/// Good answers of the limited provider before it asks to wait.
const ALLOWED: usize = 4;

/// The running providers.
pub(crate) struct Providers {
    bursty: FakeUpstream,
    limited: FakeUpstream,
    steady: FakeUpstream,
}

impl Providers {
    /// Starts all three.
    pub(crate) async fn start() -> Result<Self> {
        let bursty = FakeUpstream::builder().name("bursty").start().await?;
        let good = std::iter::repeat_n(Mode::Ok, BURST);
        let bad = std::iter::repeat_n(Mode::status(503), BURST);
        bursty.set(Selector::any(), Behaviour::Cycle(good.chain(bad).collect()));
        let limited = FakeUpstream::builder().name("limited").start().await?;
        let allowed = std::iter::repeat_n(Mode::Ok, ALLOWED);
        let refused = std::iter::once(Mode::rate_limited("6"));
        limited.set(
            Selector::any(),
            Behaviour::Cycle(allowed.chain(refused).collect()),
        );
        Ok(Self {
            bursty,
            limited,
            steady: FakeUpstream::builder().name("steady").start().await?,
        })
    }

    /// Writes the fake credentials that the configuration refers to.
    pub(crate) fn write_keys(&self, folder: &Path) -> Result<()> {
        for name in ["bursty-1", "bursty-2", "limited-1", "steady-1"] {
            std::fs::write(folder.join(format!("{name}.key")), format!("fake-{name}"))?;
        }
        Ok(())
    }

    /// The configuration: low thresholds and short times, so that there is something to see.
    pub(crate) fn document(&self) -> String {
        format!(
            "
providers:
  - {{id: bursty, protocol: openai, baseUrl: {bursty}, class: apikey, models: [demo-model]}}
  - {{id: limited, protocol: openai, baseUrl: {limited}, class: apikey, models: [demo-model]}}
  - {{id: steady, protocol: openai, baseUrl: {steady}, class: apikey, models: [demo-model]}}
connections:
  - {{id: bursty-1, provider: bursty, priority: 1, credential: {{file: bursty-1.key}}}}
  - {{id: bursty-2, provider: bursty, priority: 2, credential: {{file: bursty-2.key}}}}
  - {{id: limited-1, provider: limited, credential: {{file: limited-1.key}}}}
  - {{id: steady-1, provider: steady, credential: {{file: steady-1.key}}}}
combos:
  - name: demo
    steps: [bursty/demo-model, limited/demo-model, steady/demo-model]
    config: {{maxRetries: 0}}
settings:
  providerBreaker:
    apikey: {{failureThreshold: 4, degradationThreshold: 2, resetTimeoutMs: 8000}}
    dedupConnectionMs: 0
  connectionCooldown:
    apikey: {{baseCooldownMs: 1500}}
",
            bursty = self.bursty.base_url(),
            limited = self.limited.base_url(),
            steady = self.steady.base_url(),
        )
    }
}
