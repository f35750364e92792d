//! What a step of a pipeline that fails leads to (`routing.md` §8.19).

use super::Rejection;
use super::plan::PipelinePlan;
use super::terminal::error_type;

/// Statuses after which a step of a pipeline is tried again; fewer than elsewhere.
pub(super) const RETRYABLE: &[u16] = &[429, 502, 503, 504];

/// Why a step does not lead to the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageFault {
    /// Its request was not answered.
    Rejected(Box<Rejection>),
    /// Its answer holds no text.
    EmptyContent,
    /// Its answer is no answer.
    Unparseable,
}

/// The answer to a request whose pipeline ends at step `stage`, counted from 0: the step's own status, or 502 when it
/// answered with nothing to go on with. `attempted` is how many attempts were sent for the whole request.
///
/// What the upstream said of the first step reaches the client unchanged where it is the client's own fault (decision
/// 50): its conversation is the client's. Later steps get what the client never wrote, so their errors name the step.
#[must_use]
pub fn stage_failure(
    plan: &PipelinePlan,
    stage: usize,
    fault: StageFault,
    attempted: u32,
) -> Rejection {
    let number = stage.saturating_add(1);
    let name = plan.stages.get(stage).map(|stage| &*stage.member.name);
    let name = name.unwrap_or_default();
    let named = |message: &str| format!("step {number} ({name}): {message}");
    let rejection = match fault {
        StageFault::Rejected(rejection) => Rejection {
            message: named(&rejection.message),
            pass_through: rejection.pass_through && stage == 0,
            ..*rejection
        },
        StageFault::EmptyContent => without_answer(named("the answer holds no text"), "empty"),
        StageFault::Unparseable => {
            without_answer(named("the answer cannot be read"), "unparseable")
        }
    };
    Rejection {
        pool_size: plan.pool_size,
        attempted,
        ..rejection
    }
}

fn without_answer(message: String, what: &str) -> Rejection {
    let code = format!("pipeline_step_{what}");
    Rejection {
        status: 502,
        terminal_reason: code.clone(),
        code,
        error_type: error_type(502).to_owned(),
        message,
        retry_after_secs: None,
        pass_through: false,
        pool_size: 0,
        attempted: 0,
        excluded: Vec::new(),
        lease: None,
    }
}
