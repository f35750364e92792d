//! What operators ask and do, over the same view and the same rules as decisions.

mod audit;
mod condition;
mod cooldowns;
mod ending;
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
use std::time::Duration;

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
pub(crate) use condition::Condition;
pub(crate) use ending::to_its_end;
pub(crate) use events::{EventFilter, EventFilterError, NotRead, event};
pub(crate) use explain::Question;
pub(crate) use leases::lease_status;
pub(crate) use lists::{RunningLock, lock_name};
pub(crate) use page::{MAX_PAGE, Page, PageError};
pub(crate) use permits::{NotCleared, connections};
pub(crate) use quotas::{Known, NotTaken};
pub(crate) use reset::{Outcome, Refused, Scope, Selection};

/// Limit of asking whether the durable store answers (decision 54).
const PING_LIMIT: Duration = Duration::from_millis(500);

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

impl Admin {
    /// The durable store answers in time.
    pub(crate) async fn durable_store_answers(&self) -> bool {
        let ping = tokio::time::timeout(PING_LIMIT, self.durable.ping()).await;
        matches!(ping, Ok(Ok(())))
    }
}
