//! What a client may know of whether a model can be had: an explanation without the names of accounts.

use std::collections::BTreeMap;

use crate::ids::{ModelId, ProviderId};
use crate::time::Timestamp;

use super::explain::{ExplainedTarget, Explanation};

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

    fn of_account(account: &ExplainedTarget, now: Timestamp) -> Self {
        if account.exclusions.is_empty() {
            return Self::Ok;
        }
        if !account.exclusions.iter().all(|it| it.reason.is_timer()) {
            return Self::Unavailable;
        }
        // When the last of them ends, if all of them say when.
        let ends: Option<Vec<Timestamp>> = account.exclusions.iter().map(|it| it.until).collect();
        let last = ends.and_then(|ends| ends.into_iter().max());
        Self::Cooling {
            retry_after_ms: last.map(|end| end.remaining_ms(now)),
        }
    }
}

impl ModelAvailability {
    /// What an explanation comes to.
    #[must_use]
    pub fn of(explanation: &Explanation, now: Timestamp) -> Self {
        let mut targets: Vec<TargetAvailability> = Vec::new();
        for account in &explanation.targets {
            let is_same = |it: &&mut TargetAvailability| {
                it.provider == account.provider && it.model == account.model
            };
            match targets.last_mut().filter(is_same) {
                Some(target) => target.add(account, now),
                None => {
                    let mut target = TargetAvailability {
                        provider: account.provider.clone(),
                        model: account.model.clone(),
                        availability: Availability::Unavailable,
                        accounts: 0,
                        available: 0,
                        excluded: BTreeMap::new(),
                    };
                    target.add(account, now);
                    targets.push(target);
                }
            }
        }
        let all = targets.iter().map(|target| target.availability);
        Self {
            availability: all.fold(Availability::Unknown, Availability::or),
            targets,
        }
    }
}

impl TargetAvailability {
    fn add(&mut self, account: &ExplainedTarget, now: Timestamp) {
        let availability = Availability::of_account(account, now);
        self.availability = self.availability.or(availability);
        self.accounts = self
            .accounts
            .saturating_add(u32::from(account.connection.is_some()));
        self.available = self
            .available
            .saturating_add(u32::from(availability == Availability::Ok));
        for exclusion in &account.exclusions {
            let word = exclusion.reason.as_str();
            // Which of the terminal states it is concerns operators.
            let word = word.split(':').next().unwrap_or(word);
            let count = self.excluded.entry(word).or_default();
            *count = count.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::classify::TerminalKind;
    use crate::ids::ConnectionId;
    use crate::routing::{Decision, Exclusion, ExclusionReason, Rejection};

    const NOW: Timestamp = Timestamp(1_000);

    /// An account with what excludes it, until when.
    fn account(
        provider: &str,
        connection: Option<&str>,
        exclusions: &[(ExclusionReason, Option<u64>)],
    ) -> ExplainedTarget {
        let id = ProviderId::new(provider).unwrap();
        let model = ModelId::new("m").unwrap();
        let connection = connection.map(|it| ConnectionId::new(it).unwrap());
        ExplainedTarget {
            provider: id.clone(),
            connection: connection.clone(),
            model: model.clone(),
            chosen: false,
            pinned: false,
            exclusions: exclusions
                .iter()
                .map(|(reason, until)| Exclusion {
                    provider: id.clone(),
                    connection: connection.clone(),
                    model: model.clone(),
                    reason: *reason,
                    until: until.map(Timestamp),
                    cause: None,
                    origin: None,
                })
                .collect(),
        }
    }

    fn of(targets: Vec<ExplainedTarget>) -> ModelAvailability {
        let decision = Decision::Reject(Box::new(Rejection {
            status: 503,
            code: String::new(),
            error_type: String::new(),
            message: String::new(),
            retry_after_secs: None,
            pass_through: false,
            terminal_reason: String::new(),
            pool_size: 0,
            attempted: 0,
            excluded: Vec::new(),
            lease: None,
        }));
        let explanation = Explanation {
            targets,
            omitted: 0,
            decision,
        };
        ModelAvailability::of(&explanation, NOW)
    }

    const COOLING: ExclusionReason = ExclusionReason::ConnectionCooldown;
    const LOCKED: ExclusionReason = ExclusionReason::ModelLockout;

    #[rstest]
    #[case::nothing_is_there(vec![], Availability::Unknown)]
    #[case::one_is_free(
        vec![account("p", Some("a"), &[(COOLING, Some(9_000))]), account("p", Some("b"), &[])],
        Availability::Ok,
    )]
    #[case::the_first_that_is_free_again(
        vec![
            account("p", Some("a"), &[(COOLING, Some(9_000)), (LOCKED, Some(3_000))]),
            account("p", Some("b"), &[(LOCKED, Some(7_000))]),
            account("p", Some("c"), &[(ExclusionReason::Disabled, None), (COOLING, Some(2_000))]),
        ],
        Availability::Cooling { retry_after_ms: Some(6_000) },
    )]
    #[case::nobody_knows_when(
        vec![account("p", Some("a"), &[(COOLING, Some(9_000)), (LOCKED, None)])],
        Availability::Cooling { retry_after_ms: None },
    )]
    #[case::of_another_target(
        vec![account("p", Some("a"), &[(ExclusionReason::Disabled, None)]), account("q", Some("b"), &[])],
        Availability::Ok,
    )]
    #[case::for_good(
        vec![account("p", Some("a"), &[(ExclusionReason::Terminal(TerminalKind::Banned), None)])],
        Availability::Unavailable,
    )]
    #[case::without_an_account(
        vec![account("p", None, &[(ExclusionReason::Unavailable, None)])],
        Availability::Unavailable,
    )]
    fn the_best_account_says_what_can_be_had(
        #[case] targets: Vec<ExplainedTarget>,
        #[case] expected: Availability,
    ) {
        assert_eq!(of(targets).availability, expected);
    }

    #[test]
    fn accounts_are_counted_and_not_named() {
        let told = of(vec![
            account(
                "p",
                Some("a"),
                &[(COOLING, Some(2_000)), (LOCKED, Some(2_000))],
            ),
            account("p", Some("b"), &[(COOLING, Some(2_000))]),
            account(
                "p",
                Some("c"),
                &[(ExclusionReason::Terminal(TerminalKind::Banned), None)],
            ),
            account("q", None, &[(ExclusionReason::Unavailable, None)]),
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
    }
}
