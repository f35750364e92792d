//! `lkgp`: the last target that served is first (`routing.md` §8.15).
//!
//! The record names a provider and an account. The first target with both is meant, else the first of the provider.
//! Whoever records a success writes it, for combos of any strategy; without a record the order is that of the combo.

use crate::config::ComboConfig;

use super::{Halt, Order, Ordered, Question, Scope, first_of};

/// The last known good one first.
#[derive(Debug)]
pub(super) struct LastKnownGoodFirst;

impl Order for LastKnownGoodFirst {
    fn follows_last_served(&self, _config: &ComboConfig) -> bool {
        true
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let first = last_known_good(question).unwrap_or(0);
        Ok(first_of(question.candidates.len(), first).into())
    }
}

fn last_known_good(question: &Question<'_>) -> Option<usize> {
    let Scope::Combo(combo) = question.scope else {
        return None;
    };
    let record = question.telemetry.last_known_good(combo)?;
    let mut of_provider = question
        .candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| *candidate.provider == record.provider)
        .peekable();
    let (first, _) = *of_provider.peek()?;
    let exact = of_provider.find(|(_, candidate)| {
        record.connection.is_some() && candidate.connection == record.connection.as_ref()
    });
    Some(exact.map_or(first, |(index, _)| index))
}
