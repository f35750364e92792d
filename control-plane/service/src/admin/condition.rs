//! How this replica is, for everybody who asks: over gRPC and over HTTP it is the same.

use std::sync::Arc;

use tidegate_core::condition::{Degraded, Surroundings, degraded};
use tidegate_core::config::Config;
use tidegate_proto::common::v1::Freshness;

use crate::watch::{Plane, freshness};

use super::Admin;

/// How this replica is.
#[derive(Debug)]
pub(crate) struct Condition {
    /// The hot store answered when it was asked last.
    pub(crate) hot_store_answers: bool,
    /// The durable store answers.
    pub(crate) durable_store_answers: bool,
    pub(crate) view: Freshness,
    /// What is in force here.
    pub(crate) config: Option<Arc<Config>>,
    /// Data planes that follow this replica.
    pub(crate) planes: Vec<Plane>,
    /// Data planes of the whole fleet, as last heard.
    pub(crate) planes_in_fleet: u32,
    /// What is not as it should be; empty: all is well.
    pub(crate) degraded: Vec<Degraded>,
}

impl Admin {
    /// How this replica is. Takes no longer than a store may that does not answer.
    pub(crate) async fn condition(&self) -> Condition {
        let durable_store_answers = self.durable_store_answers().await;
        let hot_store_answers = self.hot.answers();
        let view = freshness(&self.view, &self.clock);
        let config = self.config.config();
        let planes = self.live.planes();
        let degraded = degraded(Surroundings {
            hot_store_answers,
            durable_store_answers,
            view_follows: !view.stale,
            // An empty one stands before anything was applied.
            is_configured: config.as_ref().is_some_and(|config| config.version > 0),
            configuration_refused: planes.iter().any(|plane| plane.refused > 0),
        });
        Condition {
            hot_store_answers,
            durable_store_answers,
            view,
            config,
            planes,
            planes_in_fleet: self.live.in_fleet(),
            degraded,
        }
    }
}
