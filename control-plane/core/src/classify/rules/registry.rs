//! What is known about single providers, as data (`failure-state.md` §5.3). First match first.

use crate::classify::Reason;
use crate::classify::restate::{RESTATEMENTS, Restatement};
use crate::settings::RuleScope;

/// What an answer must show besides its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing.
    Status,
    /// One of the first texts and none of the second, all in lower case. A text that denies access says more than
    /// one about a quota (decision 19).
    Text {
        /// One must be there.
        any: &'static [&'static str],
        /// None may be there.
        none: &'static [&'static str],
    },
    /// One of these headers, in lower case, with exactly this value.
    Header {
        /// Their names.
        names: &'static [&'static str],
        /// The value.
        value: &'static str,
    },
    /// A header that lists `name=number`, one of which is 0.
    ZeroInList {
        /// Its name in lower case.
        header: &'static str,
    },
}

/// How long what a rule acts on is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleLength {
    /// As the status says (`failure-state.md` §5.4).
    OfStatus,
    /// So many ms.
    Ms(u64),
    /// As the body says in "resets in N days", hours, minutes or seconds. Without it the rule does not match.
    ResetsIn,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleRow {
    /// Id for people; part of the contract.
    pub(crate) id: &'static str,
    /// Whose answers it is about, in lower case.
    pub(crate) providers: &'static [&'static str],
    /// With one of these statuses, after restatement.
    pub(crate) statuses: &'static [u16],
    /// And this.
    pub(crate) condition: Condition,
    /// What it means.
    pub(crate) reason: Reason,
    /// What it acts on, where that is honoured.
    pub(crate) scope: RuleScope,
    /// For how long.
    pub(crate) length: RuleLength,
}

const OPENCODE: &[&str] = &["opencode", "opencode-go", "opencode-cli"];

/// The rules that are built in. Operator rules of the same provider come first.
pub(crate) const RULES: &[RuleRow] = &[
    RuleRow {
        id: "agentrouter-user-quota-exhausted",
        providers: &["agentrouter"],
        statuses: &[400, 403, 429],
        condition: Condition::Text {
            any: &["额度不足"],
            none: &["无权访问模型"],
        },
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        length: RuleLength::OfStatus,
    },
    RuleRow {
        id: "agentrouter-model-access-denied",
        providers: &["agentrouter"],
        statuses: &[403],
        condition: Condition::Text {
            any: &["无权访问模型"],
            none: &[],
        },
        reason: Reason::AuthError,
        scope: RuleScope::Model,
        length: RuleLength::Ms(21_600_000),
    },
    RuleRow {
        id: "opencode-monthly-quota-resets-in",
        providers: OPENCODE,
        statuses: &[429],
        condition: Condition::Text {
            any: &["monthly usage limit reached"],
            none: &[],
        },
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        length: RuleLength::ResetsIn,
    },
    RuleRow {
        id: "opencode-quota-exhausted-headers",
        providers: OPENCODE,
        statuses: &[429],
        condition: Condition::Header {
            names: &[
                "x-ratelimit-remaining-requests",
                "x-ratelimit-remaining-tokens",
            ],
            value: "0",
        },
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        length: RuleLength::OfStatus,
    },
    RuleRow {
        id: "opencode-quota-exhausted-body",
        providers: OPENCODE,
        statuses: &[429],
        condition: Condition::Text {
            any: &[
                "organization_quota_exceeded",
                "account_quota_exceeded",
                "plan_limit_reached",
            ],
            none: &[],
        },
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        length: RuleLength::OfStatus,
    },
    RuleRow {
        id: "minimax-per-model-quota",
        providers: &["minimax", "minimax-passthrough"],
        statuses: &[429],
        condition: Condition::ZeroInList {
            header: "x-model-quota-remaining",
        },
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Model,
        length: RuleLength::OfStatus,
    },
    RuleRow {
        id: "cloudflare-ai-daily-neuron-allocation",
        providers: &["cloudflare-ai"],
        statuses: &[429],
        condition: Condition::Text {
            any: &["daily free allocation"],
            none: &[],
        },
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        length: RuleLength::OfStatus,
    },
    RuleRow {
        id: "openrouter-credit-exhausted-402",
        providers: &["openrouter"],
        statuses: &[402],
        condition: Condition::Status,
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        length: RuleLength::Ms(120_000),
    },
];

/// Both tables. Tests make larger ones; nothing else may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registry {
    /// Statuses that do not mean what they say.
    pub(crate) restatements: &'static [Restatement],
    /// What answers of single providers mean.
    pub(crate) rules: &'static [RuleRow],
}

/// What is built in.
pub(crate) const BUILT_IN: Registry = Registry {
    restatements: RESTATEMENTS,
    rules: RULES,
};
