//! A panel, and the model that makes one answer of theirs.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use std::time::Duration;
use tidegate_core::routing::{FusionPlan, Panel, PanelResult, Rejection, RequestFacts, Shortfall};
use tokio::time::Instant;

use crate::control_port::ControlPort;
use crate::drive::{Drive, End};
use crate::refusal::Refusal;
use crate::reply::{EVENT_STREAM, NO_CACHE};
use crate::sse::Dialect;

use super::bodies::{Conversation, Unreadable};
use super::one_chunk;
use super::part::{self, PartAnswer, PartEnd, PartFailure, grown, silent_facts};

/// What a member of the panel came to.
struct Reply {
    seat: usize,
    end: Result<PartEnd, Refusal>,
}

pub(super) async fn carry_out<C: ControlPort>(
    drive: &mut Drive<C>,
    plan: FusionPlan,
) -> Result<End, Refusal> {
    let conversation = Conversation::of(drive.request.endpoint, &drive.request.body)?;
    let mut asked = Asked::new(&plan);
    ask(drive, &plan, &conversation, &mut asked).await?;
    match asked.panel.close() {
        PanelResult::Judge(_) => {
            let texts: Vec<&str> = asked.answers().map(|answer| answer.text.as_str()).collect();
            let added = texts.iter().map(|text| text.len()).sum();
            let facts = RequestFacts {
                member: Some(plan.judge),
                estimated_tokens: grown(drive.request.facts.estimated_tokens, added),
                ..RequestFacts::clone(&drive.request.facts)
            };
            let body = conversation.judging(&texts)?.into_body()?;
            drive.as_last_part(body, facts).await
        }
        PanelResult::Single(seat) => asked
            .take(seat)
            .and_then(|answer| single(drive, &conversation, answer))
            .ok_or(Refusal::Internal),
        PanelResult::Nothing => Ok(nothing(drive, &plan, asked)),
    }
}

/// Asks all members at once, until the panel proceeds; then drops those who are not done.
async fn ask<C: ControlPort>(
    drive: &Drive<C>,
    plan: &FusionPlan,
    conversation: &Conversation,
    asked: &mut Asked,
) -> Result<(), Refusal> {
    let body = conversation.clone().silent().into_body()?;
    let mut running: FuturesUnordered<BoxFuture<'_, Reply>> = FuturesUnordered::new();
    for (seat, member) in plan.panel.iter().enumerate() {
        let facts = RequestFacts {
            of_panel: true,
            ..silent_facts(&drive.request.facts, member.step)
        };
        let part = drive.part(body.clone(), facts)?;
        running.push(Box::pin(async move {
            let end = part::run(part).await;
            Reply { seat, end }
        }));
    }
    let begun = Instant::now();
    while let Some(limit_ms) = asked.panel.waits_until_ms() {
        let by = begun + Duration::from_millis(limit_ms);
        match tokio::time::timeout_at(by, running.next()).await {
            Ok(Some(reply)) => {
                let at_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                asked.hear(reply, at_ms);
            }
            Ok(None) | Err(_) => break,
        }
    }
    drive.dismiss_parts();
    Ok(())
}

/// The panel and what it said.
struct Asked {
    panel: Panel,
    answers: Vec<Option<PartAnswer>>,
    failures: Vec<PartFailure>,
}

impl Asked {
    fn new(plan: &FusionPlan) -> Self {
        Self {
            panel: Panel::new(plan),
            answers: plan.panel.iter().map(|_| None).collect(),
            failures: Vec::new(),
        }
    }

    fn hear(&mut self, reply: Reply, at_ms: u64) {
        let shortfall = match reply.end {
            Ok(PartEnd::Answered(answer)) => {
                self.panel.answers(reply.seat, at_ms);
                if let Some(seat) = self.answers.get_mut(reply.seat) {
                    *seat = Some(*answer);
                }
                self.keep_what_is_needed();
                return;
            }
            Ok(PartEnd::Unreadable(Unreadable::Empty)) => Shortfall::EmptyContent,
            Ok(PartEnd::Unreadable(Unreadable::Unparseable)) => Shortfall::Unparseable,
            Ok(PartEnd::Failed(failure)) => {
                let shortfall = failure.shortfall;
                self.failures.push(*failure);
                shortfall
            }
            Err(refusal) => Shortfall::Status(refusal.status().as_u16()),
        };
        self.panel.fails(reply.seat, shortfall);
    }

    /// A body is handed on only when it is the single answer; of several the judge gets the texts, which are short.
    fn keep_what_is_needed(&mut self) {
        if self.answers().count() > 1 {
            for answer in self.answers.iter_mut().flatten() {
                answer.answer.body = Bytes::new();
            }
        }
    }

    /// In the order of the panel.
    fn answers(&self) -> impl Iterator<Item = &PartAnswer> {
        self.answers.iter().flatten()
    }

    fn take(&mut self, seat: usize) -> Option<PartAnswer> {
        self.answers.get_mut(seat)?.take()
    }
}

/// The only answer, as it is, or as a stream of one chunk (decision 32).
fn single<C: ControlPort>(
    drive: &Drive<C>,
    conversation: &Conversation,
    single: PartAnswer,
) -> Option<End> {
    let PartAnswer {
        mut answer, source, ..
    } = single;
    if drive.request.body.stream {
        let dialect = Dialect::of(drive.request.endpoint);
        answer.body = one_chunk::stream(dialect, &answer.body, conversation.wants_usage())?;
        answer.headers.insert(CONTENT_TYPE, EVENT_STREAM);
        answer.headers.insert(CACHE_CONTROL, NO_CACHE);
    }
    Some(End::Whole(answer, source))
}

/// No answer at all. When everybody refuses the request as the client's own fault, the client is told so in the first
/// one's words (decision 50): to try again would be of no use.
fn nothing<C: ControlPort>(drive: &mut Drive<C>, plan: &FusionPlan, asked: Asked) -> End {
    let Asked {
        panel, failures, ..
    } = asked;
    let of_client = failures.len() == plan.panel.len()
        && failures
            .iter()
            .all(|failure| failure.rejection.pass_through);
    let attempted = drive.attempts();
    let mut rejections = Vec::with_capacity(failures.len());
    for failure in failures {
        if of_client {
            drive.words = failure.words;
            return End::Rejected(Box::new(Rejection {
                attempted,
                ..*failure.rejection
            }));
        }
        rejections.push(*failure.rejection);
    }
    End::Rejected(Box::new(panel.failure(plan, &rejections, attempted)))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use tidegate_core::routing::PlanMember;

    use super::*;
    use crate::observe::Answered;
    use crate::sse::Tokens;

    #[test]
    fn of_several_answers_only_the_texts_are_kept() {
        let member = |step: u32| PlanMember {
            step,
            name: format!("member {step}"),
        };
        let mut asked = Asked::new(&FusionPlan {
            panel: (0..3).map(member).collect(),
            judge: 0,
            min_panel: 2,
            straggler_grace_ms: 1,
            panel_hard_timeout_ms: 1,
            pool_size: 3,
        });
        for (seat, held) in [(2, 64), (0, 0), (1, 0)] {
            let answer = PartAnswer {
                text: format!("text {seat}"),
                answer: Answered {
                    status: StatusCode::OK,
                    headers: HeaderMap::new(),
                    body: Bytes::from_static(&[b' '; 64]),
                    tokens: Tokens::default(),
                },
                source: None,
            };
            let end = Ok(PartEnd::Answered(Box::new(answer)));
            asked.hear(Reply { seat, end }, 0);
            let bytes: usize = asked.answers().map(|it| it.answer.body.len()).sum();
            assert_eq!(bytes, held);
        }
        let texts: Vec<_> = asked.answers().map(|it| it.text.as_str()).collect();
        assert_eq!(texts, ["text 0", "text 1", "text 2"]);
    }
}
