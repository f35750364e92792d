//! The contract's management endpoints (`sessions-and-streams.md` §5.4): which there are, what each needs, and what their
//! bodies ask for.
//!
//! The control plane answers them. Data planes forward them, and serve the paths and methods of this table and no others,
//! so that neither plane has a list of its own.

mod requests;

pub use requests::{BadRequest, ClearLockouts, Reset, read_clear, read_patch, read_reset};

use crate::settings::MAX_SETTINGS_BYTES;
use crate::time::Timestamp;

/// Longest body of a management request, in bytes: that of settings.
pub const MAX_MANAGEMENT_BYTES: usize = MAX_SETTINGS_BYTES;

/// For how long somebody still waits for an answer, in ms; `None` where nobody says. They wait for `told_ms` from when the
/// request was sent, which may be long ago, and at most until `not_after` in the store's time.
#[must_use]
pub fn waited_for_ms(
    told_ms: Option<u64>,
    not_after: Option<Timestamp>,
    now: Timestamp,
) -> Option<u64> {
    let until = not_after.map(|not_after| not_after.remaining_ms(now));
    [told_ms, until].into_iter().flatten().min()
}

/// What a request needs (`sessions-and-streams.md` §5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Everybody gets an answer; who may look gets more of it.
    Anyone,
    /// To look at state and settings.
    Read,
    /// To change them.
    Manage,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// How everything is.
    ShowHealth,
    /// Every breaker as new.
    ResetBreakers,
    /// Breakers, or what the body names, as new.
    Reset,
    /// The settings in force.
    ShowSettings,
    /// A merge patch of settings.
    PatchSettings,
    /// Model locks that run.
    ListLockouts,
    /// A model, or all of them, re-enabled.
    ClearLockouts,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 7] = [
        Self::ShowHealth,
        Self::ResetBreakers,
        Self::Reset,
        Self::ShowSettings,
        Self::PatchSettings,
        Self::ListLockouts,
        Self::ClearLockouts,
    ];

    /// What it needs.
    #[must_use]
    pub fn right(self) -> Right {
        match self {
            Self::ShowHealth => Right::Anyone,
            Self::ShowSettings | Self::ListLockouts => Right::Read,
            Self::ResetBreakers | Self::Reset | Self::PatchSettings | Self::ClearLockouts => {
                Right::Manage
            }
        }
    }

    /// Its name in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ShowHealth => "show_health",
            Self::ResetBreakers => "reset_breakers",
            Self::Reset => "reset",
            Self::ShowSettings => "show_settings",
            Self::PatchSettings => "patch_settings",
            Self::ListLockouts => "list_lockouts",
            Self::ClearLockouts => "clear_lockouts",
        }
    }
}

/// One path, and what its methods ask for.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// The path, without a query.
    pub path: &'static str,
    /// Its methods. HEAD is GET without the body of the answer.
    pub methods: &'static [(&'static str, Operation)],
    /// The methods for an `Allow` header.
    pub allow: &'static str,
}

/// Every path.
pub const RESOURCES: &[Resource] = &[
    Resource {
        path: "/api/monitoring/health",
        methods: &[
            ("GET", Operation::ShowHealth),
            ("DELETE", Operation::ResetBreakers),
        ],
        allow: "GET, HEAD, DELETE, OPTIONS",
    },
    Resource {
        path: "/api/resilience/reset",
        methods: &[("POST", Operation::Reset)],
        allow: "POST, OPTIONS",
    },
    Resource {
        path: "/api/resilience",
        methods: &[
            ("GET", Operation::ShowSettings),
            ("PATCH", Operation::PatchSettings),
        ],
        allow: "GET, HEAD, PATCH, OPTIONS",
    },
    Resource {
        path: "/api/resilience/model-cooldowns",
        methods: &[
            ("GET", Operation::ListLockouts),
            ("DELETE", Operation::ClearLockouts),
        ],
        allow: "GET, HEAD, DELETE, OPTIONS",
    },
];

impl Resource {
    /// What is at a path.
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|resource| resource.path == path)
    }

    /// What a method asks for here, apart from OPTIONS.
    #[must_use]
    pub fn operation(&self, method: &str) -> Option<Operation> {
        let method = if method == "HEAD" { "GET" } else { method };
        let mut methods = self.methods.iter();
        methods
            .find(|(name, _)| *name == method)
            .map(|(_, operation)| *operation)
    }
}

/// What a reset ends (decision 24).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetScope {
    /// Breakers.
    #[default]
    Breakers,
    /// Cooldowns: of connections, of the provider gate, of egress identities.
    Cooldowns,
    /// Model locks.
    Lockouts,
    /// All of these.
    All,
}

impl ResetScope {
    /// Breakers are meant.
    #[must_use]
    pub fn breakers(self) -> bool {
        matches!(self, Self::Breakers | Self::All)
    }

    /// Cooldowns are meant.
    #[must_use]
    pub fn cooldowns(self) -> bool {
        matches!(self, Self::Cooldowns | Self::All)
    }

    /// Model locks are meant.
    #[must_use]
    pub fn lockouts(self) -> bool {
        matches!(self, Self::Lockouts | Self::All)
    }

    /// The scope of this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "breakers" => Self::Breakers,
            "cooldowns" => Self::Cooldowns,
            "lockouts" => Self::Lockouts,
            "all" => Self::All,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nobody_says(None, None, None)]
    #[case::who_never_heard_the_time(Some(300), None, Some(300))]
    #[case::on_its_way_for_no_time(Some(300), Some(1_300), Some(300))]
    #[case::on_its_way_for_long(Some(300), Some(1_100), Some(100))]
    #[case::on_its_way_for_too_long(Some(300), Some(999), Some(0))]
    #[case::a_clock_that_is_ahead_gives_nothing_more(Some(300), Some(9_000), Some(300))]
    #[case::a_moment_alone(None, Some(1_300), Some(300))]
    fn a_request_is_waited_for_until_its_first_end(
        #[case] told_ms: Option<u64>,
        #[case] not_after: Option<u64>,
        #[case] expected: Option<u64>,
    ) {
        let waited = waited_for_ms(told_ms, not_after.map(Timestamp), Timestamp(1_000));
        assert_eq!(waited, expected);
    }

    #[test]
    fn what_is_allowed_is_what_is_answered() {
        for resource in RESOURCES {
            let mut methods = Vec::new();
            for (method, operation) in resource.methods {
                assert_eq!(resource.operation(method), Some(*operation));
                methods.push(*method);
                if *method == "GET" {
                    methods.push("HEAD");
                }
            }
            methods.push("OPTIONS");
            assert_eq!(resource.allow, methods.join(", "), "{}", resource.path);
            assert_eq!(resource.operation("HEAD"), resource.operation("GET"));
            for other in ["PUT", "TRACE", "get", "OPTIONS", ""] {
                assert_eq!(resource.operation(other), None, "{other} {}", resource.path);
            }
        }
    }

    #[test]
    fn every_operation_has_one_place() {
        let mut found: Vec<Operation> = RESOURCES
            .iter()
            .flat_map(|resource| resource.methods.iter().map(|(_, operation)| *operation))
            .collect();
        found.sort_unstable();
        let mut all = Operation::ALL.to_vec();
        all.sort_unstable();
        assert_eq!(found, all);
    }

    #[test]
    fn only_who_may_change_things_changes_things() {
        for resource in RESOURCES {
            for (method, operation) in resource.methods {
                let changes = *method != "GET";
                assert_eq!(operation.right() == Right::Manage, changes, "{method}");
            }
        }
    }

    #[test]
    fn near_misses_lead_nowhere() {
        for resource in RESOURCES {
            assert_eq!(Resource::find(resource.path), Some(resource));
            for path in [
                format!("{}/", resource.path),
                format!("/v1{}", resource.path),
                resource.path.to_uppercase(),
                resource.path.replacen("/api", "", 1),
            ] {
                assert_eq!(Resource::find(&path), None, "{path}");
            }
        }
    }
}
