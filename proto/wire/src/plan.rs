//! Plans.

use tidegate_core::config::MAX_PLAN_STEPS;
use tidegate_core::routing::{FusionPlan, PipelinePlan, PipelineStage, Plan, PlanMember};
use tidegate_proto::routing::v1 as routing;

use crate::WireError;

/// A plan as a message.
#[must_use]
pub fn to_proto(plan: &Plan) -> routing::Plan {
    let kind = match plan {
        Plan::Fusion(plan) => routing::plan::Kind::Fusion(routing::FusionPlan {
            panel: plan.panel.iter().map(member_to_proto).collect(),
            judge: plan.judge,
            min_panel: plan.min_panel,
            straggler_grace_ms: plan.straggler_grace_ms,
            panel_hard_timeout_ms: plan.panel_hard_timeout_ms,
            pool_size: plan.pool_size,
        }),
        Plan::Pipeline(plan) => routing::plan::Kind::Pipeline(routing::PipelinePlan {
            stages: plan
                .stages
                .iter()
                .map(|stage| routing::PipelineStage {
                    member: Some(member_to_proto(&stage.member)),
                    prompt: stage.prompt.clone().unwrap_or_default(),
                })
                .collect(),
            pool_size: plan.pool_size,
        }),
    };
    routing::Plan { kind: Some(kind) }
}

/// A plan from a message.
///
/// # Errors
/// When it is of no kind known here, or has more parts than a plan may have, or fewer than need one.
pub fn from_proto(plan: routing::Plan) -> Result<Plan, WireError> {
    match plan.kind.ok_or(WireError::Missing("plan.kind"))? {
        routing::plan::Kind::Fusion(plan) => {
            let parts = parts("plan.fusion.panel", plan.panel.len())?;
            Ok(Plan::Fusion(FusionPlan {
                pool_size: plan.pool_size.max(parts),
                panel: plan.panel.into_iter().map(member_from_proto).collect(),
                judge: plan.judge,
                min_panel: plan.min_panel,
                straggler_grace_ms: plan.straggler_grace_ms,
                panel_hard_timeout_ms: plan.panel_hard_timeout_ms,
            }))
        }
        routing::plan::Kind::Pipeline(plan) => {
            let parts = parts("plan.pipeline.stages", plan.stages.len())?;
            let stages = plan
                .stages
                .into_iter()
                .map(|stage| {
                    Ok(PipelineStage {
                        member: member_from_proto(
                            stage.member.ok_or(WireError::Missing("stage.member"))?,
                        ),
                        prompt: (!stage.prompt.is_empty()).then_some(stage.prompt),
                    })
                })
                .collect::<Result<_, WireError>>()?;
            Ok(Plan::Pipeline(PipelinePlan {
                stages,
                pool_size: plan.pool_size.max(parts),
            }))
        }
    }
}

fn parts(field: &str, number: usize) -> Result<u32, WireError> {
    Some(number)
        .filter(|number| (2..=MAX_PLAN_STEPS).contains(number))
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| WireError::invalid(field, "too few or too many"))
}

fn member_to_proto(member: &PlanMember) -> routing::PlanMember {
    routing::PlanMember {
        step: member.step,
        name: member.name.clone(),
    }
}

fn member_from_proto(member: routing::PlanMember) -> PlanMember {
    PlanMember {
        step: member.step,
        name: member.name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(step: u32) -> PlanMember {
        PlanMember {
            step,
            name: format!("p/m{step}"),
        }
    }

    #[test]
    fn plans_come_back_as_they_went() {
        let fusion = Plan::Fusion(FusionPlan {
            panel: vec![member(0), member(2)],
            judge: 3,
            min_panel: 2,
            straggler_grace_ms: 8_000,
            panel_hard_timeout_ms: 90_000,
            pool_size: 5,
        });
        let stage = |step, prompt: Option<&str>| PipelineStage {
            member: member(step),
            prompt: prompt.map(str::to_owned),
        };
        let pipeline = Plan::Pipeline(PipelinePlan {
            stages: vec![stage(0, None), stage(1, Some("be brief"))],
            pool_size: 2,
        });
        for plan in [fusion, pipeline] {
            assert_eq!(from_proto(to_proto(&plan)).unwrap(), plan);
        }
    }

    #[test]
    fn a_plan_that_does_not_say_has_a_target_for_each_step() {
        let message = routing::FusionPlan {
            panel: vec![member_to_proto(&member(0)); 3],
            ..routing::FusionPlan::default()
        };
        let message = routing::Plan {
            kind: Some(routing::plan::Kind::Fusion(message)),
        };
        match from_proto(message).unwrap() {
            Plan::Fusion(plan) => assert_eq!(plan.pool_size, 3),
            Plan::Pipeline(_) => panic!("a fusion"),
        }
    }

    #[test]
    fn plans_of_a_wrong_size_are_refused() {
        for size in [0, 1, MAX_PLAN_STEPS + 1] {
            let message = routing::Plan {
                kind: Some(routing::plan::Kind::Fusion(routing::FusionPlan {
                    panel: vec![member_to_proto(&member(0)); size],
                    ..routing::FusionPlan::default()
                })),
            };
            assert!(from_proto(message).is_err(), "{size}");
        }
        assert!(from_proto(routing::Plan::default()).is_err());
    }
}
