//! What operators ask and do, over the same view and the same rules as decisions.

mod audit;
mod cooldowns;
mod events;
mod explain;
mod leases;
mod lists;
mod page;
mod permits;
mod pins;
mod queues;
mod quotas;
mod reset;

use std::sync::Arc;

use tidegate_store::durable::DurableStore;

use crate::checkpoint::Checkpoint;
use crate::clock::Clock;
use crate::config::Published;
use crate::events::Events;
use crate::fleet::Gatherer;
use crate::hot::Hot;
use crate::lanes::Lanes;
use crate::lease::Leases;
use crate::permits::Permits;
use crate::pins::Pins;
use crate::record::Recorder;
use crate::schema::Schemas;
use crate::telemetry::metrics::Metrics;
use crate::view::View;
use crate::watch::Live;

pub(crate) use audit::Operation;
pub(crate) use events::{EventFilter, EventFilterError, NotRead, event};
pub(crate) use explain::Question;
pub(crate) use leases::lease_status;
pub(crate) use page::{Page, PageError};
pub(crate) use permits::{NotCleared, connections};
pub(crate) use quotas::{Known, NotTaken};
pub(crate) use reset::{Outcome, Refused, Scope, Selection};

/// Everything an operator may look at or change.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) replica: String,
    pub(crate) hot: Arc<Hot>,
    pub(crate) durable: Arc<dyn DurableStore>,
    pub(crate) view: Arc<View>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) config: Arc<Published>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) events: Arc<Events>,
    pub(crate) pins: Arc<Pins>,
    pub(crate) fleet: Arc<Gatherer>,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) schemas: Arc<Schemas>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) live: Live,
}
