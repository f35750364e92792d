//! Decisions while fifty watch events, against the same without: something is changed four times a second on both sides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use secrecy::SecretString;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;
use tidegate_proto::admin::v1::watch_events_response::What;
use tidegate_proto::admin::v1::{PatchSettingsRequest, WatchEventsRequest};
use tidegate_test_support::ADMIN_TOKEN;
use tokio::task::JoinSet;

use crate::ROUNDS;
use crate::decide::side;
use crate::load::{Run, median};
use crate::setting::Setting;
use crate::summary::Summary;

/// Watchers of one side.
const WATCHERS: usize = 50;
/// Decisions in flight.
const IN_FLIGHT: usize = 16;
/// How often something is changed.
const CHANGE_EVERY: Duration = Duration::from_millis(250);

/// Measures both sides and notes the figures.
pub(crate) async fn measure(setting: &Setting, summary: &mut Summary) -> Result<()> {
    let replica = setting.fleet.control_planes.first();
    let replica = replica.context("no control plane")?.grpc;
    let mut changing = JoinSet::new();
    changing.spawn(change_forever(client(replica)?));
    let (mut alone, mut watched) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(side(replica, IN_FLIGHT).await?);
        let mut watchers = JoinSet::new();
        let mut seen = Vec::with_capacity(WATCHERS);
        for _ in 0..WATCHERS {
            let mut client = client(replica)?;
            let request = WatchEventsRequest::default();
            let mut events = client.watch_events(request).await?.into_inner();
            let counted = Arc::new(AtomicU64::new(0));
            seen.push(Arc::clone(&counted));
            watchers.spawn(async move {
                while let Ok(Some(message)) = events.message().await {
                    if matches!(message.what, Some(What::Event(_))) {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        watched.push(side(replica, IN_FLIGHT).await?);
        ensure!(
            watchers.len() == WATCHERS && watchers.try_join_next().is_none(),
            "a watcher ended"
        );
        let sees_all = seen.iter().all(|it| it.load(Ordering::Relaxed) > 0);
        ensure!(sees_all, "a watcher saw nothing: {seen:?}");
        watchers.shutdown().await;
    }
    ensure!(changing.try_join_next().is_none(), "nothing was changed");
    changing.shutdown().await;
    let throughput = |runs: &[Run]| median(runs.iter().map(Run::throughput));
    let p99 = |runs: &[Run]| median(runs.iter().map(|run| run.latency_ms(0.99)));
    let mut set = |name: &str, figure| summary.set(format!("watchers.{name}"), figure);
    set(
        "throughput_ratio",
        throughput(&watched) / throughput(&alone),
    );
    set("p99_ratio", p99(&watched) / p99(&alone));
    Ok(())
}

pub(crate) fn client(replica: SocketAddr) -> Result<AdminServiceClient<PlaneChannel>> {
    let address = Address::Tcp(format!("http://{replica}").parse()?);
    let token = SecretString::from(ADMIN_TOKEN);
    let made = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
    Ok(AdminServiceClient::new(made))
}

/// Ends only when a change is refused.
async fn change_forever(mut client: AdminServiceClient<PlaneChannel>) -> Result<()> {
    let mut is_odd = false;
    loop {
        is_odd = !is_odd;
        let value = 300_000 + u32::from(is_odd);
        let patch_json = format!(r#"{{"streams": {{"idleTimeoutMs": {value}}}}}"#);
        client
            .patch_settings(PatchSettingsRequest {
                patch_json,
                ..PatchSettingsRequest::default()
            })
            .await?;
        tokio::time::sleep(CHANGE_EVERY).await;
    }
}
