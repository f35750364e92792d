//! The end of a request happens once, however it comes (`sessions-and-streams.md` §4.7).
//!
//! A [`Life`] goes with its request from the first decision to the last byte. It knows what is open: an attempt
//! that was asked for but not sent, one that is in flight without a verdict, a failure that nobody reported yet.
//! [`Life::end`] closes it; if the request is dropped instead (the client left, a phase panicked, a drain cut
//! it off), the drop closes it. Either way every attempt is reported, every grant given back, and the request
//! counted and logged, once. What was granted to a question that is dropped before its answer is given back by
//! whoever put the question ([`ControlPort::decide`]).

mod again;
mod breaking;
mod closing;
mod family;
mod target;
mod telling;
mod trace;
mod traced;
mod usage;

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use tidegate_core::ids::{AttemptId, ComboName, ProviderId};
use tidegate_core::outcome::{Attempt, AttemptOutcome, Outcome};
use tidegate_core::routing::{RequestFacts, WaitKind};
use tidegate_core::telemetry::QuotaSnapshot;
use tidegate_core::telemetry::aggregate::Verdict;
use tidegate_core::usage::{TokenUsage, ToldTokens};
use tidegate_plane_client::{Answer, Dispatch, LastFailure, Leased, Running, Step};
use tidegate_telemetry::Span;
use tokio::time::Instant;

use crate::control_port::ControlPort;
use crate::endpoint::Endpoint;
use crate::metrics::{AbortMoment, DecidedBy, DecidedStep, DecisionLabels};
use crate::occupants::Occupied;
use crate::proxy::Shared;
use crate::retries::Held;
use crate::sending::Sending;
use crate::spans::{self, AttemptSpan, Branch, Decided};
use family::Family;
use target::Target;
use trace::Trace;

/// An attempt that was sent.
#[derive(Debug)]
struct InFlight {
    /// Counts as an attempt, and as a retry if it is one, until its upstream is let go.
    counted: Option<(Held, Option<Held>)>,
    /// Its upstream was let go, whatever the client is still shown of it.
    is_let_go: bool,
    /// It is in flight under a lease, until this is dropped.
    leased: Option<Leased>,
    /// Counts among the requests that may be under way at once on its connection.
    running: Running,
    dispatch: Box<Dispatch>,
    target: Target,
    /// Counts as a session on its account.
    _occupied: Option<Occupied>,
    sent: Instant,
    /// Its success was reported; a later failure is a second report (decision 8).
    ready: bool,
    /// What its provider told of tokens.
    told: ToldTokens,
    /// Bytes that the model wrote, where they can be counted.
    written: Option<u64>,
    span: AttemptSpan,
    /// How it ended was told.
    has_ended: bool,
}

impl InFlight {
    fn is_cut(&self) -> bool {
        self.leased.as_ref().is_some_and(Leased::is_cut)
    }

    /// Its upstream was let go. It keeps its place among those under way.
    fn lets_go(&mut self, control: &impl ControlPort) {
        if !std::mem::replace(&mut self.is_let_go, true) {
            self.counted = None;
            self.leased = None;
            self.span.is_over();
            self.target.is_over(control);
        }
    }
}

/// An attempt that was asked for and not sent yet: something may be granted to it.
#[derive(Debug)]
struct Asking {
    attempt: AttemptId,
    /// Whose probe it was granted.
    probed: Option<ProviderId>,
}

/// How a request ended, apart from being dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// The client was handed a whole answer.
    Answered,
    /// A stream began well and failed; the client was told in-band.
    BrokenStream,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Life<C: ControlPort> {
    shared: Arc<Shared<C>>,
    family: Arc<Family>,
    /// It is a part of a plan: counted and logged as such.
    is_part: bool,
    pub(crate) request_id: String,
    endpoint: Endpoint,
    facts: Arc<RequestFacts>,
    stream: bool,
    begun: Instant,
    asking: Option<Asking>,
    /// The attempt that holds a permit. It outlasts a failure until it is known where the request goes on, so that a
    /// retry on the same connection takes it over.
    permit: Option<AttemptId>,
    in_flight: Option<Box<InFlight>>,
    /// A stream that failed while the request is sent again in its place.
    set_aside: Option<Box<InFlight>>,
    failed: Option<Box<(LastFailure, Target, AttemptSpan)>>,
    /// The combo the request names, where retries of it are counted.
    retried: Option<ComboName>,
    /// Counts as a request in flight, until its end.
    _counted: Option<Held>,
    combo: bool,
    any_local: bool,
    traces: Vec<Trace>,
    /// What the client was told; unset until an answer began.
    status: Option<StatusCode>,
    code: Option<String>,
    /// Tokens of the attempts that gave an answer.
    usage: Option<TokenUsage>,
    ended: Option<Ending>,
    /// The request's trace.
    branch: Branch,
    /// The request's own span; parts have none.
    span: Span,
    /// Why the attempt that is sent next goes where it goes.
    decided: Decided,
    /// When its stream was ready for the first time, in seconds since it began.
    ready_after: Option<f64>,
}

impl<C: ControlPort> Life<C> {
    pub(crate) fn begin(
        shared: Arc<Shared<C>>,
        request_id: String,
        endpoint: Endpoint,
        facts: Arc<RequestFacts>,
        stream: bool,
        begun: Instant,
        traced: (Branch, Span),
    ) -> Self {
        shared.metrics.requests_in_flight.inc();
        let combo = shared.control.snapshot().and_then(|snapshot| {
            let entry = snapshot.config.combo_for(&facts.model)?;
            Some(entry.combo.name.clone())
        });
        let counted = combo.as_ref().map(|combo| shared.retries.request(combo));
        let (branch, mut span) = traced;
        spans::tell_request(&mut span, endpoint, &request_id, &facts, stream);
        let family = Arc::new(Family::new(begun));
        let mut life = Self::new(shared, family, request_id, endpoint, facts, begun);
        life.branch = branch;
        life.span = span;
        life._counted = counted;
        life.retried = combo;
        life.stream = stream;
        life
    }

    /// The life of a request that is a part of this one's plan. Its end is no request's end, and its request counts
    /// already.
    pub(crate) fn part(&self, facts: Arc<RequestFacts>) -> Self {
        let mut life = Self::new(
            Arc::clone(&self.shared),
            Arc::clone(&self.family),
            self.request_id.clone(),
            self.endpoint,
            facts,
            Instant::now(),
        );
        life.is_part = true;
        life.branch = self.branch.clone();
        life.retried.clone_from(&self.retried);
        life
    }

    /// The life of a request of ours that is made because of a client's and outlasts it. Its end is no request's end,
    /// nothing of it is told to the client, and where it is cut off that is a decision of ours.
    pub(crate) fn apart(
        shared: Arc<Shared<C>>,
        request_id: String,
        endpoint: Endpoint,
        facts: Arc<RequestFacts>,
        branch: Branch,
    ) -> Self {
        let begun = Instant::now();
        let family = Family::new(begun);
        family.dismiss();
        let mut life = Self::new(shared, Arc::new(family), request_id, endpoint, facts, begun);
        life.branch = branch;
        life.is_part = true;
        life
    }

    fn new(
        shared: Arc<Shared<C>>,
        family: Arc<Family>,
        request_id: String,
        endpoint: Endpoint,
        facts: Arc<RequestFacts>,
        begun: Instant,
    ) -> Self {
        Self {
            shared,
            family,
            is_part: false,
            request_id,
            endpoint,
            facts,
            stream: false,
            begun,
            asking: None,
            permit: None,
            in_flight: None,
            set_aside: None,
            failed: None,
            retried: None,
            _counted: None,
            combo: false,
            any_local: false,
            // Most requests have one attempt, and keep it for as long as they stream.
            traces: Vec::with_capacity(1),
            status: None,
            code: None,
            usage: None,
            ended: None,
            branch: Branch::default(),
            span: Span::none(),
            decided: Decided::default(),
            ready_after: None,
        }
    }

    /// The parts that still run are not needed: what they have in flight ends as a decision of ours.
    pub(crate) fn dismiss_parts(&self) {
        self.family.dismiss();
    }

    /// `provider/model` of each attempt so far, those of parts included.
    pub(crate) fn attempt_order(&self) -> Vec<String> {
        self.family.attempt_order()
    }

    /// How many attempts were sent, by parts included.
    pub(crate) fn attempts(&self) -> usize {
        self.family.attempts()
    }

    /// How many of them were other parts'.
    pub(crate) fn attempts_elsewhere(&self) -> u32 {
        let elsewhere = self.attempts().saturating_sub(self.traces.len());
        u32::try_from(elsewhere).unwrap_or(u32::MAX)
    }

    /// Time since the request began, in ms; of a part, since the request began that it is a part of.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        millis(self.family.begun, Instant::now())
    }

    /// An attempt is asked for; from now on something may be granted to it.
    pub(crate) fn asks(&mut self, attempt: AttemptId) {
        self.asking = Some(Asking {
            attempt,
            probed: None,
        });
    }

    /// The attempt that holds a permit.
    pub(crate) fn holds_permit(&self) -> Option<AttemptId> {
        self.permit
    }

    /// The answer came. The failure that led to the question is now reported, since it is known how the
    /// request goes on.
    pub(crate) fn hears(&mut self, answer: &Answer) {
        self.combo = answer.combo;
        self.any_local |= answer.local;
        self.decided.locally = answer.local;
        let classification = answer.classification.as_ref();
        self.report_failure(answer.next_target_same_provider, classification);
        let step = match &answer.decision {
            Step::Dispatch(_) => DecidedStep::Dispatch,
            Step::Wait { .. } | Step::AwaitPermit(_) => DecidedStep::Wait,
            Step::Reject(_) => DecidedStep::Reject,
            Step::Plan(_) => DecidedStep::Plan,
        };
        match &answer.decision {
            // What it was granted is open until it is sent.
            Step::Dispatch(dispatch) => {
                let Attempt {
                    id,
                    provider,
                    probe,
                    ..
                } = &dispatch.attempt;
                self.asking = Some(Asking {
                    attempt: *id,
                    probed: probe.then(|| provider.clone()),
                });
            }
            Step::Wait { .. } | Step::AwaitPermit(_) => {}
            Step::Reject(_) | Step::Plan(_) => self.asking = None,
        }
        let retries = matches!(
            answer.decision,
            Step::Wait {
                kind: WaitKind::RetryDelay,
                ..
            }
        );
        if !retries {
            self.release_permit();
        }
        let by = if answer.local {
            DecidedBy::Local
        } else {
            DecidedBy::ControlPlane
        };
        let labels = DecisionLabels { step, by };
        self.shared.metrics.decisions.get_or_create(&labels).inc();
    }

    /// The attempt that was decided on is not sent now. Gives back what it was granted: a probe, and its permit if it
    /// has one.
    pub(crate) fn gives_back(&mut self, permit: bool) {
        match self.asking.take() {
            Some(Asking {
                attempt,
                probed: Some(provider),
            }) => self.shared.control.abandon(attempt, Some(provider)),
            Some(Asking { attempt, .. }) if permit => self.shared.control.release(attempt),
            Some(_) | None => {}
        }
    }

    /// The attempt goes out, under a lease if it is managed.
    pub(crate) fn sends(
        &mut self,
        dispatch: Box<Dispatch>,
        running: Running,
        leased: Option<Leased>,
    ) {
        let now = Instant::now();
        self.asking = None;
        let attempt = &dispatch.attempt;
        let is_retry = !self.traces.is_empty();
        let retries = &self.shared.retries;
        let retried = self.retried.as_ref().filter(|_| is_retry);
        let counted = (
            retries.attempt(&attempt.provider, is_retry),
            retried.map(|combo| retries.retry(combo)),
        );
        self.traces.push(Trace::new(attempt));
        self.family.sends(attempt);
        if dispatch.permit {
            self.permit = Some(dispatch.attempt.id);
        }
        let now_here = self.shared.control.now();
        let occupied = self.shared.control.snapshot().and_then(|snapshot| {
            let (occupants, facts) = (&self.shared.occupants, &self.facts);
            occupants.occupy(&snapshot.config, facts, &dispatch.attempt, now_here)
        });
        let target = Target::of(&dispatch, now_here);
        target.begins(&self.shared.control);
        let span = self.branch.attempt(self.endpoint, &dispatch, self.decided);
        self.in_flight = Some(Box::new(InFlight {
            counted: Some(counted),
            is_let_go: false,
            running,
            leased,
            dispatch,
            target,
            _occupied: occupied,
            sent: now,
            ready: false,
            told: ToldTokens::default(),
            written: None,
            span,
            has_ended: false,
        }));
    }

    /// With what an attempt is sent that is about to be.
    pub(crate) fn sending(&self, dispatch: &Dispatch) -> Sending<C> {
        let Attempt {
            provider,
            connection,
            ..
        } = &dispatch.attempt;
        let combo = self.retried.as_ref();
        Sending::new(&self.shared, &self.facts, provider, connection, combo)
    }

    /// The attempt succeeded: its first ready event, or its whole body, is here.
    pub(crate) fn succeeds(&mut self) {
        let Some(in_flight) = self.in_flight.as_mut().filter(|flight| !flight.ready) else {
            return;
        };
        in_flight.ready = true;
        let ready_ms = millis(in_flight.sent, Instant::now());
        let seconds = in_flight.sent.elapsed().as_secs_f64();
        self.shared.metrics.ready_seconds.observe(seconds);
        let attempt = &in_flight.dispatch.attempt;
        let gen_ai = &self.shared.metrics.gen_ai;
        if self.stream {
            in_flight.span.first_chunk(seconds);
            gen_ai.first_chunk(self.endpoint, attempt, seconds);
            if self.ready_after.is_none() && !self.is_part {
                let since_begin = self.begun.elapsed().as_secs_f64();
                self.ready_after = Some(since_begin);
                gen_ai.first_token(self.endpoint, attempt, since_begin);
            }
        }
        let dispatch = &in_flight.dispatch;
        let urgent = dispatch.attempt.probe || dispatch.report_at_readiness;
        let report = AttemptOutcome {
            attempt: dispatch.attempt.clone(),
            outcome: Outcome::Success,
            occurred_at: self.shared.control.now(),
            next_target_same_provider: false,
            combo: self.combo,
            count: 1,
        };
        if let Some(trace) = self.traces.last_mut() {
            trace.ends("success", ready_ms);
        }
        let session = target::binding(&self.shared.control, &self.facts);
        let verdict = Verdict::Served { ready_ms };
        in_flight
            .target
            .ends(&self.shared.control, verdict, session);
        self.opens_usage(&report);
        self.report(report, urgent);
    }

    /// Headers of an answer arrived. Gives back what they tell of quotas.
    pub(crate) fn sees(&self, status: StatusCode, headers: &HeaderMap) -> Option<QuotaSnapshot> {
        let in_flight = self.in_flight.as_deref()?;
        let InFlight {
            target, running, ..
        } = in_flight;
        let control = &self.shared.control;
        target.learns_pace(control, status, headers, running.place());
        target.sees(control, headers)
    }

    /// The attempt failed before anything of it reached the client, which for a stream that was held back may be after
    /// it had begun well. The report waits for the next decision.
    pub(crate) fn fails(&mut self, outcome: Outcome) -> Option<LastFailure> {
        let mut in_flight = self.in_flight.take()?;
        in_flight.lets_go(&self.shared.control);
        if in_flight.ready {
            self.record_usage(&mut in_flight);
        }
        in_flight.ends(&self.shared.metrics.gen_ai, self.endpoint, Some(&outcome));
        self.counts(&outcome, AbortMoment::Readiness);
        let sent_at_most = in_flight.dispatch.max_tools.unwrap_or(u32::MAX);
        let offered = self.facts.tools.min(sent_at_most);
        let target = &in_flight.target;
        target.learns(&self.shared.control, &outcome, offered);
        if let Some(trace) = self.traces.last_mut() {
            trace.fails(&outcome, millis(in_flight.sent, Instant::now()));
        }
        let failure = LastFailure {
            pass: in_flight.dispatch.pass,
            target: in_flight.dispatch.target,
            attempt: in_flight.dispatch.attempt,
            outcome,
            occurred_at: self.shared.control.now(),
        };
        let failed = (failure.clone(), in_flight.target, in_flight.span);
        self.failed = Some(Box::new(failed));
        Some(failure)
    }

    /// The answer to the client begins.
    pub(crate) fn answers(&mut self, status: StatusCode, code: Option<&str>) {
        self.status = Some(status);
        self.code = code.map(str::to_owned);
    }

    /// The request is over.
    pub(crate) fn end(mut self, ending: Ending) {
        self.ended = Some(ending);
    }
}

impl<C: ControlPort> Drop for Life<C> {
    fn drop(&mut self) {
        self.close_attempts();
        self.count_and_log();
    }
}

fn millis(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
}
