//! What a client may know of whether a model can be had: how many accounts are excluded by what, and not which.

use std::collections::BTreeMap;

use crate::ids::{ModelId, ProviderId};
use crate::time::Timestamp;

use super::ExclusionReason;

/// Whether something can be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Some account may be used.
    Ok,
    /// None may, and at least one may be used again by itself.
    Cooling {
        /// In how many ms the first one may; absent where that is not known.
        retry_after_ms: Option<u64>,
    },
    /// None may, and none will by itself.
    Unavailable,
    /// Nothing is configured under this name.
    Unknown,
}

/// A model, or a combo with its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAvailability {
    /// The best of the targets.
    pub availability: Availability,
    /// The targets, in the order in which they would be tried.
    pub targets: Vec<TargetAvailability>,
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetAvailability {
    /// Provider.
    pub provider: ProviderId,
    /// Model, as the provider calls it.
    pub model: ModelId,
    /// The best of its accounts.
    pub availability: Availability,
    /// Its accounts.
    pub accounts: u32,
    /// Those of them that may be used.
    pub available: u32,
    /// What excludes how many of the others; one may be excluded by several.
    pub excluded: BTreeMap<&'static str, u32>,
}

impl Availability {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cooling { .. } => "cooling",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
        }
    }

    /// The better of two.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Cooling {
                    retry_after_ms: one,
                },
                Self::Cooling {
                    retry_after_ms: other,
                },
            ) => Self::Cooling {
                retry_after_ms: match (one, other) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                },
            },
            (one, other) if one.rank() <= other.rank() => one,
            (_, other) => other,
        }
    }

    fn rank(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Cooling { .. } => 1,
            Self::Unavailable => 2,
            Self::Unknown => 3,
        }
    }

    /// Of an account with everything that excludes it, and until when.
    fn of_account(
        exclusions: impl Iterator<Item = (ExclusionReason, Option<Timestamp>)>,
        now: Timestamp,
    ) -> Self {
        let mut availability = Self::Ok;
        // When the last of them ends, if all of them say when.
        let mut last = Some(Timestamp(0));
        for (reason, until) in exclusions {
            if !reason.is_timer() {
                return Self::Unavailable;
            }
            last = last.zip(until).map(|(one, other)| one.max(other));
            availability = Self::Cooling {
                retry_after_ms: last.map(|end| end.remaining_ms(now)),
            };
        }
        availability
    }
}

impl ModelAvailability {
    /// Of a model without a target.
    pub(super) fn unknown() -> Self {
        Self {
            availability: Availability::Unknown,
            targets: Vec::new(),
        }
    }

    /// Counts the next target, together with the one before if that is the same with other accounts.
    pub(super) fn add_target(
        &mut self,
        provider: &ProviderId,
        model: &ModelId,
        count: impl FnOnce(&mut TargetAvailability),
    ) {
        let is_same = |it: &mut TargetAvailability| it.provider == *provider && it.model == *model;
        let mut target = self
            .targets
            .pop_if(is_same)
            .unwrap_or_else(|| TargetAvailability::none(provider, model));
        count(&mut target);
        self.availability = self.availability.or(target.availability);
        self.targets.push(target);
    }
}

impl TargetAvailability {
    fn none(provider: &ProviderId, model: &ModelId) -> Self {
        Self {
            provider: provider.clone(),
            model: model.clone(),
            availability: Availability::Unavailable,
            accounts: 0,
            available: 0,
            excluded: BTreeMap::new(),
        }
    }

    /// Counts an account with everything that excludes it, and until when.
    pub(super) fn add_account(
        &mut self,
        exclusions: impl Iterator<Item = (ExclusionReason, Option<Timestamp>)> + Clone,
        now: Timestamp,
    ) {
        let availability = Availability::of_account(exclusions.clone(), now);
        self.availability = self.availability.or(availability);
        self.accounts = self.accounts.saturating_add(1);
        self.available = self
            .available
            .saturating_add(u32::from(availability == Availability::Ok));
        for (reason, _) in exclusions {
            self.exclude(reason);
        }
    }

    /// Counts a reason, of an account or of the target itself.
    pub(super) fn exclude(&mut self, reason: ExclusionReason) {
        let word = reason.as_str();
        // Which of the terminal states it is concerns operators.
        let word = word.split(':').next().unwrap_or(word);
        let count = self.excluded.entry(word).or_default();
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::classify::TerminalKind;

    const NOW: Timestamp = Timestamp(1_000);

    /// What excludes an account, until when.
    type Account = Vec<(ExclusionReason, Option<u64>)>;

    /// Targets with their accounts.
    fn of(targets: Vec<(&str, Vec<Account>)>) -> ModelAvailability {
        let mut told = ModelAvailability::unknown();
        for (provider, accounts) in targets {
            let provider = ProviderId::new(provider).unwrap();
            let model = ModelId::new("m").unwrap();
            told.add_target(&provider, &model, |target| {
                for account in &accounts {
                    let exclusions = account.iter();
                    let exclusions = exclusions.map(|(why, until)| (*why, until.map(Timestamp)));
                    target.add_account(exclusions, NOW);
                }
                if accounts.is_empty() {
                    target.exclude(ExclusionReason::Unavailable);
                }
            });
        }
        told
    }

    const COOLING: ExclusionReason = ExclusionReason::ConnectionCooldown;
    const LOCKED: ExclusionReason = ExclusionReason::ModelLockout;
    const BANNED: ExclusionReason = ExclusionReason::Terminal(TerminalKind::Banned);

    #[rstest]
    #[case::nothing_is_there(vec![], Availability::Unknown)]
    #[case::one_is_free(
        vec![("p", vec![vec![(COOLING, Some(9_000))], vec![]])],
        Availability::Ok,
    )]
    #[case::the_first_that_is_free_again(
        vec![("p", vec![
            vec![(COOLING, Some(9_000)), (LOCKED, Some(3_000))],
            vec![(LOCKED, Some(7_000))],
            vec![(ExclusionReason::Disabled, None), (COOLING, Some(2_000))],
        ])],
        Availability::Cooling { retry_after_ms: Some(6_000) },
    )]
    #[case::nobody_knows_when(
        vec![("p", vec![vec![(COOLING, Some(9_000)), (LOCKED, None)]])],
        Availability::Cooling { retry_after_ms: None },
    )]
    #[case::of_another_target(
        vec![("p", vec![vec![(ExclusionReason::Disabled, None)]]), ("q", vec![vec![]])],
        Availability::Ok,
    )]
    #[case::for_good(vec![("p", vec![vec![(BANNED, None)]])], Availability::Unavailable)]
    #[case::without_an_account(vec![("p", vec![])], Availability::Unavailable)]
    fn the_best_account_says_what_can_be_had(
        #[case] targets: Vec<(&str, Vec<Account>)>,
        #[case] expected: Availability,
    ) {
        assert_eq!(of(targets).availability, expected);
    }

    #[test]
    fn accounts_are_counted_and_not_named() {
        let told = of(vec![
            (
                "p",
                vec![
                    vec![(COOLING, Some(2_000)), (LOCKED, Some(2_000))],
                    vec![(COOLING, Some(2_000))],
                ],
            ),
            // The same with other accounts.
            ("p", vec![vec![(BANNED, None)]]),
            ("q", vec![]),
        ]);
        let [first, second] = &*told.targets else {
            panic!("{told:?}");
        };
        assert_eq!((first.accounts, first.available), (3, 0));
        let excluded = [
            ("connection_cooldown", 2),
            ("model_lockout", 1),
            ("terminal", 1),
        ];
        assert_eq!(first.excluded, BTreeMap::from(excluded));
        assert_eq!((second.accounts, second.available), (0, 0));
        assert_eq!(second.excluded, BTreeMap::from([("unavailable", 1)]));
    }
}
