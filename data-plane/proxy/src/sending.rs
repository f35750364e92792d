//! What an attempt needs on its way to the upstream, beside the request: with what it is sent, and what must allow that
//! it is sent once more.
//!
//! A request that was certainly not processed goes out again within its attempt ([`crate::upstream`]): it keeps the permit
//! and the place that the attempt holds, and its number. It is one more dispatch all the same. So it draws on the retry
//! budgets of its combo and its provider (decision 49), and passes the fence of its lease right before it is sent
//! (decision 42).
//!
//! | what refuses | the attempt ends as |
//! |---|---|
//! | a spent budget | what the upstream last did |
//! | the fence | a conflict of leases, which blames nobody |

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::ids::{ComboName, ConnectionId, ProviderId};
use tidegate_core::lease::LeaseError;
use tidegate_core::routing::{AttemptsSoFar, RequestFacts, remaining_ms};

use crate::control_port::ControlPort;
use crate::fence;
use crate::proxy::Shared;
use crate::retries::Held;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Sending<C> {
    pub(crate) shared: Arc<Shared<C>>,
    facts: Arc<RequestFacts>,
    provider: ProviderId,
    connection: ConnectionId,
    /// Where retries of the request are counted, if it counts.
    combo: Option<ComboName>,
    /// What was sent again last counts as a retry, until it is sent once more, or the attempt is ready or has failed.
    counted: Mutex<Option<(Held, Option<Held>)>>,
}

impl<C: ControlPort> Sending<C> {
    pub(crate) fn new(
        shared: &Arc<Shared<C>>,
        facts: &Arc<RequestFacts>,
        provider: &ProviderId,
        connection: &ConnectionId,
        combo: Option<&ComboName>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            facts: Arc::clone(facts),
            provider: provider.clone(),
            connection: connection.clone(),
            combo: combo.cloned(),
            counted: Mutex::default(),
        }
    }

    /// Whether the request may be sent again, at once. What is under way already goes on under the registration of its
    /// attempt, so that of this question is not kept.
    ///
    /// # Errors
    /// What its lease has against it.
    pub(crate) async fn may_resend(&self) -> Result<bool, LeaseError> {
        if is_budget_spent(&self.shared, &self.facts, &self.provider) {
            return Ok(false);
        }
        drop(fence::pass(&self.shared.control, &self.facts, &self.connection).await?);
        let retries = &self.shared.retries;
        *self.counted.lock() = Some((
            retries.retry_at(&self.provider),
            self.combo.as_ref().map(|combo| retries.retry(combo)),
        ));
        Ok(true)
    }
}

/// Whether the retry budgets allow no further request to this provider (decision 49).
pub(crate) fn is_budget_spent<C: ControlPort>(
    shared: &Shared<C>,
    facts: &RequestFacts,
    provider: &ProviderId,
) -> bool {
    let Some(snapshot) = shared.control.snapshot() else {
        return false;
    };
    let config = &snapshot.config;
    let (combo, live_planes) = (
        config.combo_for(&facts.model),
        shared.control.live_data_planes(),
    );
    (shared.retries).is_spent_for(config, combo, provider, live_planes)
}

/// What is left of the time of a request to a combo that began so long ago (`routing.md` §5.5); none without a limit.
pub(crate) fn time_left<C: ControlPort>(
    shared: &Shared<C>,
    facts: &RequestFacts,
    elapsed_ms: u64,
) -> Option<Duration> {
    let snapshot = shared.control.snapshot()?;
    let so_far = AttemptsSoFar {
        elapsed_ms,
        ..AttemptsSoFar::default()
    };
    let left = remaining_ms(&snapshot.config, facts, &so_far)?;
    Some(Duration::from_millis(left))
}
