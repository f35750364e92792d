//! One attempt: from a decision to what the upstream made of it.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use tidegate_core::admission::Terms;
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_plane_client::{Dispatch, Leased, Running};

use crate::again::Again;
use crate::control_port::ControlPort;
use crate::dispatch::{DispatchFault, prepare};
use crate::fence;
use crate::observe::{self, Clock, Failure, Observed};
use crate::refusal::Refusal;
use crate::relay::Served;

use super::remarks::{Remarks, strategy};
use super::{Admitted, Drive, End, Ready, Source};

impl<C: ControlPort> Drive<C> {
    /// Sends one attempt; `None` when it failed, or was not sent and is to be decided on anew.
    pub(super) async fn attempt(
        &mut self,
        mut dispatch: Box<Dispatch>,
        terms: Option<Terms>,
        running: Running,
    ) -> Result<Option<End>, Refusal> {
        self.again = None;
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        let Admitted {
            endpoint,
            body,
            passed,
            ..
        } = &self.request;
        let connection = &dispatch.attempt.connection;
        let told = match &mut self.relay {
            Some(relay) => relay.told(*endpoint, body, connection).await,
            None => None,
        };
        if told.is_some() {
            self.shared.metrics.handoffs_told.inc();
        }
        let body = told.as_ref().unwrap_or(body);
        let mut served = self.relay.as_ref().map(|_| Served::by(&dispatch));
        let snapshot = self.shared.control.snapshot();
        let order = std::mem::take(&mut dispatch.order);
        let so_far = Arc::make_mut(&mut self.so_far);
        so_far.follow(order, dispatch.order_version);
        so_far.no_wait = false;
        self.strategy = snapshot
            .as_deref()
            .and_then(|snapshot| strategy(&snapshot.config, &self.request.facts.model, &dispatch));
        life.is_ordered_by(self.strategy);
        self.remarks = Remarks::of(&dispatch);
        let execution = terms.map(|terms| Duration::from_millis(terms.execution_ms));
        let prepared = snapshot
            .ok_or(DispatchFault::NotConfigured)
            .and_then(|snapshot| prepare(&snapshot, *endpoint, body, passed, &dispatch));
        let leased = match &prepared {
            Ok(_) => {
                let facts = &self.request.facts;
                let connection = &dispatch.attempt.connection;
                match fence::pass(&self.shared.control, facts, connection).await {
                    // Once: who finds it elsewhere again is told so.
                    Err(error) if !self.has_moved && fence::has_moved(error, facts) => {
                        self.has_moved = true;
                        life.gives_back(dispatch.permit);
                        return Ok(None);
                    }
                    passed => passed?,
                }
            }
            Err(_) => None,
        };
        let clock = Clock::start(dispatch.deadlines, execution);
        let source = Source::of(&dispatch.attempt);
        let reading = prepared.as_ref().map(|prepared| prepared.reading).ok();
        let again = reading.filter(|reading| body.stream && reading.may_be_sent_again());
        let again = again.map(|reading| {
            let facts = &self.request.facts;
            let again = Again::after(&self.shared, *endpoint, body, passed, facts, &dispatch);
            (reading, Arc::new(again))
        });
        let observed = match prepared {
            Ok(prepared) => {
                // The credential that is sent is the one that is judged (decision 9).
                dispatch.attempt.credential_version = prepared.credential_version;
                let cut = leased.as_ref().map(Leased::cut);
                let sending = life.sending(&dispatch);
                life.sends(dispatch, running, leased);
                let mut request = prepared.request;
                life.tells(&mut request);
                let reading = prepared.reading;
                let max_bytes = self.max_answer_bytes;
                let quota = Mutex::new(None);
                let sees = |status, headers: &HeaderMap| {
                    *quota.lock() = life.sees(status, headers);
                };
                let attempt = observe::attempt(&sending, request, reading, clock, max_bytes, sees);
                let observed = fence::until_cut(cut, attempt).await?;
                if let Some(served) = &mut served {
                    served.success.quota = quota.into_inner();
                }
                observed
            }
            Err(fault) => {
                tracing::warn!(
                    attempt = %dispatch.attempt.id,
                    connection = %dispatch.attempt.connection,
                    error = %fault,
                    "a decision cannot be carried out here"
                );
                life.sends(dispatch, running, None);
                Observed::Failed(Outcome::Local(LocalFault::Internal).into())
            }
        };
        match observed {
            Observed::Whole(answer) => {
                self.served = served;
                life.succeeds();
                life.uses_answer(&answer);
                Ok(Some(End::Whole(answer, source)))
            }
            Observed::Stream(status, headers, stream) => {
                self.served = served;
                life.succeeds();
                let ready = Box::new(Ready {
                    status,
                    headers,
                    stream: *stream,
                    clock,
                    broken: None,
                });
                let Some((reading, again)) = again else {
                    return Ok(Some(End::Stream(ready, source)));
                };
                self.again = reading.continues.then(|| Arc::clone(&again));
                if reading.is_held {
                    return Box::pin(self.hold(ready, source, &again)).await;
                }
                Ok(Some(End::Stream(ready, source)))
            }
            Observed::Failed(failure) => {
                self.fails(failure)?;
                Ok(None)
            }
        }
    }

    /// The attempt failed, and its client has seen nothing: the next question asks about it.
    pub(super) fn fails(&mut self, failure: Failure) -> Result<(), Refusal> {
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        let Failure {
            outcome,
            words,
            lease,
        } = failure;
        self.failures.add(&outcome);
        self.limits.add(&outcome);
        self.last_outcome = Some(outcome.clone());
        self.last_failure = life.fails(outcome);
        self.words = words;
        match lease {
            // Nothing else may be sent in its name.
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}
