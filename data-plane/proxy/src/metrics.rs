//! Everything the proxy counts, as one typed tree. Labels are closed sets; the first scrape shows every series
//! of a dense set at zero.

mod gen_ai;
mod tokens;

use std::fmt::Write as _;

/// The words of a closed set as they stand in labels.
macro_rules! label_words {
    ($kind:ident { $($variant:ident => $word:literal,)+ }) => {
        impl EncodeLabelValue for $kind {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
                encoder.write_str(match self {
                    $(Self::$variant => $word,)+
                })
            }
        }

        impl $kind {
            const ALL: &[Self] = &[$(Self::$variant,)+];
        }
    };
}

mod management;
mod recovery;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tidegate_core::lease::Action;
use tidegate_core::outcome::Outcome;
use tidegate_telemetry::FamilyRegistry;

use crate::endpoint::Endpoint;
pub(crate) use gen_ai::GenAiMetrics;
pub(crate) use management::{ManagementEnd, ManagementMetrics};
pub(crate) use recovery::{AbortLabels, AbortMoment, Continued, RecoveryMetrics, Resent};
pub(crate) use tokens::TokenMetrics;

/// The metrics of one proxy. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) request_seconds: Family<EndpointLabels, Histogram, fn() -> Histogram>,
    pub(crate) requests_in_flight: Gauge,
    pub(crate) refusals: Family<RefusalLabels, Counter>,
    pub(crate) waits_refused: Counter,
    pub(crate) attempts: Family<AttemptLabels, Counter>,
    /// Attempts that were sent again because the upstream had not processed them.
    pub(crate) upstream_resends: Counter,
    pub(crate) ready_seconds: Histogram,
    pub(crate) tokens: TokenMetrics,
    pub(crate) gen_ai: GenAiMetrics,
    pub(crate) decisions: Family<DecisionLabels, Counter>,
    pub(crate) decide_seconds: Histogram,
    pub(crate) streams_open: Gauge,
    pub(crate) heartbeats: Counter,
    pub(crate) early_keepalives: Family<EarlyLabels, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) handoffs: Family<HandoffLabels, Counter>,
    pub(crate) handoffs_told: Counter,
    pub(crate) idempotency: Family<IdempotencyLabels, Counter>,
    /// Size of the answers that are kept for repetitions, in bytes.
    pub(crate) idempotency_kept_bytes: Gauge,
    pub(crate) lease_requests: Family<LeaseLabels, Counter>,
    pub(crate) management: ManagementMetrics,
    pub(crate) queued: Gauge,
    pub(crate) queue: Family<QueueLabels, Counter>,
    /// Sessions on OAuth accounts.
    pub(crate) oauth_occupants: Gauge,
    /// Requests to OAuth accounts that are not known of, because as many are known as may be.
    pub(crate) oauth_occupants_unknown: Counter,
    pub(crate) recovery: RecoveryMetrics,
}

/// How a request ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestEnd {
    /// Status below 400, body whole.
    Complete,
    /// Status from 400 to 499.
    ClientError,
    /// Status from 500.
    ServerError,
    /// A stream that began well and failed.
    BrokenStream,
    /// The client left.
    ClientAbort,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) endpoint: Endpoint,
    pub(crate) end: RequestEnd,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EndpointLabels {
    pub(crate) endpoint: Endpoint,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RefusalLabels {
    /// From [`crate::refusal::Refusal::kind`], a closed set.
    pub(crate) code: String,
}

/// How an attempt ended, one word per variant of [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AttemptEnd {
    Success,
    Response,
    Transport,
    Stream,
    Local,
    ClientAbort,
}

impl AttemptEnd {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Response(_) => Self::Response,
            Outcome::Transport(_) => Self::Transport,
            Outcome::Stream(_) => Self::Stream,
            Outcome::Local(_) => Self::Local,
            Outcome::ClientAbort => Self::ClientAbort,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AttemptLabels {
    pub(crate) outcome: AttemptEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DecidedStep {
    Dispatch,
    Wait,
    Reject,
    Plan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DecidedBy {
    ControlPlane,
    Local,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DecisionLabels {
    pub(crate) step: DecidedStep,
    pub(crate) by: DecidedBy,
}

/// What happened to a request at the queue of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QueueEnd {
    /// It was sent.
    Went,
    /// It had to wait.
    Waited,
    /// As many waited as may.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct QueueLabels {
    pub(crate) end: QueueEnd,
}

/// What a request with an `Idempotency-Key` was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum IdempotencyEnd {
    /// The first with its key.
    First,
    /// Answered with what the first one had been answered.
    Replayed,
    /// The same, after waiting for it.
    Joined,
    /// Refused: the first one streams.
    InUse,
    /// Refused: the key is another request's.
    Reused,
    /// Run without being known, because of a limit.
    NotRemembered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct IdempotencyLabels {
    pub(crate) end: IdempotencyEnd,
}

/// What became of making a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HandoffEnd {
    /// It is kept.
    Saved,
    /// It was not asked for, or nobody answered whether it is.
    NotWanted,
    /// Too many are being made.
    Full,
    /// The conversation says nothing.
    NothingSaid,
    /// The model gave no answer.
    Unanswered,
    /// Its answer is no summary.
    Unusable,
    /// It took too long.
    Late,
    /// It could not be handed over, or another one was first.
    NotKept,
    /// The data plane ends.
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct HandoffLabels {
    pub(crate) end: HandoffEnd,
}

/// What became of a stream that was promised before there was an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EarlyEnd {
    /// A stream.
    Stream,
    /// A whole answer.
    Whole,
    /// An error.
    Error,
    /// The client left before.
    Left,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EarlyLabels {
    pub(crate) end: EarlyEnd,
}

/// What a session asks about its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeaseAction {
    Acquire,
    Renew,
    Release,
    Status,
    /// It was refused before that was known.
    None,
}

impl LeaseAction {
    pub(crate) fn of(action: &Action) -> Self {
        match action {
            Action::Acquire { .. } => Self::Acquire,
            Action::Renew { .. } => Self::Renew,
            Action::Release { .. } => Self::Release,
            Action::Status { .. } => Self::Status,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LeaseLabels {
    pub(crate) action: LeaseAction,
    /// `ok`, or from [`crate::refusal::Refusal::kind`], a closed set.
    pub(crate) code: String,
}

impl EncodeLabelValue for Endpoint {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.name())
    }
}

label_words!(RequestEnd {
    Complete => "complete",
    ClientError => "client_error",
    ServerError => "server_error",
    BrokenStream => "broken_stream",
    ClientAbort => "client_abort",
});
label_words!(AttemptEnd {
    Success => "success",
    Response => "response",
    Transport => "transport",
    Stream => "stream",
    Local => "local",
    ClientAbort => "client_abort",
});
label_words!(HandoffEnd {
    Saved => "saved",
    NotWanted => "not_wanted",
    Full => "full",
    NothingSaid => "nothing_said",
    Unanswered => "unanswered",
    Unusable => "unusable",
    Late => "late",
    NotKept => "not_kept",
    Stopped => "stopped",
});
label_words!(EarlyEnd {
    Stream => "stream",
    Whole => "whole",
    Error => "error",
    Left => "left",
});
label_words!(LeaseAction {
    Acquire => "acquire",
    Renew => "renew",
    Release => "release",
    Status => "status",
    None => "none",
});
label_words!(QueueEnd {
    Went => "went",
    Waited => "waited",
    Refused => "refused",
});
label_words!(IdempotencyEnd {
    First => "first",
    Replayed => "replayed",
    Joined => "joined",
    InUse => "in_use",
    Reused => "reused",
    NotRemembered => "not_remembered",
});
label_words!(DecidedStep {
    Dispatch => "dispatch",
    Wait => "wait",
    Reject => "reject",
    Plan => "plan",
});
label_words!(DecidedBy {
    ControlPlane => "control_plane",
    Local => "local",
});

/// One of something that is counted while it exists, however it ends.
#[derive(Debug)]
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// From 1 ms to about 4 minutes.
fn request_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

impl Metrics {
    /// Makes the metrics and names them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(request_buckets as fn() -> Histogram),
            requests_in_flight: Gauge::default(),
            refusals: Family::default(),
            waits_refused: Counter::default(),
            attempts: Family::default(),
            upstream_resends: Counter::default(),
            ready_seconds: request_buckets(),
            tokens: TokenMetrics::default(),
            gen_ai: GenAiMetrics::default(),
            decisions: Family::default(),
            decide_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 14)),
            streams_open: Gauge::default(),
            heartbeats: Counter::default(),
            early_keepalives: Family::default(),
            connections: Gauge::default(),
            handoffs: Family::default(),
            handoffs_told: Counter::default(),
            idempotency: Family::default(),
            idempotency_kept_bytes: Gauge::default(),
            lease_requests: Family::default(),
            management: ManagementMetrics::default(),
            queued: Gauge::default(),
            queue: Family::default(),
            oauth_occupants: Gauge::default(),
            oauth_occupants_unknown: Counter::default(),
            recovery: RecoveryMetrics::default(),
        };
        metrics.begin_at_zero();
        let mut families = FamilyRegistry::of(registry);
        metrics.name_in(&mut families.with_prefix("tidegate_dp"));
        // Their names are not ours.
        metrics.gen_ai.name_in(&mut families);
        metrics
    }

    fn begin_at_zero(&self) {
        for endpoint in Endpoint::ALL {
            drop(
                self.request_seconds
                    .get_or_create(&EndpointLabels { endpoint }),
            );
            for &end in RequestEnd::ALL {
                drop(
                    self.requests
                        .get_or_create(&RequestLabels { endpoint, end }),
                );
            }
        }
        for &outcome in AttemptEnd::ALL {
            drop(self.attempts.get_or_create(&AttemptLabels { outcome }));
        }
        for &end in HandoffEnd::ALL {
            drop(self.handoffs.get_or_create(&HandoffLabels { end }));
        }
        for &action in LeaseAction::ALL {
            let code = "ok".to_owned();
            let labels = LeaseLabels { action, code };
            if action != LeaseAction::None {
                drop(self.lease_requests.get_or_create(&labels));
            }
        }
        self.management.begin_at_zero();
        for &end in IdempotencyEnd::ALL {
            drop(self.idempotency.get_or_create(&IdempotencyLabels { end }));
        }
        for &end in EarlyEnd::ALL {
            drop(self.early_keepalives.get_or_create(&EarlyLabels { end }));
        }
        self.recovery.begin_at_zero();
        for &end in QueueEnd::ALL {
            drop(self.queue.get_or_create(&QueueLabels { end }));
        }
        for &step in DecidedStep::ALL {
            for &by in DecidedBy::ALL {
                drop(self.decisions.get_or_create(&DecisionLabels { step, by }));
            }
        }
    }

    fn name_in(&self, registry: &mut FamilyRegistry<'_>) {
        self.tokens.name_in(registry);
        registry.register(
            "requests",
            "Requests by endpoint and end",
            self.requests.clone(),
        );
        registry.register(
            "request_seconds",
            "Time from the request's head to the end of its answer",
            self.request_seconds.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests whose answer has not ended",
            self.requests_in_flight.clone(),
        );
        registry.register(
            "refusals",
            "Answers of our own by code",
            self.refusals.clone(),
        );
        registry.register(
            "lease_requests",
            "Requests about leases by action and code",
            self.lease_requests.clone(),
        );
        registry.register(
            "idempotency",
            "Requests with an Idempotency-Key by what they were",
            self.idempotency.clone(),
        );
        registry.register(
            "idempotency_kept_bytes",
            "Size of the answers that are kept for repetitions of their requests",
            self.idempotency_kept_bytes.clone(),
        );
        registry.register(
            "waits_refused",
            "Requests that went on without a wait because too many waited already",
            self.waits_refused.clone(),
        );
        registry.register(
            "attempts",
            "Upstream attempts by outcome",
            self.attempts.clone(),
        );
        registry.register(
            "upstream_resends",
            "Requests sent to an upstream again because it had not processed them",
            self.upstream_resends.clone(),
        );
        registry.register(
            "ready_seconds",
            "Time from dispatch to readiness of successful attempts",
            self.ready_seconds.clone(),
        );
        registry.register(
            "decisions",
            "Decisions by step and maker",
            self.decisions.clone(),
        );
        registry.register(
            "decide_seconds",
            "Time a decision took, wherever it was made",
            self.decide_seconds.clone(),
        );
        registry.register(
            "streams_open",
            "Streams that are being passed on",
            self.streams_open.clone(),
        );
        registry.register(
            "heartbeats",
            "Signs of life of our own in streams",
            self.heartbeats.clone(),
        );
        registry.register(
            "early_keepalives",
            "Streams promised before there was an answer, by what it came to",
            self.early_keepalives.clone(),
        );
        registry.register(
            "handoffs",
            "Notes for other accounts by what became of making them",
            self.handoffs.clone(),
        );
        registry.register(
            "handoffs_told",
            "Attempts that were told a note",
            self.handoffs_told.clone(),
        );
        registry.register(
            "queued",
            "Requests that wait in the queue of a connection",
            self.queued.clone(),
        );
        registry.register(
            "queue",
            "What happened to requests at queues of connections with a limited pace",
            self.queue.clone(),
        );
        registry.register(
            "oauth_occupants",
            "Sessions on OAuth accounts, each counted once per account",
            self.oauth_occupants.clone(),
        );
        registry.register(
            "oauth_occupants_unknown",
            "Requests of sessions to OAuth accounts beyond as many as are counted",
            self.oauth_occupants_unknown.clone(),
        );
        self.management.name_in(registry);
        self.recovery.name_in(registry);
        registry.register(
            "connections",
            "Open client connections",
            self.connections.clone(),
        );
    }
}
