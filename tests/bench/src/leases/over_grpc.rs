//! The same through a control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use secrecy::SecretString;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::common::v1 as common;
use tidegate_proto::lease::v1::lease_service_client::LeaseServiceClient;
use tidegate_proto::lease::v1::{
    AcquireRequest, EndActivityRequest, FenceRequest, Registration, ReleaseRequest, RenewRequest,
    acquire_response, fence_response, release_response, renew_response,
};
use tidegate_test_support::{DATA_PLANE_TOKEN, Fleet, FleetOptions, PostgresOptions};

use super::{Bare, OWNERS, Runs, Side, connection, note, owner};
use crate::load::{Run, Sample, drive};
use crate::summary::Summary;
use crate::{ROUND_TIME, ROUNDS};

const KEY: &str = "bench";

struct Service {
    client: LeaseServiceClient<PlaneChannel>,
    bare: Bare,
    number: AtomicU64,
}

pub(super) async fn measure(summary: &mut Summary) -> Result<()> {
    let fleet = Fleet::start_with(FleetOptions {
        control_planes: 1,
        data_planes: 0,
        postgres: PostgresOptions {
            durable: true,
            ..PostgresOptions::default()
        },
        ..FleetOptions::default()
    })
    .await?;
    fleet.write_secret("bench.key", "sk-bench")?;
    fleet.apply(&document()).await?;
    let replica = fleet.control_planes.first().context("no control plane")?;
    let address = Address::Tcp(format!("http://{}", replica.grpc).parse()?);
    let token = SecretString::from(DATA_PLANE_TOKEN);
    let channel = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
    let service = Arc::new(Service {
        client: LeaseServiceClient::new(channel),
        bare: Bare::open(&fleet.postgres.url(&fleet.database)).await?,
        number: AtomicU64::new(1),
    });
    let mut runs = Runs::default();
    for _ in 0..ROUNDS {
        for (side, runs) in Side::ALL.into_iter().zip(&mut runs) {
            let run: Run = side_of(&service, side).await?;
            runs.push(run);
        }
    }
    note("grpc", &runs, summary);
    Ok(())
}

async fn side_of(service: &Arc<Service>, side: Side) -> Result<Run> {
    let service = Arc::clone(service);
    drive(OWNERS, ROUND_TIME, move |worker| {
        let service = Arc::clone(&service);
        async move {
            Ok(Sample {
                first_chunk: Some(service.time(side, worker).await?),
            })
        }
    })
    .await
}

/// Each owner has a key that may lease one connection and no other.
fn document() -> String {
    let mut yaml = "providers:\n  - {id: p, protocol: openai, baseUrl: \"http://127.0.0.1:1\", class: apikey, models: [m]}\nconnections:\n".to_owned();
    for worker in 0..OWNERS {
        yaml.push_str(&format!(
            "  - {{id: c{worker}, provider: p, credential: {{file: bench.key}}}}\n"
        ));
    }
    yaml.push_str("keys:\n");
    for worker in 0..OWNERS {
        yaml.push_str(&format!(
            "  - {{id: {KEY}{worker}, sha256: \"{worker:064x}\", scopes: [\"lease:exclusive\"], allowedConnections: [c{worker}]}}\n"
        ));
    }
    yaml
}

impl Service {
    async fn time(&self, side: Side, worker: usize) -> Result<Duration> {
        match side {
            Side::Read | Side::Commit => self.bare.time(side, worker).await,
            Side::Acquire => {
                let (lease, _) = self.acquire(worker).await?;
                let request = ReleaseRequest {
                    lease: Some(lease),
                    key_id: key(worker),
                    reason: String::new(),
                };
                let released = self.client.clone().release(request).await?.into_inner();
                let released = released.answer;
                ensure!(
                    matches!(released, Some(release_response::Answer::Lease(_))),
                    "{released:?}"
                );
                Ok(self.acquire(worker).await?.1)
            }
            Side::Renew => {
                let (lease, _) = self.acquire(worker).await?;
                let request = RenewRequest {
                    lease: Some(lease),
                    key_id: key(worker),
                    ttl_ms: 600_000,
                };
                let began = Instant::now();
                let renewed = self.client.clone().renew(request).await?.into_inner();
                let took = began.elapsed();
                let renewed = renewed.answer;
                ensure!(
                    matches!(renewed, Some(renew_response::Answer::Lease(_))),
                    "{renewed:?}"
                );
                Ok(took)
            }
            Side::FirstFence | Side::Fence => {
                let registration = Registration {
                    lease: Some(self.acquire(worker).await?.0),
                    connection: connection(worker)?.to_string(),
                    plane: 1,
                    number: self.number.fetch_add(1, Ordering::Relaxed),
                };
                let mut took = self.fence(&registration, worker).await?;
                if side == Side::Fence {
                    took = self.fence(&registration, worker).await?;
                }
                let request = EndActivityRequest {
                    registration: Some(registration),
                };
                self.client.clone().end_activity(request).await?;
                Ok(took)
            }
        }
    }

    async fn acquire(&self, worker: usize) -> Result<(common::LeaseName, Duration)> {
        let owner_sha256 = owner(worker)?.as_bytes().to_vec();
        let request = AcquireRequest {
            owner_sha256: owner_sha256.clone(),
            key_id: key(worker),
            model: "p/m".to_owned(),
            ttl_ms: 600_000,
            configuration_version: 1,
        };
        let began = Instant::now();
        let answer = self.client.clone().acquire(request).await?.into_inner();
        let took = began.elapsed();
        match answer.answer.context("no answer")? {
            acquire_response::Answer::Lease(lease) => {
                let name = common::LeaseName {
                    owner_sha256,
                    generation: lease.generation,
                };
                Ok((name, took))
            }
            acquire_response::Answer::Refused(refused) => anyhow::bail!("{refused:?}"),
        }
    }

    async fn fence(&self, registration: &Registration, worker: usize) -> Result<Duration> {
        let request = FenceRequest {
            registration: Some(registration.clone()),
            key_id: key(worker),
        };
        let began = Instant::now();
        let answer = self
            .client
            .clone()
            .fence(request)
            .await?
            .into_inner()
            .answer;
        let took = began.elapsed();
        ensure!(
            matches!(answer, Some(fence_response::Answer::Grant(_))),
            "{answer:?}"
        );
        Ok(took)
    }
}

fn key(worker: usize) -> String {
    format!("{KEY}{worker}")
}
