//! Requests of keys that may lease: each is for the connection of its lease and no other (`sessions-and-streams.md` §1.10).
//!
//! First ordinary selection is asked, then the durable store places the request, and what follows is the ordinary decision
//! that looks at the lease's connection alone. Every question places anew, so that a wait, a retry and a move within a
//! request find the lease as it is by then. What ends a request by itself, whatever its lease says, is told first: a
//! client whose request failed at its upstream is not told about its lease instead.

use std::sync::Arc;

use tidegate_core::config::ApiKey;
use tidegate_core::ids::ConnectionId;
use tidegate_core::lease::{LeaseError, Placement};
use tidegate_core::routing::{
    AttemptsSoFar, Decision, DecisionTurns, RequestFacts, Speaks, uses_several_connections,
};

use crate::clock::local_now;
use crate::lease::placing::ToPlace;
use crate::lease::selection::Asked;
use crate::pins::ReadPins;

use super::Decider;
use super::grants::{Corrected, Question};
use super::permit::Granted;

impl Decider {
    /// Decides on a request of a key that may lease.
    pub(super) async fn managed(
        self: &Arc<Self>,
        question: Question<'_>,
        key: &Arc<ApiKey>,
    ) -> Granted {
        let (config, facts) = (&question.current.config, question.facts);
        let Some(name) = facts.lease else {
            return refused(LeaseError::ContextRequired);
        };
        if uses_several_connections(config, &facts.model) {
            return refused(LeaseError::UnsupportedRoute);
        }
        let selection = Asked {
            current: question.current,
            fleet: question.fleet,
            view: &self.corrected(&question),
            facts,
            so_far: question.so_far,
            egress: question.egress,
            now: self.clock.now(),
        }
        .select(Speaks::Request);
        let placed = self.leases.place(ToPlace {
            config,
            name,
            key,
            forced: facts.forced_connection.as_ref(),
            selection: &selection,
        });
        let placed = placed.await;
        let question = Question {
            deadline: local_now() + self.limits.decide,
            ..question
        };
        let Ok(placed) = placed else {
            // The data plane may hold a grant there; otherwise its fence lets nothing pass.
            let last = self.leases.placed_last(name, key).filter(|last| {
                let mut candidates = selection.candidates().iter();
                candidates.any(|candidate| candidate.connection == *last)
            });
            return match last {
                Some(connection) => self.on_lease(question, connection).await,
                None => self.rejected_or(&question, LeaseError::ServiceUnavailable),
            };
        };
        match placed {
            Ok(Placement::Lease(lease)) => self.on_lease(question, lease.connection).await,
            Ok(Placement::Ordinary(Some(lease))) => {
                let there = self.on_lease(question, lease.connection).await;
                match (&there.decision, self.without_grants(&question)) {
                    (Decision::Reject(_), ordinary @ (Decision::Reject(_) | Decision::Wait(_))) => {
                        Granted::without(ordinary)
                    }
                    _ => there,
                }
            }
            Ok(Placement::Ordinary(None)) => {
                // A lease that is lost is not waited for.
                let so_far = AttemptsSoFar {
                    no_wait: true,
                    ..question.so_far.clone()
                };
                let question = Question {
                    so_far: &so_far,
                    ..question
                };
                self.rejected_or(&question, LeaseError::Required)
            }
            Err(error) => self.rejected_or(&question, error),
        }
    }

    /// The ordinary decision that looks at this connection alone.
    async fn on_lease(
        self: &Arc<Self>,
        question: Question<'_>,
        connection: ConnectionId,
    ) -> Granted {
        let facts = RequestFacts {
            leased: Some(connection),
            ..question.facts.clone()
        };
        let there = Question {
            facts: &facts,
            ..question
        };
        self.with_grants(there).await
    }

    /// The ordinary final answer, if that is what the request would get, else that of the lease.
    fn rejected_or(&self, question: &Question<'_>, error: LeaseError) -> Granted {
        match self.without_grants(question) {
            ordinary @ Decision::Reject(_) => Granted::without(ordinary),
            Decision::Dispatch(_)
            | Decision::Wait(_)
            | Decision::TakeTurn(_)
            | Decision::ReadPin(_)
            | Decision::Plan(_) => refused(error),
        }
    }

    /// What would be decided, with nothing taken for it.
    fn without_grants(&self, question: &Question<'_>) -> Decision {
        let turns = DecisionTurns::peeking(&question.current.counters);
        let view = self.corrected(question);
        self.decide_on(question, &view, &turns, rand::random())
    }

    fn corrected<'a>(&'a self, question: &Question<'a>) -> Corrected<'a> {
        Corrected {
            view: &self.view,
            config: &question.current.config,
            attempt: question.attempt,
            no_permits: false,
            // Leases say where requests go.
            pins: ReadPins::default(),
        }
    }
}

fn refused(error: LeaseError) -> Granted {
    Granted::without(Decision::Reject(Box::new(error.into())))
}
