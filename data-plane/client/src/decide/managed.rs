//! Decisions for managed requests: those of a key that may lease (decision 54). They rest on the durable store, so they
//! have more time, and they are never made here.
//!
//! What comes of them says little of how the control plane decides for others: the durable store may be away, or slow,
//! while it decides everything else well. So an answer counts as a sign of life, and a miss as nothing.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::lease::LeaseError;
use tidegate_core::routing::Rejection;
use tidegate_proto::routing::v1::{DecideRequest, DecideResponse};
use tokio::time::{Instant, sleep_until};

use super::questions::{NoAnswer, Questions};
use super::{Unanswered, local, translate};
use crate::client::Inner;
use crate::port::{Answer, Ask, Origin};

/// After this part of the limit another replica is asked beside the first.
const PATIENCE_PARTS: u32 = 4;

/// Pause after every replica has failed, before they are asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Whether a request is managed.
pub(super) fn is_managed(ask: &Ask) -> bool {
    let facts = &ask.facts;
    facts.lease.is_some() || facts.key.as_ref().is_some_and(|key| key.may_lease())
}

impl Inner {
    /// Decides for a managed request.
    pub(super) async fn decide_managed(self: &Arc<Self>, ask: &Ask) -> Answer {
        let sent = Instant::now();
        match self.ask_managed(ask, sent).await {
            Ok(answer) => {
                self.metrics.decided_remotely.inc();
                self.keep_grants(ask, &answer);
                answer
            }
            Err(
                Unanswered::NotNeeded(_)
                | Unanswered::Late
                | Unanswered::Unreached
                | Unanswered::Unusable,
            ) => {
                self.metrics.lease_undecided.inc();
                let answer = self.refuse_managed(ask);
                self.keep_grants(ask, &answer);
                answer
            }
        }
    }

    async fn ask_managed(self: &Arc<Self>, ask: &Ask, sent: Instant) -> Result<Answer, Unanswered> {
        let question = {
            let released = self.permits.unheard();
            let now = self.clock.at(sent);
            translate::question(ask, now, self.configuration_version(), released)
        };
        let deadline = sent + self.limits.decide_managed;
        let response = self
            .managed_response(question, &ask.origin, sent, deadline)
            .await?;
        let heard = Instant::now();
        if heard.saturating_duration_since(sent) < self.limits.decide {
            self.gate.answered(heard);
        } else {
            self.gate.heard(heard);
        }
        self.understood(ask, response, deadline).await
    }

    async fn managed_response(
        self: &Arc<Self>,
        question: DecideRequest,
        origin: &Origin,
        sent: Instant,
        deadline: Instant,
    ) -> Result<DecideResponse, Unanswered> {
        let patience = self.limits.decide_managed / PATIENCE_PARTS;
        let mut questions = Questions::managed(self, question.clone(), origin);
        let mut until = sent;
        loop {
            until = (until + patience).min(deadline);
            match questions.answer(until).await {
                Ok(response) => return Ok(response),
                Err(NoAnswer::Late) if until < deadline => {}
                Err(NoAnswer::Late) => return Err(Unanswered::Late),
                Err(NoAnswer::Unreached) => {
                    // A replica may be starting, or a connection may have been an old one.
                    let again = Instant::now() + PAUSE;
                    if again >= deadline {
                        return Err(Unanswered::Unreached);
                    }
                    sleep_until(again).await;
                    until = again;
                    questions = Questions::managed(self, question.clone(), origin);
                }
                Err(NoAnswer::Unusable) => return Err(Unanswered::Unusable),
            }
        }
    }

    /// Nobody decided.
    fn refuse_managed(&self, ask: &Ask) -> Answer {
        let now = self.clock.at(Instant::now());
        let error = LeaseError::ServiceUnavailable;
        let rejection = Rejection {
            status: error.status(),
            code: error.code().to_owned(),
            error_type: "lease_error".to_owned(),
            message: error.to_string(),
            retry_after_secs: None,
            pass_through: false,
            terminal_reason: "control_plane_unreachable".to_owned(),
            pool_size: 0,
            attempted: 0,
            excluded: Vec::new(),
            lease: Some(error),
        };
        let snapshot = self.snapshot.load();
        local::rejected(snapshot.as_deref(), ask, rejection, now)
    }
}
