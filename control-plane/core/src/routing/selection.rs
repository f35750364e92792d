//! What ordinary selection says of a request, connection by connection: which it would use, in the order of strategy and
//! accounts, and what keeps each of the others out (`sessions-and-streams.md` §1.7, §1.8).
//!
//! Leases are given and moved by it. It asks the same gates as a decision, with the failures of the request in its view;
//! what the request has tried and may not repeat is no property of a connection, so it keeps none out here.

use std::collections::{BTreeMap, BTreeSet};

use crate::classify::TerminalKind;
use crate::config::{ApiKey, Config, Protocol};
use crate::ids::ConnectionId;
use crate::lease::{Eligibility, Eligible, EndReason};

use super::accounts::{Past, Scene};
use super::exhaustion::Exhaustion;
use super::order::Sequence;
use super::private_view::PrivateView;
use super::reordered::found_again;
use super::resolve::resolve_request;
use super::strategy::Halt;
use super::turns::Peeking;
use super::{ExclusionReason, Input, RequestFacts};

/// Which protocol a connection must speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// That of the request.
    Request,
    /// Any: what is asked for is not a request yet.
    Anything,
}

/// What ordinary selection says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrdinarySelection {
    /// The model means something.
    is_known: bool,
    candidates: Vec<Eligible>,
    kept_out: BTreeMap<ConnectionId, KeptOut>,
}

/// What keeps a connection out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptOut {
    /// Why a lease of it ends.
    reason: Option<EndReason>,
    /// It could serve, at another time.
    passes: bool,
}

/// Asks ordinary selection. Takes no turn.
#[must_use]
pub fn ordinary_selection(input: &Input<'_>, speaks: Speaks) -> OrdinarySelection {
    let mut selection = OrdinarySelection::default();
    let Some(route) = resolve_request(input.config, input.facts) else {
        return selection;
    };
    selection.is_known = true;
    let mut so_far = found_again(input, &route).into_owned();
    // Like what it has tried, its budget is the request's own.
    so_far.spent_providers.clear();
    let peeking = Peeking(input.turns);
    let of = |protocol| RequestFacts {
        protocol,
        leased: None,
        granted: None,
        ..input.facts.clone()
    };
    let (openai, anthropic) = (of(Protocol::Openai), of(Protocol::Anthropic));
    let of = |facts| Input {
        facts,
        so_far: &so_far,
        turns: &peeking,
        ..*input
    };
    let (openai, anthropic) = (of(&openai), of(&anthropic));
    let view = PrivateView::new(&openai, &route);
    let (openai, anthropic) = (
        Scene::new(&openai, &route, &view),
        Scene::new(&anthropic, &route, &view),
    );
    let scene = |spoken: Protocol| {
        let protocol = match speaks {
            Speaks::Request => input.facts.protocol,
            Speaks::Anything => spoken,
        };
        match protocol {
            Protocol::Openai => &openai,
            Protocol::Anthropic => &anthropic,
        }
    };
    let first = route.targets.first();
    let spoken = first.and_then(|target| input.config.provider(&target.provider));
    let order: Vec<usize> = match Sequence::of(scene(
        spoken.map_or(Protocol::Openai, |entry| entry.provider.protocol),
    )) {
        Ok(sequence) => sequence.after(None).collect(),
        // The strategy sends nothing anywhere.
        Err(Halt::Reject(_)) => Vec::new(),
        // Nobody who only looks is asked to take a turn, or where sessions are.
        Err(Halt::TakeTurn(_) | Halt::ReadPin(_)) => (0..route.targets.len()).collect(),
    };
    let exhaustion = Exhaustion::default();
    let key = input.facts.key.as_deref();
    let mut seen = BTreeSet::new();
    for target in order
        .into_iter()
        .filter_map(|index| route.targets.get(index))
    {
        let Some(entry) = input.config.provider(&target.provider) else {
            continue;
        };
        let scene = scene(entry.provider.protocol);
        let past = Past::of_fresh_target(&exhaustion);
        scene.for_each_in_order(target, past, |connection, reason| match reason {
            Some(reason) => selection.keep_out(connection, kept_out(reason, key, connection)),
            None => {
                if seen.insert(connection.clone()) {
                    selection.candidates.push(Eligible {
                        provider: target.provider.clone(),
                        connection: connection.clone(),
                    });
                }
            }
        });
    }
    selection
        .kept_out
        .retain(|kept_out, _| !seen.contains(kept_out));
    selection
}

impl OrdinarySelection {
    /// The connections that would be used, in order, each once.
    #[must_use]
    pub fn candidates(&self) -> &[Eligible] {
        &self.candidates
    }

    /// What an acquire is told.
    #[must_use]
    pub fn eligibility(&self) -> Eligibility<'_> {
        if !self.is_known {
            Eligibility::UnknownModel
        } else if !self.candidates.is_empty() {
            Eligibility::Some(&self.candidates)
        } else if self.kept_out.values().any(|kept_out| kept_out.passes) {
            Eligibility::Blocked
        } else {
            Eligibility::None
        }
    }

    /// Why a lease of a connection ends that would not be used; `None` where nothing speaks against the connection.
    /// `key` and `config` are those that were asked with.
    #[must_use]
    pub fn why(
        &self,
        config: &Config,
        key: &ApiKey,
        connection: &ConnectionId,
    ) -> Option<EndReason> {
        let configured = config.connection(connection);
        if configured.is_none_or(|connection| !connection.enabled) {
            return Some(EndReason::ConnectionIneligible);
        }
        if !key.allowed_connections.contains(connection) {
            return Some(EndReason::AuthorizationChanged);
        }
        match self.kept_out.get(connection) {
            Some(kept_out) => kept_out.reason,
            // Nothing that was asked for leads there.
            None => Some(EndReason::ModelIneligible),
        }
    }

    /// The first thing that is found counts, unless that only said that this target is not for the connection.
    fn keep_out(&mut self, connection: &ConnectionId, found: KeptOut) {
        let known = self.kept_out.entry(connection.clone()).or_insert(found);
        known.passes |= found.passes;
        if known.reason == Some(EndReason::ModelIneligible) {
            known.reason = found.reason;
        }
    }
}

fn kept_out(reason: ExclusionReason, key: Option<&ApiKey>, connection: &ConnectionId) -> KeptOut {
    let is_allowed = key.is_none_or(|key| {
        key.allowed_connections.is_empty() || key.allowed_connections.contains(connection)
    });
    let ends = match reason {
        // The step names other accounts, or the key may not ask for this: neither is about its connection.
        ExclusionReason::NotAllowed if is_allowed => Some(EndReason::ModelIneligible),
        _ => EndReason::of_exclusion(reason),
    };
    KeptOut {
        reason: ends,
        passes: is_allowed && passes(reason),
    }
}

/// It cools down, is out of quota or has lost its authorization (`sessions-and-streams.md` §1.7, check 12).
fn passes(reason: ExclusionReason) -> bool {
    match reason {
        ExclusionReason::Terminal(kind) => match kind {
            TerminalKind::Expired | TerminalKind::CreditsExhausted => true,
            TerminalKind::Banned => false,
        },
        _ => reason.is_timer() || reason == ExclusionReason::ConcurrencyCap,
    }
}
