//! Which targets of a combo can take the request at all, before any state is looked at (`routing.md` §2, 4c, 4h and 4i).
//!
//! Three filters, one after the other, each over what the one before left:
//!
//! | filter | drops | when it would drop all |
//! |---|---|---|
//! | tags | targets without every tag that the request asks for | drops none |
//! | capability | models that are known not to take tools, images or a schema of the answer | 400 `capability_mismatch` |
//! | context | models whose known window is smaller than the input | 404, for `auto` 400 |
//!
//! With `compatFilterFailOpen` the last two drop none rather than all. What is not known of a model is assumed to fit. A
//! request that names a model rather than a combo is not filtered: it gets that model, or the model's own answer.
//!
//! What they drop is excluded like by a gate, so an explanation shows it.

use crate::catalogue::{Catalogue, ModelInfo};
use crate::config::{ComboTarget, Strategy};

use super::resolve::Route;
use super::{ExclusionReason, Input, RequestFacts};

/// Which of the filters drop anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filters {
    tags: bool,
    capability: bool,
    context: bool,
    /// The first filter that left nothing.
    emptied_by: Option<ExclusionReason>,
}

impl Filters {
    /// The filters of a request.
    pub(super) fn of(input: &Input<'_>, route: &Route<'_>) -> Self {
        if route.combo.is_none() {
            return Self::default();
        }
        let (facts, catalogue) = (input.facts, &input.config.catalogue);
        let fail_open = route.config.compat_filter_fail_open == Some(true);
        let mut filters = Self::default();
        let passes = |filters: Self| {
            let mut targets = route.targets.iter();
            targets.any(|target| filters.drops(facts, catalogue, target).is_none())
        };
        let with_tags = Self {
            tags: true,
            ..filters
        };
        if !facts.tags.is_empty() && passes(with_tags) {
            filters = with_tags;
        }
        let stages: [fn(&mut Self); 2] = [
            |filters| filters.capability = true,
            |filters| filters.context = true,
        ];
        let reasons = [
            ExclusionReason::CapabilityMismatch,
            ExclusionReason::ContextWindow,
        ];
        for (switch_on, reason) in stages.into_iter().zip(reasons) {
            let mut narrower = filters;
            switch_on(&mut narrower);
            if passes(narrower) {
                filters = narrower;
            } else if !fail_open && !route.targets.is_empty() {
                filters = narrower;
                filters.emptied_by = Some(reason);
                break;
            }
        }
        filters
    }

    /// Why a target is dropped, if it is.
    pub(super) fn drops(
        self,
        facts: &RequestFacts,
        catalogue: &Catalogue,
        target: &ComboTarget,
    ) -> Option<ExclusionReason> {
        if self.tags && !has_tags(target, facts) {
            return Some(ExclusionReason::TagMismatch);
        }
        if !self.capability && !self.context {
            return None;
        }
        let info = catalogue.get(&target.provider, &target.model);
        if self.capability && !is_capable(info, facts) {
            return Some(ExclusionReason::CapabilityMismatch);
        }
        if self.context && is_too_small(info, facts) {
            return Some(ExclusionReason::ContextWindow);
        }
        None
    }

    /// The filter that left no target, if one did.
    pub(super) fn emptied_by(self) -> Option<ExclusionReason> {
        self.emptied_by
    }
}

/// For `auto` a request that no window holds is the client's fault, since all models are candidates.
pub(super) fn is_context_a_fault(strategy: Strategy) -> bool {
    strategy == Strategy::Auto
}

fn has_tags(target: &ComboTarget, facts: &RequestFacts) -> bool {
    facts.tags.iter().all(|tag| target.tags.contains(tag))
}

/// Nothing that the request needs is known to be missing.
fn is_capable(info: &ModelInfo, facts: &RequestFacts) -> bool {
    let needs_tools = facts.tools > 0 && !facts.tools_forbidden;
    let lacks = |needed: bool, able: Option<bool>| needed && able == Some(false);
    !lacks(needs_tools, info.tools)
        && !lacks(facts.vision, info.vision)
        && !lacks(facts.structured_output, info.structured_output)
}

/// The window is known, and the input does not fit.
fn is_too_small(info: &ModelInfo, facts: &RequestFacts) -> bool {
    match (info.context_window, facts.estimated_tokens) {
        (Some(window), Some(tokens)) => window < tokens,
        (None, _) | (_, None) => false,
    }
}
