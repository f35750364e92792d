//! A note is made: a request of our own to a model that sums the conversation up. It is driven like any other, so its
//! attempts are decided, gated, reported and counted; its answer is read here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tidegate_core::routing::relay::{
    INSTRUCTION, MAX_OUTPUT_TOKENS, Note, TEMPERATURE, is_made_after, summary_facts,
};
use tidegate_core::routing::resolve;
use tidegate_plane_client::{Dispatch, Success};
use tokio::time::timeout;

use super::Relay;
use crate::control_port::ControlPort;
use crate::drive::{Admitted, Drive, End};
use crate::endpoint::Endpoint;
use crate::metrics::{HandoffEnd, HandoffLabels};
use crate::plan::{Conversation, text};
use crate::proxy::Shared;
use crate::request::RequestBody;
use crate::spans::Branch;

/// How long a note may take. The control plane tells nobody else to make it for longer.
const LIMIT: Duration = Duration::from_secs(45);

/// A success, and the target of the combo that it was at.
pub(crate) struct Served {
    pub(crate) success: Success,
    pub(crate) target_key: String,
}

impl Served {
    /// By whoever this sends to, if it is a success.
    pub(crate) fn by(dispatch: &Dispatch) -> Self {
        let attempt = &dispatch.attempt;
        Self {
            success: Success {
                provider: attempt.provider.clone(),
                connection: attempt.connection.clone(),
                model: attempt.model.clone(),
                quota: None,
            },
            target_key: dispatch.target_key.clone(),
        }
    }
}

struct Job<C> {
    shared: Arc<Shared<C>>,
    relay: Relay,
    served: Served,
    request: Admitted,
    /// The id and the trace of the client's request.
    whose: (String, Branch),
}

/// Sees to it that a note is made after a success, if that is wanted. Never waits.
pub(crate) fn make_after<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    relay: Relay,
    served: Served,
    request: Admitted,
    whose: (String, Branch),
) {
    let may_be_wanted = relay.found.is_none()
        && shared.control.snapshot().is_some_and(|snapshot| {
            resolve(&snapshot.config, &request.facts.model)
                .is_some_and(|route| is_made_after(&route, &served.success.provider))
        });
    if !may_be_wanted {
        return;
    }
    let count = |shared: &Shared<C>, end| {
        let labels = HandoffLabels { end };
        shared.metrics.handoffs.get_or_create(&labels).inc();
    };
    let Ok(room) = Arc::clone(&shared.handoffs).try_acquire_owned() else {
        count(shared, HandoffEnd::Full);
        return;
    };
    let job = Job {
        shared: Arc::clone(shared),
        relay,
        served,
        request,
        whose,
    };
    let (shared, tasks) = (Arc::clone(shared), shared.tasks.clone());
    tasks.spawn(async move {
        let stop = shared.stop.clone();
        let made = stop.run_until_cancelled(timeout(LIMIT, job.run())).await;
        let end = match made {
            Some(Ok(end)) => end,
            Some(Err(_elapsed)) => HandoffEnd::Late,
            None => HandoffEnd::Stopped,
        };
        count(&shared, end);
        drop(room);
    });
}

impl<C: ControlPort> Job<C> {
    async fn run(self) -> HandoffEnd {
        let Self {
            shared,
            relay,
            served: Served {
                success,
                target_key,
            },
            request,
            whose: (request_id, branch),
        } = self;
        let control = &shared.control;
        let Some(terms) = control.begin_handoff(&relay.name, &success).await else {
            return HandoffEnd::NotWanted;
        };
        let endpoint = request.endpoint;
        let said = Conversation::of(endpoint, &request.body)
            .ok()
            .and_then(|conversation| conversation.transcript(terms.max_messages));
        let Some(said) = said else {
            return HandoffEnd::NothingSaid;
        };
        let facts = control.snapshot().and_then(|snapshot| {
            let route = resolve(&snapshot.config, &request.facts.model)?;
            let prompt_bytes = INSTRUCTION.len().saturating_add(said.len());
            let facts = summary_facts(&request.facts, &route, &terms, &target_key, prompt_bytes);
            Some(Arc::new(facts))
        });
        // The configuration changed: the combo is gone.
        let Some(facts) = facts else {
            return HandoffEnd::NotWanted;
        };
        let Some(body) = body(endpoint, &facts.model, &said) else {
            return HandoffEnd::NothingSaid;
        };
        let asked = Admitted {
            endpoint,
            body,
            facts,
            passed: request.passed,
        };
        // It can be long, and is not needed any more.
        drop(request.body);
        let answer = Drive::apart(Arc::clone(&shared), asked, request_id, branch)
            .until_end()
            .await;
        let Ok(End::Whole(answer, _)) = answer else {
            return HandoffEnd::Unanswered;
        };
        let summary = text(endpoint, &answer.body).ok();
        let Some(note) = summary.and_then(|summary| Note::read(&summary)) else {
            return HandoffEnd::Unusable;
        };
        let made_on = &success.connection;
        let saved = control.save_handoff(&relay.name, &note, made_on, terms.expires_at);
        if saved.await {
            HandoffEnd::Saved
        } else {
            HandoffEnd::NotKept
        }
    }
}

/// The request for a summary, in the client's format; `None` for an endpoint without conversations.
fn body(endpoint: Endpoint, model: &str, said: &str) -> Option<RequestBody> {
    let user = json!({"role": "user", "content": said});
    let body = match endpoint {
        Endpoint::ChatCompletions => json!({
            "model": model, "stream": false,
            "max_tokens": MAX_OUTPUT_TOKENS, "temperature": TEMPERATURE,
            "messages": [{"role": "system", "content": INSTRUCTION}, user],
        }),
        Endpoint::Responses => json!({
            "model": model, "stream": false, "store": false,
            "max_output_tokens": MAX_OUTPUT_TOKENS, "temperature": TEMPERATURE,
            "instructions": INSTRUCTION, "input": [user],
        }),
        Endpoint::Messages => json!({
            "model": model, "stream": false,
            "max_tokens": MAX_OUTPUT_TOKENS, "temperature": TEMPERATURE,
            "system": INSTRUCTION, "messages": [user],
        }),
        Endpoint::Completions
        | Endpoint::InputTokens
        | Endpoint::Embeddings
        | Endpoint::CountTokens => return None,
    };
    RequestBody::parse(Bytes::from(body.to_string()), false).ok()
}
