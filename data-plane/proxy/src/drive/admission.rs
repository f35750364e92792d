//! Between decision and dispatch: the queue of the connection, where its pace is limited, or its upstream told that little is
//! left for the model (decision 45).
//!
//! **Order of grants.** A permit and a probe come with the decision, a place among the requests that may be under way at
//! once comes last, right before the attempt is sent. Nobody holds one while waiting for another: a request that must
//! wait gives its permit and its probe back, waits until it would be admitted, and is then decided on anew, first of all
//! for the same connection. So what was decided before a long wait is never what is sent after it. It keeps its place in
//! the queue until it is gone, or goes to another model: that one's line is another, and it stands at its end.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::admission::{LOOK_AGAIN_MS, QueueName, Terms};
use tidegate_core::ids::AttemptId;
use tidegate_plane_client::{Admission, AdmissionAsk, Dispatch, PermitWaits, Running};
use tokio::time::timeout;

use super::Drive;
use crate::control_port::ControlPort;
use crate::metrics::{QueueEnd, QueueLabels};
use crate::queues::{Place, Queue};
use crate::refusal::Refusal;
use crate::sending::time_left;

/// Longest time until the first one asks again, so that limits that change act on those that wait.
const LONGEST_PAUSE: Duration = Duration::from_millis(LOOK_AGAIN_MS);
/// From this on the pauses between two questions of the first one grow, while as many are under way as may.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// To this. A place that another data plane frees may stay free so long for the one whose turn it is.
const LAST_PAUSE: Duration = Duration::from_millis(100);
/// Until the next decision when nobody answers; it finds out who is gone.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);
/// So far apart, in ms, the first ones of several data planes come back that were told the same moment.
const SPREAD_MS: u64 = 10;

/// What becomes of a dispatch.
pub(super) enum Gone {
    /// It is sent.
    Sent(Running),
    /// It had to wait, and is to be decided on anew with this attempt.
    Anew(AttemptId),
    /// Its time passed while it waited. It is in no queue any more.
    Late,
}

impl<C: ControlPort> Drive<C> {
    /// Lets a dispatch through the queue of its connection.
    pub(super) async fn pass_queue(
        &mut self,
        dispatch: &Dispatch,
        terms: Option<Terms>,
    ) -> Result<Gone, Refusal> {
        let attempt = &dispatch.attempt;
        let control = &self.shared.control;
        let is_limited = |terms: &Terms| {
            !terms.pace.is_free() || control.is_learned(&attempt.connection, &attempt.model)
        };
        let Some(terms) = terms.filter(is_limited) else {
            self.place = None;
            return Ok(Gone::Sent(Running::uncounted()));
        };
        let name = QueueName {
            provider: attempt.provider.clone(),
            connection: attempt.connection.clone(),
        };
        let queue = self.shared.queues.of(&name);
        let ask = AdmissionAsk {
            provider: attempt.provider.clone(),
            connection: attempt.connection.clone(),
            model: attempt.model.clone(),
            limits: terms.pace,
            look: false,
        };
        let place = self
            .place
            .take()
            .filter(|place| place.is_in(&queue, &attempt.model));
        let place = if let Some(place) = place {
            // It is the first one: it waited until it was.
            if let Some(running) = self.goes(&queue, &ask).await {
                return Ok(Gone::Sent(running));
            }
            place
        } else {
            let _turn = queue.turn().await;
            if !queue.is_used(&attempt.model)
                && let Some(running) = self.goes(&queue, &ask).await
            {
                return Ok(Gone::Sent(running));
            }
            let entered = queue.enter(&attempt.model, terms.depth);
            let end = entered
                .as_ref()
                .map_or(QueueEnd::Refused, |_| QueueEnd::Waited);
            let labels = QueueLabels { end };
            self.shared.metrics.queue.get_or_create(&labels).inc();
            if let (Err(_), Some(life)) = (&entered, &mut self.life) {
                life.gives_back(dispatch.permit);
            }
            entered?
        };
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        life.gives_back(dispatch.permit);
        let elapsed_ms = life.elapsed_ms();
        let in_turn = match self.time_left(elapsed_ms) {
            Some(left) => timeout(left, self.wait_in(&place, ask)).await.is_ok(),
            None => {
                self.wait_in(&place, ask).await;
                true
            }
        };
        if !in_turn {
            return Ok(Gone::Late);
        }
        self.place = Some(place);
        self.waited = PermitWaits {
            granted: Some(dispatch.attempt.connection.clone()),
            in_vain: Vec::new(),
            queues_full: Vec::new(),
        };
        Ok(Gone::Anew(self.shared.control.next_attempt()))
    }

    /// What is left of the time of the request's combo (`routing.md` §5.5); none without a limit.
    pub(super) fn time_left(&self, elapsed_ms: u64) -> Option<Duration> {
        time_left(&self.shared, &self.request.facts, elapsed_ms)
    }

    /// Asks whether the request may go now.
    async fn goes(&self, queue: &Arc<Queue>, ask: &AdmissionAsk) -> Option<Running> {
        match self.shared.control.admit(ask).await {
            Admission::Now(running) => {
                let labels = QueueLabels {
                    end: QueueEnd::Went,
                };
                self.shared.metrics.queue.get_or_create(&labels).inc();
                let queue = Arc::clone(queue);
                Some(running.and_then(move || queue.frees()))
            }
            Admission::NotBefore(_)
            | Admission::Spent(_)
            | Admission::Full
            | Admission::Unknown => None,
        }
    }

    /// Waits until the request is the first one and would be admitted, or nobody can tell.
    async fn wait_in(&self, place: &Place, ask: AdmissionAsk) {
        let look = AdmissionAsk { look: true, ..ask };
        let mut pause = FIRST_PAUSE;
        loop {
            place.first().await;
            // Before the question, so that an end that comes with its answer is not missed.
            let freed = place.queue().freed();
            match self.shared.control.admit(&look).await {
                Admission::Now(_) => return,
                Admission::NotBefore(wait) => come_back_after(wait).await,
                Admission::Spent(wait) => {
                    let _aside = place.steps_aside();
                    come_back_after(wait).await;
                }
                Admission::Full => {
                    let came_free = timeout(pause, freed).await.is_ok();
                    pause = if came_free {
                        FIRST_PAUSE
                    } else {
                        pause.saturating_mul(2).min(LAST_PAUSE)
                    };
                }
                Admission::Unknown => {
                    tokio::time::sleep(UNKNOWN_PAUSE).await;
                    return;
                }
            }
        }
    }
}

async fn come_back_after(wait: Duration) {
    let spread = Duration::from_millis(rand::random_range(0..SPREAD_MS));
    tokio::time::sleep(wait.min(LONGEST_PAUSE).saturating_add(spread)).await;
}
