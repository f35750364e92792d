//! Plans: what is done for a combo that needs several answers (`routing.md` §8.18, §8.19).
//!
//! A plan is made before anything is sent. Each of its parts is then a request of its own that names a step of the combo
//! ([`super::RequestFacts::member`]), so every rule about attempts, breakers, waits and reports holds for it as for
//! any other; only the budgets of attempts and of time are one for all parts ([`super::AttemptsSoFar::elsewhere`],
//! [`super::AttemptsSoFar::elapsed_ms`]), and only some parts wait for cooldowns (`terms_of_part`). Within a part the
//! targets of its step are walked in the order of the list; a step of a `fusion` that is a combo orders its own. A combo
//! within that asks several steps itself is walked too: plans are not nested.
//!
//! Where one answer will do there is no plan: a `fusion` with tools or with one step, and a `pipeline` with one step, go
//! to that step with the client's own body.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::config::{ComboTarget, FusionConfig, Strategy, Unit, split_model};
use crate::number::Finite;

use super::RequestFacts;
use super::pool::Pool;
use super::resolve::{Route, Terms};
use super::wait::WaitPolicy;
use super::wording::redacted;

const MIN_PANEL: u32 = 2;
const STRAGGLER_GRACE_MS: u64 = 8_000;
const PANEL_HARD_TIMEOUT_MS: u64 = 90_000;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// All members are asked at once, and one model judges.
    Fusion(FusionPlan),
    /// The steps follow each other.
    Pipeline(PipelinePlan),
}

/// A step of the combo as a plan names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanMember {
    /// Its position, for [`super::RequestFacts::member`].
    pub step: u32,
    /// What people know it by: `provider/model` of its first target.
    pub name: String,
}

/// The panel and its judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusionPlan {
    /// Who is asked, 2..=[`crate::config::MAX_PLAN_STEPS`].
    pub panel: Vec<PlanMember>,
    /// Step that judges; behind the last step for a judge that is none of them.
    pub judge: u32,
    /// Answers after which stragglers are waited for only a while, 2..=panel.
    pub min_panel: u32,
    /// How long they are waited for, in ms.
    pub straggler_grace_ms: u64,
    /// Longest time for the panel and so for each of its members, in ms.
    pub panel_hard_timeout_ms: u64,
    /// Targets of the combo, for [`super::Rejection::pool_size`].
    pub pool_size: u32,
}

/// The steps in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelinePlan {
    /// 2..=[`crate::config::MAX_PLAN_STEPS`] steps.
    pub stages: Vec<PipelineStage>,
    /// Targets of the combo, for [`super::Rejection::pool_size`].
    pub pool_size: u32,
}

/// One step of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineStage {
    /// The step.
    pub member: PlanMember,
    /// Goes ahead of the conversation as a system turn.
    pub prompt: Option<String>,
}

/// How a request that names a combo as a whole is met.
pub(super) enum Way {
    /// Its targets are walked.
    Walk,
    /// The targets of this step alone are.
    Member(u32),
    /// By a plan.
    Plan(Box<Plan>),
}

/// The way of a request that names no step.
pub(super) fn way(route: &Route<'_>, facts: &RequestFacts) -> Way {
    // Who may not ask for the combo is told so without asking anybody.
    if facts.key.as_ref().is_some_and(|key| !route.allowed_by(key)) {
        return Way::Walk;
    }
    match route.strategy {
        Strategy::Fusion => fusion(route, facts),
        Strategy::Pipeline => pipeline(route),
        _ => Way::Walk,
    }
}

/// Whether the strategy of the route makes plans.
pub(super) fn makes_plans(route: &Route<'_>) -> bool {
    matches!(route.strategy, Strategy::Fusion | Strategy::Pipeline)
}

fn fusion(route: &Route<'_>, facts: &RequestFacts) -> Way {
    let panel = members(&route.targets);
    let config = route.config.fusion.as_ref();
    let judge = match judge(route, config) {
        Some(Judge::Step(step)) => step,
        Some(Judge::Apart(target)) => target.group,
        None => return Way::Walk,
    };
    let uses_tools = facts.tools > 0 && !facts.tools_forbidden;
    match panel.as_slice() {
        [] => Way::Walk,
        _ if uses_tools => Way::Member(judge),
        [only] => Way::Member(only.step),
        _ => {
            let number = u32::try_from(panel.len()).unwrap_or(u32::MAX);
            let set = |member: fn(&FusionConfig) -> Option<u64>, default| {
                config.and_then(member).unwrap_or(default)
            };
            let min_panel = config
                .and_then(|config| config.min_panel)
                .unwrap_or(MIN_PANEL);
            Way::Plan(Box::new(Plan::Fusion(FusionPlan {
                panel,
                judge,
                min_panel: min_panel.clamp(2, number),
                straggler_grace_ms: set(|config| config.straggler_grace_ms, STRAGGLER_GRACE_MS),
                panel_hard_timeout_ms: set(
                    |config| config.panel_hard_timeout_ms,
                    PANEL_HARD_TIMEOUT_MS,
                ),
                pool_size: route.pool_size(),
            })))
        }
    }
}

fn pipeline(route: &Route<'_>) -> Way {
    let stages = members(&route.targets);
    match stages.as_slice() {
        [] => Way::Walk,
        [only] => Way::Member(only.step),
        _ => Way::Plan(Box::new(Plan::Pipeline(PipelinePlan {
            stages: stages
                .into_iter()
                .map(|member| PipelineStage {
                    prompt: prompt(route, member.step),
                    member,
                })
                .collect(),
            pool_size: route.pool_size(),
        }))),
    }
}

/// The steps that have a target, in the order of the list.
fn members(targets: &[ComboTarget]) -> Vec<PlanMember> {
    let mut seen = BTreeSet::new();
    targets
        .iter()
        .filter(|target| seen.insert(target.group))
        .map(|target| PlanMember {
            step: target.group,
            name: format!("{}/{}", target.provider, redacted(target.model.as_str())),
        })
        .collect()
}

/// What a step of a pipeline says ahead of the conversation.
fn prompt(route: &Route<'_>, step: u32) -> Option<String> {
    let steps = &route.combo?.combo.steps;
    let step = steps.get(usize::try_from(step).ok()?)?;
    Some(step.prompt()?.to_owned())
}

/// Who judges.
enum Judge {
    /// A step of the combo.
    Step(u32),
    /// A model that is no step; its group is the position behind the last step.
    Apart(Box<ComboTarget>),
}

/// `judgeModel` if there is one, else the first step. `None` without any step.
fn judge(route: &Route<'_>, config: Option<&FusionConfig>) -> Option<Judge> {
    let first = route.targets.first()?;
    let named = config
        .and_then(|config| config.judge_model.as_deref())
        .and_then(split_model);
    let Some((provider, model)) = named else {
        return Some(Judge::Step(first.group));
    };
    let is_named = |target: &ComboTarget| target.provider == provider && target.model == model;
    // A step that stands for more than this model is not it.
    let step = route
        .targets
        .chunk_by(|one, next| one.group == next.group)
        .find(|step| step.iter().all(is_named));
    if let Some(step) = step.and_then(<[_]>::first) {
        return Some(Judge::Step(step.group));
    }
    let steps = route.combo.map_or(0, |entry| entry.combo.steps.len());
    Some(Judge::Apart(Box::new(ComboTarget {
        key: format!("judge-{provider}/{model}").into(),
        provider,
        model,
        connection: None,
        expanded: false,
        group: u32::try_from(steps).unwrap_or(u32::MAX),
        weight: Finite::ZERO,
        allowed_connections: BTreeSet::new(),
        tags: Vec::new(),
        fallback_only_on_quota_exhaustion: false,
    })))
}

/// Whether the request is a part that waits for no account: neither until it has cooled down nor for a place on it.
///
/// The others of a panel go on without a member that cannot be used now; its judge waits like any request. Waits of
/// several steps of a pipeline would add up.
pub(super) fn never_waits(route: &Route<'_>, facts: &RequestFacts) -> bool {
    facts.member.is_some() && (facts.of_panel || route.strategy == Strategy::Pipeline)
}

/// How the targets of a part are walked. Steps of a pipeline are tried again as `routing.md` §8.19 says and not
/// otherwise.
pub(super) fn terms_of_part(route: &Route<'_>, facts: &RequestFacts) -> Terms {
    let mut terms = route.terms;
    if never_waits(route, facts) {
        terms.wait = WaitPolicy::NEVER;
    }
    if route.strategy == Strategy::Pipeline {
        terms.max_set_retries = 0;
    }
    terms
}

/// The targets of one step, and what orders them where the step is a combo.
pub(super) fn part_of<'a>(route: &Route<'_>, step: u32) -> Pool<'a> {
    if route.strategy == Strategy::Fusion
        && let Some(Judge::Apart(target)) = judge(route, route.config.fusion.as_ref())
        && target.group == step
    {
        return Pool {
            targets: Cow::Owned(vec![*target]),
            units: Cow::Borrowed(&[]),
        };
    }
    // The targets of a step stand together.
    let before = route
        .targets
        .iter()
        .take_while(|target| target.group != step);
    let begins_at = u32::try_from(before.count()).unwrap_or(u32::MAX);
    let targets = route.targets.iter().filter(|target| target.group == step);
    let mut units: Vec<Unit> = route
        .units
        .iter()
        .filter(|unit| unit.group == step)
        .cloned()
        .collect();
    if units.iter().any(|unit| unit.nested.is_some()) {
        move_ahead(&mut units, begins_at);
    } else {
        units.clear();
    }
    Pool {
        targets: targets.cloned().collect(),
        units: Cow::Owned(units),
    }
}

fn move_ahead(units: &mut [Unit], by: u32) {
    for unit in units {
        unit.start = unit.start.saturating_sub(by);
        unit.end = unit.end.saturating_sub(by);
        if let Some(nested) = &mut unit.nested {
            move_ahead(&mut nested.units, by);
        }
    }
}
