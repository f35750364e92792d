//! Answers that are under way, as the control plane knows of them: so that their tokens are at least recorded as unknown if
//! this process dies (`sessions-and-streams.md` §4.7).
//!
//! An answer is told once it has been under way for a second, and once. As long as any told one is, this data plane is heard
//! again as often as the control plane asked for; an empty message will do. When the last one has ended and is recorded,
//! nothing is told any more.
//!
//! **Stance:** fail-open. While no control plane takes it, it is told again every second, and traffic goes on. **Bound:** so
//! many answers; those beyond are not told of, which is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::usage::OpenAttempt;
use tidegate_proto::report::v1 as proto;
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_wire::usage::open_to_proto;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use crate::metrics::ClientMetrics;
use crate::replicas::{Asked, Replicas};

/// Between two looks at what is to be told.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// An answer that ends sooner is not told of; its record comes as soon.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Most answers in one message (the contract allows 1,000).
const BATCH: usize = 500;
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// How often this data plane is heard, until a control plane says how often it must be.
const HEARD_EVERY: Duration = Duration::from_secs(10);

/// The answers under way.
#[derive(Debug)]
pub(crate) struct OpenAttempts {
    plane: PlaneIncarnation,
    capacity: usize,
    /// By number of the attempt.
    under_way: Mutex<BTreeMap<u64, UnderWay>>,
    metrics: ClientMetrics,
}

#[derive(Debug)]
struct UnderWay {
    open: OpenAttempt,
    began: Instant,
    told: bool,
}

/// When this data plane was heard, and how often it must be.
#[derive(Debug)]
struct Heard {
    at: Option<Instant>,
    every: Duration,
}

impl Heard {
    fn is_due(&self, now: Instant) -> bool {
        self.at
            .and_then(|at| at.checked_add(self.every))
            .is_none_or(|due| due <= now)
    }
}

impl OpenAttempts {
    pub(crate) fn new(plane: PlaneIncarnation, capacity: usize, metrics: ClientMetrics) -> Self {
        Self {
            plane,
            capacity: capacity.max(1),
            under_way: Mutex::default(),
            metrics,
        }
    }

    /// An answer begins.
    pub(crate) fn opens(&self, open: OpenAttempt) {
        let mut under_way = self.under_way.lock();
        if under_way.len() >= self.capacity {
            drop(under_way);
            self.metrics.usage_under_way_untold.inc();
            return;
        }
        let answer = UnderWay {
            began: Instant::now(),
            told: false,
            open,
        };
        under_way.insert(answer.open.attempt.number, answer);
    }

    /// It has ended.
    pub(crate) fn ends(&self, attempt: AttemptId) {
        let ended = self.under_way.lock().remove(&attempt.number);
        if ended.is_some_and(|answer| answer.told) {
            self.metrics.usage_under_way.dec();
        }
    }

    /// Tells until told to stop. What is under way then is recorded when it ends, or is lost with this process.
    pub(crate) async fn run(&self, replicas: &Replicas, stop: &CancellationToken) {
        let telling = async {
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut heard = Heard {
                at: None,
                every: HEARD_EVERY,
            };
            loop {
                ticks.tick().await;
                while self.tell(replicas, &mut heard).await {}
            }
        };
        stop.run_until_cancelled(telling).await;
    }

    /// Tells what there is to tell. Returns whether there may be more.
    async fn tell(&self, replicas: &Replicas, heard: &mut Heard) -> bool {
        let now = Instant::now();
        let (opened, any_told) = self.untold(now);
        if opened.is_empty() && !(any_told && heard.is_due(now)) {
            return false;
        }
        let request = proto::ReportOpenAttemptsRequest {
            plane: self.plane.0,
            opened: opened.iter().map(open_to_proto).collect(),
        };
        let Some(response) = send(replicas, request).await else {
            self.metrics.usage_under_way_failed.inc();
            return false;
        };
        heard.at = Some(now);
        if response.again_within_ms > 0 {
            heard.every = Duration::from_millis(response.again_within_ms);
        }
        self.are_told(&opened);
        opened.len() >= BATCH
    }

    /// What has been under way for long enough and is not told of, and whether any other is.
    fn untold(&self, now: Instant) -> (Vec<OpenAttempt>, bool) {
        let under_way = self.under_way.lock();
        let untold = under_way.values().filter(|answer| {
            !answer.told && now.saturating_duration_since(answer.began) >= TELL_AFTER
        });
        let untold = untold.take(BATCH).map(|answer| answer.open.clone());
        (
            untold.collect(),
            under_way.values().any(|answer| answer.told),
        )
    }

    /// Those that have not ended meanwhile.
    fn are_told(&self, opened: &[OpenAttempt]) {
        let mut under_way = self.under_way.lock();
        for open in opened {
            if let Some(answer) = under_way.get_mut(&open.attempt.number) {
                answer.told = true;
                self.metrics.usage_under_way.inc();
            }
        }
    }
}

/// Any replica will do: what they are told is in the durable store.
async fn send(
    replicas: &Replicas,
    request: proto::ReportOpenAttemptsRequest,
) -> Option<proto::ReportOpenAttemptsResponse> {
    let mut asked = Asked::default();
    while let Some(replica) = replicas.choose(Instant::now(), asked) {
        asked.add(replica.index);
        let mut client = ReportServiceClient::new(replica.channel());
        match timeout(CALL_LIMIT, client.report_open_attempts(request.clone())).await {
            Ok(Ok(response)) => return Some(response.into_inner()),
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "answers under way were not taken");
            }
            Err(_elapsed) => {
                tracing::debug!(replica = %replica.name, "answers under way took too long");
            }
        }
    }
    None
}
