//! `quota-share`: several clients share few accounts, each by its weight (`routing.md` §11.3).
//!
//! 1. Behind the others go, in this order from the back: who is excluded by a gate, whose quota is used up, who has as
//!    many requests under way as its connection takes. A step that would leave nobody moves nobody.
//! 2. Among those that are left, the one to which most is owed wins and pays (deficit round-robin in integers,
//!    decision 36). Who was behind is neither paid nor charged, so nobody comes back with a claim to a burst.
//! 3. The winner is compared with the next one in the combo's order, which takes its place if it has fewer requests under
//!    way. The winner pays all the same.
//!
//! Quotas and requests under way may be a second old, so each replica looks at what it sent itself meanwhile; debts are
//! kept per replica and change by compare-and-swap. Who has all the permits of its connection out is excluded by a gate.

use std::collections::BTreeSet;

use super::{Candidates, Charge, Deficits, Halt, Order, Ordered, Question, Scope, place, quota};

/// Debts count thousandths of a weight, so that weights with a fraction are shared by as exactly as whole ones.
const UNITS_PER_WEIGHT: f64 = 1_000.0;
/// What one without a weight is owed per turn: as much as for a weight of 1.
const DEFAULT_WEIGHT: i64 = 1_000;
/// Mean latency below which a request is over before telemetry would tell of it, in ms.
const QUICK_MS: f64 = 1_000.0;
/// Most entries of [`Deficits`] before those of candidates that are gone are dropped.
const MAX_DEFICITS: usize = 2_000;

/// Deficit round-robin over accounts that have room.
#[derive(Debug)]
pub(super) struct QuotaShare;

/// How far in front a candidate may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// Takes part.
    Room,
    /// As many requests under way as it takes.
    AtCap,
    /// Its quota is used up.
    Saturated,
    /// A gate excludes it.
    Excluded,
}

impl Order for QuotaShare {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let standings = standings(question);
        let mut order: Vec<usize> = (0..question.candidates.len()).collect();
        order.sort_by_key(|position| standings.get(*position).copied());
        let with_room = standings
            .iter()
            .filter(|standing| **standing == Standing::Room)
            .count();
        let room = order.get(..with_room).unwrap_or_default();
        let Scope::Combo(combo) = question.scope else {
            return Ok(order.into());
        };
        let before = question.turns.deficits(combo);
        let Some((winner, after)) = next_turn(question.candidates, room, &before) else {
            return Ok(order.into());
        };
        let head = less_busy(question, room, winner);
        place::to_front(&mut order, head);
        let charge = Charge {
            combo: combo.clone(),
            before,
            after,
        };
        Ok(Ordered {
            charge: Some(charge),
            ..order.into()
        })
    }
}

fn standings(question: &Question<'_>) -> Vec<Standing> {
    let mut standings = vec![Standing::Room; question.candidates.len()];
    demote(&mut standings, Standing::Excluded, |position| {
        !question.conditions.is_eligible(position)
    });
    demote(&mut standings, Standing::Saturated, |position| {
        is_saturated(question, position)
    });
    demote(&mut standings, Standing::AtCap, |position| {
        let cap = question.conditions.max_concurrent(position);
        cap.is_some_and(|cap| in_flight(question, position) >= cap)
    });
    standings
}

/// Moves back those of which this holds, unless it holds of all that still take part.
fn demote(standings: &mut [Standing], to: Standing, holds: impl Fn(usize) -> bool) {
    let moved: Vec<bool> = standings
        .iter()
        .enumerate()
        .map(|(position, standing)| *standing == Standing::Room && holds(position))
        .collect();
    let stays = standings
        .iter()
        .zip(&moved)
        .any(|(standing, moved)| *standing == Standing::Room && !moved);
    if stays {
        for (standing, _) in standings
            .iter_mut()
            .zip(&moved)
            .filter(|(_, moved)| **moved)
        {
            *standing = to;
        }
    }
}

/// The window of 5 hours, of 7 days, or of 7 days of the model is used up. What is not known is not used up.
fn is_saturated(question: &Question<'_>, position: usize) -> bool {
    let Some(candidate) = question.candidates.get(position) else {
        return false;
    };
    let Some(quota) = quota::of(question, &candidate) else {
        return false;
    };
    quota::session(&quota)
        .into_iter()
        .chain(quota::weekly(&quota))
        .chain(quota::weekly_of_model(&quota, candidate.model))
        .any(|window| quota::is_used_up(window, question.now))
}

/// Requests under way: as telemetry tells, or more if more were sent just now and are not over yet, as far as one can
/// know. Who answers within the time that telemetry takes is not busy with what was sent before.
fn in_flight(question: &Question<'_>, position: usize) -> u32 {
    let Some(candidate) = question.candidates.get(position) else {
        return 0;
    };
    let Some(connection) = candidate.connection else {
        return 0;
    };
    let telemetry = question.telemetry;
    let told = telemetry.in_flight(connection);
    let sent = question.turns.sent_just_now(connection, question.now);
    let is_quick = || {
        let known = telemetry.of_connection(connection, candidate.model);
        known.is_some_and(|known| {
            known.requests > 0 && (0.0..QUICK_MS).contains(&known.mean_latency_ms)
        })
    };
    if sent > told && !is_quick() {
        sent
    } else {
        told
    }
}

/// Whose turn it is among those with room, as a place in `room`, and what is owed after it.
fn next_turn(
    candidates: Candidates<'_>,
    room: &[usize],
    before: &Deficits,
) -> Option<(usize, Deficits)> {
    let mut after = before.clone();
    let mut total = 0_i64;
    let mut most: Option<(usize, &str, i64)> = None;
    for (place, position) in room.iter().enumerate() {
        let candidate = candidates.get(*position)?;
        let weight = units(candidate.weight.get());
        total = total.saturating_add(weight);
        let owed = before
            .get(candidate.key)
            .copied()
            .unwrap_or(0)
            .saturating_add(weight);
        set(&mut after, candidate.key, owed);
        if most.is_none_or(|(_, _, most)| owed > most) {
            most = Some((place, candidate.key, owed));
        }
    }
    let (winner, key, owed) = most?;
    set(&mut after, key, owed.saturating_sub(total));
    if after.len() > MAX_DEFICITS {
        let present: BTreeSet<&str> = candidates.iter().map(|candidate| candidate.key).collect();
        after.retain(|key, _| present.contains(key.as_str()));
    }
    Some((winner, after))
}

fn set(deficits: &mut Deficits, key: &str, owed: i64) {
    if let Some(known) = deficits.get_mut(key) {
        *known = owed;
    } else {
        deficits.insert(key.to_owned(), owed);
    }
}

/// A weight of 0..=100 in units; at least one unit, and that of 1 where there is none.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the number is brought into the range before"
)]
fn units(weight: f64) -> i64 {
    if weight > 0.0 {
        (weight.min(100.0) * UNITS_PER_WEIGHT).round().max(1.0) as i64
    } else {
        DEFAULT_WEIGHT
    }
}

/// The winner, or the next one in order if that has fewer requests under way; a place in `room`.
fn less_busy(question: &Question<'_>, room: &[usize], winner: usize) -> usize {
    let next = winner.saturating_add(1);
    let runner_up = if next < room.len() { next } else { 0 };
    let busy = |place: usize| {
        room.get(place)
            .map_or(u32::MAX, |position| in_flight(question, *position))
    };
    if busy(runner_up) < busy(winner) {
        runner_up
    } else {
        winner
    }
}

#[cfg(test)]
mod tests;
