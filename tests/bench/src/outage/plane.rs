//! A data plane as the control plane sees it: one ordered stream of numbered reports, at most 256 of a shard under way.
//!
//! Reports become due at a fixed rate, whatever the control plane does, and their lag counts from then: what has to
//! wait for room under way is late, too.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use secrecy::SecretString;
use tidegate_core::ids::{ProviderId, SHARDS, Shard};
use tidegate_core::version::Version;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, channel};
use tidegate_proto::common::v1 as common;
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_proto::report::v1::{AttemptReport, NumberedReport, ReportRequest, ReportResponse};
use tidegate_test_support::DATA_PLANE_TOKEN;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::versions::Versions;
use super::{Case, Mix};

/// Most reports of a shard under way, as in a real data plane.
const WINDOW: usize = 256;
/// How often what is due is sent; a real data plane sends a failure at once.
const TICK: Duration = Duration::from_millis(2);
/// How long the last acknowledgements may take.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// Messages that wait for the transport.
const BUFFER: usize = 64;

/// One simulated data plane.
#[derive(Debug)]
pub(super) struct Plane {
    incarnation: u64,
    mix: Mix,
    per_second: u32,
    targets: Vec<Target>,
    /// What decisions of its replica rest on now.
    versions: watch::Receiver<Versions>,
    sender: mpsc::Sender<ReportRequest>,
    inbound: Streaming<ReportResponse>,
    shards: [ShardState; SHARDS as usize],
    /// Reports that have become due.
    due: u64,
    delivered: Delivered,
}

#[derive(Clone, Debug)]
struct Target {
    shard: Shard,
    provider: String,
    connection: String,
}

#[derive(Debug, Default)]
struct ShardState {
    /// Reports that are due and not sent: which, and since when.
    waiting: VecDeque<(u64, Instant)>,
    /// Numbers under way, and since when they are due.
    under_way: VecDeque<(u64, Instant)>,
    last_number: u64,
}

/// What became of a plane's reports.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    /// From due to acknowledged.
    pub(super) lags: Vec<Duration>,
    pub(super) due: u64,
    pub(super) acknowledged: u64,
    /// Due and not acknowledged when the last one became due.
    pub(super) backlog: u64,
}

impl Delivered {
    pub(super) fn add(&mut self, other: Self) {
        self.lags.extend(other.lags);
        self.due += other.due;
        self.acknowledged += other.acknowledged;
        self.backlog += other.backlog;
    }
}

impl Plane {
    /// Opens the stream.
    pub(super) async fn connect(
        number: u32,
        replica: SocketAddr,
        case: &Case,
        versions: watch::Receiver<Versions>,
    ) -> Result<Self> {
        let address = Address::Tcp(format!("http://{replica}").parse()?);
        let token = SecretString::from(DATA_PLANE_TOKEN);
        let channel = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
        let (sender, receiver) = mpsc::channel(BUFFER);
        let mut client = ReportServiceClient::new(channel);
        let response = client.report(ReceiverStream::new(receiver)).await?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self {
            // New with each run, as that of a process is.
            incarnation: (u64::try_from(started.as_millis())? << 8) | u64::from(number),
            mix: case.mix,
            per_second: case.reports_per_second(),
            targets: targets(case, number)?,
            versions,
            sender,
            inbound: response.into_inner(),
            shards: std::array::from_fn(|_| ShardState::default()),
            due: 0,
            delivered: Delivered::default(),
        })
    }

    /// Reports for `time`, then waits for the last acknowledgement.
    pub(super) async fn run(mut self, time: Duration) -> Result<Delivered> {
        let started = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let elapsed = started.elapsed();
                    self.become_due(started, elapsed.min(time));
                    if elapsed >= time && !ended {
                        ended = true;
                        self.delivered.due = self.due;
                        self.delivered.backlog = self.due - self.delivered.acknowledged;
                    }
                    self.send()?;
                    ensure!(elapsed < time + DRAIN_LIMIT, "reports are still unacknowledged");
                }
                message = self.inbound.message() => {
                    let message = message?.context("the report stream ended")?;
                    self.acknowledged(&message)?;
                }
            }
            if ended && self.delivered.acknowledged == self.due {
                return Ok(self.delivered);
            }
        }
    }

    fn become_due(&mut self, started: Instant, elapsed: Duration) {
        let each = Duration::from_secs(1) / self.per_second;
        let until = elapsed.as_nanos() / each.as_nanos().max(1);
        while u128::from(self.due) < until {
            let at = started + Duration::from_secs_f64(each.as_secs_f64() * self.due as f64);
            let shard = target(&self.targets, self.mix, self.due).map(|target| target.shard);
            if let Some(state) = shard.and_then(|shard| self.shards.get_mut(shard.index())) {
                state.waiting.push_back((self.due, at));
            }
            self.due += 1;
        }
    }

    fn send(&mut self) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let now_ms = u64::try_from(now.as_millis())?;
        let versions = *self.versions.borrow();
        for shard in Shard::all() {
            let Some(state) = self.shards.get_mut(shard.index()) else {
                continue;
            };
            if state.waiting.is_empty() || state.under_way.len() >= WINDOW {
                continue;
            }
            let Ok(place) = self.sender.try_reserve() else {
                return Ok(());
            };
            let rests_on = versions.get(shard.index()).copied().unwrap_or_default();
            let mut reports = Vec::new();
            while state.under_way.len() < WINDOW
                && let Some((which, at)) = state.waiting.pop_front()
            {
                state.last_number += 1;
                state.under_way.push_back((state.last_number, at));
                let target = target(&self.targets, self.mix, which).context("no target")?;
                let attempt = attempt(self.incarnation, which, target, rests_on);
                reports.push(NumberedReport {
                    number: state.last_number,
                    report: Some(report(attempt, outcome(which, self.mix), now_ms)),
                });
            }
            place.send(ReportRequest {
                plane: self.incarnation,
                shard: u32::from(shard.number()),
                reports,
            });
        }
        Ok(())
    }

    fn acknowledged(&mut self, message: &ReportResponse) -> Result<()> {
        let now = Instant::now();
        let state = usize::try_from(message.shard)
            .ok()
            .and_then(|shard| self.shards.get_mut(shard))
            .context("there is no such shard")?;
        while let Some((_, at)) = state
            .under_way
            .pop_front_if(|(number, _)| *number <= message.acknowledged)
        {
            self.delivered.lags.push(now.saturating_duration_since(at));
            self.delivered.acknowledged += 1;
        }
        Ok(())
    }
}

/// Every connection of the case, in an order of this plane's own.
fn targets(case: &Case, plane: u32) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for number in 0..case.connections_each {
        for provider in 0..case.providers {
            let id = case.provider(provider);
            targets.push(Target {
                shard: Shard::of_provider(&ProviderId::new(&*id)?),
                connection: case.connection(provider, number),
                provider: id,
            });
        }
    }
    let start = usize::try_from(plane)? * 7 % targets.len().max(1);
    targets.rotate_left(start);
    Ok(targets)
}

/// Where a report's attempt went. A success follows each failure of a connection when there are both.
fn target(targets: &[Target], mix: Mix, which: u64) -> Option<&Target> {
    let turn = match mix {
        Mix::Full => which,
        Mix::Half => which / 2,
    };
    let place = turn.checked_rem(u64::try_from(targets.len()).ok()?)?;
    targets.get(usize::try_from(place).ok()?)
}

fn attempt(plane: u64, which: u64, target: &Target, rests_on: Version) -> common::Attempt {
    let version = common::Version {
        incarnation: rests_on.incarnation.0,
        revision: rests_on.revision.0,
    };
    common::Attempt {
        id: Some(common::AttemptId {
            plane,
            number: which + 1,
        }),
        provider: target.provider.clone(),
        connection: target.connection.clone(),
        model: "bench-model".to_owned(),
        decided_on: Some(version),
        epoch: Some(version),
        credential_version: 1,
        ..common::Attempt::default()
    }
}

fn report(attempt: common::Attempt, outcome: common::outcome::Kind, now_ms: u64) -> AttemptReport {
    AttemptReport {
        attempt: Some(attempt),
        outcome: Some(common::Outcome {
            kind: Some(outcome),
        }),
        occurred_at_unix_ms: now_ms,
        count: 1,
        ..AttemptReport::default()
    }
}

/// The breaker counts these failures. With successes between them it does not count every third, so that successes
/// have the upper hand and it goes on counting instead of opening for good.
fn outcome(which: u64, mix: Mix) -> common::outcome::Kind {
    let (failed, refused) = match mix {
        Mix::Full => (true, false),
        Mix::Half => (which.is_multiple_of(2), (which / 2).is_multiple_of(3)),
    };
    if !failed {
        return common::outcome::Kind::Success(common::Success {});
    }
    let (status, body) = if refused {
        (
            429,
            r#"{"error":{"message":"Rate limit reached for requests. Please slow down.","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
        )
    } else {
        (
            500,
            r#"{"error":{"message":"The server had an error while processing your request. Sorry about that!","type":"server_error","param":null,"code":null}}"#,
        )
    };
    common::outcome::Kind::Response(common::UpstreamError {
        status,
        headers: Vec::new(),
        body: body.to_owned(),
        embedded: false,
    })
}
