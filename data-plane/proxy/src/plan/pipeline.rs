//! Steps of which each gets the answer of the one before.

use tidegate_core::routing::{
    PipelinePlan, PipelineStage, RequestFacts, StageFault, stage_failure,
};

use crate::control_port::ControlPort;
use crate::drive::{Drive, End};
use crate::refusal::Refusal;

use super::bodies::{Conversation, Unreadable};
use super::part::{self, PartEnd, grown, silent_facts};

pub(super) async fn carry_out<C: ControlPort>(
    drive: &mut Drive<C>,
    plan: PipelinePlan,
) -> Result<End, Refusal> {
    let conversation = Conversation::of(drive.request.endpoint, &drive.request.body)?;
    let Some((last, before)) = plan.stages.split_last() else {
        return Err(Refusal::Internal);
    };
    let mut said: Option<String> = None;
    for (number, stage) in before.iter().enumerate() {
        let body = told(&conversation, stage, said.as_deref())?;
        let facts = silent_facts(&drive.request.facts, stage.member.step);
        let facts = told_facts(facts, said.as_deref());
        let part = drive.part(body.silent().into_body()?, facts)?;
        let fault = match Box::pin(part::run(part)).await? {
            PartEnd::Answered(answer) => {
                said = Some(answer.text);
                continue;
            }
            PartEnd::Unreadable(Unreadable::Empty) => StageFault::EmptyContent,
            PartEnd::Unreadable(Unreadable::Unparseable) => StageFault::Unparseable,
            PartEnd::Failed(failure) => {
                drive.words = failure.words;
                StageFault::Rejected(failure.rejection)
            }
        };
        return Ok(fails(drive, &plan, number, fault));
    }
    let body = told(&conversation, last, said.as_deref())?.into_body()?;
    let facts = RequestFacts {
        member: Some(last.member.step),
        ..RequestFacts::clone(&drive.request.facts)
    };
    let facts = told_facts(facts, said.as_deref());
    Ok(match drive.as_last_part(body, facts).await? {
        End::Rejected(rejection) => {
            fails(drive, &plan, before.len(), StageFault::Rejected(rejection))
        }
        end => end,
    })
}

/// The request ends at this step.
fn fails<C: ControlPort>(
    drive: &Drive<C>,
    plan: &PipelinePlan,
    stage: usize,
    fault: StageFault,
) -> End {
    let rejection = stage_failure(plan, stage, fault, drive.attempts());
    End::Rejected(Box::new(rejection))
}

/// The first step sees the client's conversation, each later one what the step before it said.
fn told(
    conversation: &Conversation,
    stage: &PipelineStage,
    said: Option<&str>,
) -> Result<Conversation, Refusal> {
    let conversation = conversation.clone();
    match (said, &stage.prompt) {
        (Some(said), prompt) => conversation.told(said, prompt.as_deref()),
        (None, Some(prompt)) => conversation.with_prompt(prompt),
        (None, None) => Ok(conversation),
    }
}

/// What holds of the client's conversation does not hold of what a step said.
fn told_facts(facts: RequestFacts, said: Option<&str>) -> RequestFacts {
    match said {
        None => facts,
        Some(said) => RequestFacts {
            vision: false,
            cache_key: None,
            estimated_tokens: grown(facts.estimated_tokens.map(|_| 0), said.len()),
            ..facts
        },
    }
}
