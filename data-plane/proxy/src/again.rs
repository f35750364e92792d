//! A request goes once more to where it went: a reopened stream (`sessions-and-streams.md` §4.4) or the continuation of
//! one (§4.5).
//!
//! **Nobody decides it.** It is the same connection, the same model, the same credential as configured now; the control
//! plane would have to be told to answer just that. So the attempt carries the decision of the first one: a failure of
//! both is one incident for the account (decision 9), and unmanaged traffic needs no control plane for it (§4.8). A
//! half-open breaker had its verdict when the first attempt became ready, so no attempt made here is a probe.
//!
//! **What must allow it**, in this order: the retry budgets of the combo and the provider (decision 49), the
//! configuration, the pace of the connection (decision 45), and last, right before it is sent, the fence of its lease
//! (decision 42). The permit and the place among those under way are those the request holds already. Whatever refuses,
//! nothing is sent; without a control plane the fence fails closed.
//!
//! **Its limits** are those in force when it is sent (§4.8), as they would be for any other attempt.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use tidegate_core::admission::{Place, terms};
use tidegate_core::config::Config;
use tidegate_core::lease::LeaseError;
use tidegate_core::routing::RequestFacts;
use tidegate_plane_client::{Admission, AdmissionAsk, Deadlines, Dispatch, Leased, Running};
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::control_port::ControlPort;
use crate::dispatch::{DispatchFault, Passed, prepare};
use crate::endpoint::Endpoint;
use crate::event_stream::Reading;
use crate::fence;
use crate::life::Life;
use crate::observe::{self, Clock, Observed};
use crate::proxy::Shared;
use crate::request::RequestBody;
use crate::sending::{is_budget_spent, time_left};
use crate::upstream::Pieces;

/// Longest wait for the pace of the connection. Its client has waited for a whole attempt already.
const MAX_PACE_WAIT: Duration = Duration::from_secs(5);
/// Until the next question when nobody could tell.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);

/// What is needed to send a request once more.
#[derive(Debug)]
pub(crate) struct Again<C> {
    pub(crate) shared: Arc<Shared<C>>,
    endpoint: Endpoint,
    /// As the first attempt sent it.
    pub(crate) body: RequestBody,
    passed: Passed,
    facts: Arc<RequestFacts>,
    /// As the first attempt was decided, without what was granted to it.
    dispatch: Dispatch,
}

/// An attempt that may be sent, at once.
#[derive(Debug)]
pub(crate) struct Cleared {
    dispatch: Box<Dispatch>,
    running: Running,
    leased: Option<Leased>,
    request: Request<Pieces>,
    pub(crate) reading: Reading,
    clock: Clock,
}

/// An attempt that was sent.
pub(crate) struct Underway {
    pub(crate) clock: Clock,
    /// Comes when it must end because of its lease.
    pub(crate) cut: Option<WaitForCancellationFutureOwned>,
    /// What it comes to. Dropped, it is let go of.
    pub(crate) observed: Pin<Box<dyn Future<Output = Observed> + Send>>,
}

impl Cleared {
    /// Sends it, in place of the attempt in flight.
    pub(crate) fn send<C: ControlPort>(
        self,
        life: &mut Life<C>,
        max_answer_bytes: usize,
    ) -> Underway {
        let Self {
            dispatch,
            running,
            leased,
            mut request,
            reading,
            clock,
        } = self;
        tracing::info!(
            request_id = life.request_id,
            attempt = %dispatch.attempt.id,
            connection = %dispatch.attempt.connection,
            "a request is sent again"
        );
        let sending = life.sending(&dispatch);
        life.sends_again(dispatch, running, leased);
        life.tells(&mut request);
        let sees = life.sees_apart();
        Underway {
            clock,
            cut: life.cut(),
            observed: Box::pin(async move {
                observe::attempt(&sending, request, reading, clock, max_answer_bytes, sees).await
            }),
        }
    }
}

/// Why an attempt is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// Decision 49.
    #[error("the retry budget is spent")]
    Budget,
    /// The configuration has changed since.
    #[error("it cannot be sent with the configuration in force: {0}")]
    Configuration(#[from] DispatchFault),
    /// Decision 45.
    #[error("the pace of the connection does not allow it in time")]
    Pace,
    /// Decision 42.
    #[error("the lease does not allow it: {0}")]
    Lease(#[from] LeaseError),
}

impl<C: ControlPort> Again<C> {
    /// After an attempt that was sent as decided here.
    pub(crate) fn after(
        shared: &Arc<Shared<C>>,
        endpoint: Endpoint,
        body: &RequestBody,
        passed: &Passed,
        facts: &Arc<RequestFacts>,
        dispatch: &Dispatch,
    ) -> Self {
        let mut dispatch = dispatch.clone();
        dispatch.permit = false;
        dispatch.attempt.probe = false;
        dispatch.excluded = Vec::new();
        dispatch.order = Vec::new();
        Self {
            shared: Arc::clone(shared),
            endpoint,
            body: body.clone(),
            passed: passed.clone(),
            facts: Arc::clone(facts),
            dispatch,
        }
    }

    /// How long an answer to the request may take, where that has a limit (`routing.md` §5.5).
    pub(crate) fn time(&self) -> Option<Duration> {
        time_left(&self.shared, &self.facts, 0)
    }

    /// Gets one more attempt with this body allowed, which is to be sent at once. `until` is when the time of the request
    /// is up, where that has a limit: headers are waited for until then.
    ///
    /// # Errors
    /// What does not allow it.
    pub(crate) async fn clear(
        &self,
        body: &RequestBody,
        until: Option<Instant>,
    ) -> Result<Cleared, Denied> {
        let control = &self.shared.control;
        let snapshot = control.snapshot().ok_or(DispatchFault::NotConfigured)?;
        if is_budget_spent(&self.shared, &self.facts, &self.dispatch.attempt.provider) {
            return Err(Denied::Budget);
        }
        let place = self.is_paced(&snapshot.config, until).await?;
        let mut dispatch = Box::new(self.dispatch.clone());
        dispatch.attempt.id = control.next_unasked_attempt();
        // What is in force when the attempt starts holds for it to its end (§4.8).
        let snapshot = control.snapshot().ok_or(DispatchFault::NotConfigured)?;
        let prepared = prepare(&snapshot, self.endpoint, body, &self.passed, &dispatch)?;
        dispatch.attempt.credential_version = prepared.credential_version;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let target = [dispatch.deadlines.target, left]
            .into_iter()
            .flatten()
            .min();
        dispatch.deadlines = Deadlines {
            target,
            ..snapshot.config.settings.attempt_limits().into()
        };
        let leased = fence::pass(control, &self.facts, &dispatch.attempt.connection).await?;
        let terms = terms(&snapshot.config, &dispatch.attempt.connection);
        let execution = terms.map(|terms| Duration::from_millis(terms.execution_ms));
        Ok(Cleared {
            clock: Clock::start(dispatch.deadlines, execution),
            reading: prepared.reading,
            request: prepared.request,
            // A request holds one place among those under way, and has it.
            running: Running::uncounted().at(place),
            leased,
            dispatch,
        })
    }

    /// Waits until the pace of the connection allows one more request. Those that wait in its queue are not asked: they
    /// are requests that come later. Gives back which one it is of those that are counted because of what the upstream told.
    async fn is_paced(
        &self,
        config: &Config,
        until: Option<Instant>,
    ) -> Result<Option<Place>, Denied> {
        let attempt = &self.dispatch.attempt;
        let Some(terms) = terms(config, &attempt.connection) else {
            return Ok(None);
        };
        let mut limits = terms.pace;
        limits.concurrent = None;
        let control = &self.shared.control;
        if limits.is_free() && !control.is_learned(&attempt.connection, &attempt.model) {
            return Ok(None);
        }
        let ask = AdmissionAsk {
            provider: attempt.provider.clone(),
            connection: attempt.connection.clone(),
            model: attempt.model.clone(),
            limits,
            look: false,
        };
        let last = Instant::now() + MAX_PACE_WAIT;
        let last = until.map_or(last, |until| until.min(last));
        loop {
            let wait = match control.admit(&ask).await {
                // It is counted by its pace alone.
                Admission::Now(uncounted) => return Ok(uncounted.place()),
                Admission::NotBefore(wait) | Admission::Spent(wait) => wait,
                Admission::Full | Admission::Unknown => UNKNOWN_PAUSE,
            };
            let then = Instant::now().checked_add(wait);
            let then = then.filter(|then| *then <= last).ok_or(Denied::Pace)?;
            tokio::time::sleep_until(then).await;
        }
    }
}
