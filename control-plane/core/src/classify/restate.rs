//! Restatement: a status that does not mean what it says is replaced before anything looks at it
//! (`failure-state.md` §5.2).
//!
//! Some gateways report a used-up quota as 403 or 400. The class of the error, the marking of the connection,
//! routing and the client's answer all see the status that was meant. To teach a gateway that misreports, add a row
//! to [`RESTATEMENTS`]; nothing else changes. A row's markers must be words that only this gateway uses: they may
//! neither contain nor be contained in a phrase of `phrases` about bans, credits and long-period quotas (a test
//! compares them).

/// One gateway's habit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restatement {
    /// Id for people.
    pub(crate) id: &'static str,
    /// Whose answers it is about, in lower case.
    pub(crate) provider: &'static str,
    /// The statuses that are replaced.
    pub(crate) from: &'static [u16],
    /// The status that is meant.
    pub(crate) to: u16,
    /// Texts of the body, in lower case, one of which must be there.
    pub(crate) any: &'static [&'static str],
    /// Texts of the body that mean something else; one of them is enough to leave the status alone.
    pub(crate) none: &'static [&'static str],
    /// How long the client is told to wait when the upstream does not say, in ms. It cools nothing.
    pub(crate) default_retry_ms: u64,
}

/// Every gateway known to misreport; the first row that fits wins.
pub(crate) const RESTATEMENTS: &[Restatement] = &[Restatement {
    id: "agentrouter-quota-as-forbidden",
    provider: "agentrouter",
    from: &[400, 403],
    to: 429,
    any: &["额度不足"],
    none: &["无权访问模型"],
    default_retry_ms: 60_000,
}];
