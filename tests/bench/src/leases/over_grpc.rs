//! The same through a control plane.

use anyhow::{Context as _, Result, ensure};
use secrecy::SecretString;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::common::v1 as common;
use tidegate_proto::lease::v1::lease_service_client::LeaseServiceClient;
use tidegate_proto::lease::v1::{
    AcquireRequest, EndActivityRequest, FenceRequest, Registration, ReleaseRequest, RenewRequest,
    acquire_response, fence_response, release_response, renew_response,
};
use tidegate_test_support::{DATA_PLANE_TOKEN, Fleet, FleetOptions};

use super::{Bare, Level, OWNERS, TTL_MS, connection, owner, that_syncs};

const KEY: &str = "bench";

pub(super) struct Service {
    client: LeaseServiceClient<PlaneChannel>,
    bare: Bare,
    /// Stops when it is dropped.
    _fleet: Fleet,
}

pub(super) async fn open() -> Result<Service> {
    let fleet = Fleet::start_with(FleetOptions {
        control_planes: 1,
        data_planes: 0,
        postgres: that_syncs(),
        ..FleetOptions::default()
    })
    .await?;
    fleet.write_secret("bench.key", "sk-bench")?;
    fleet.apply(&document()).await?;
    let replica = fleet.control_planes.first().context("no control plane")?;
    let address = Address::Tcp(format!("http://{}", replica.grpc).parse()?);
    let token = SecretString::from(DATA_PLANE_TOKEN);
    let channel = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
    Ok(Service {
        client: LeaseServiceClient::new(channel),
        bare: Bare::open(&fleet.postgres.url(&fleet.database)).await?,
        _fleet: fleet,
    })
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

impl Level for Service {
    type Lease = common::LeaseName;

    fn bare(&self) -> &Bare {
        &self.bare
    }

    async fn acquire(&self, worker: usize) -> Result<common::LeaseName> {
        let owner_sha256 = owner(worker)?.as_bytes().to_vec();
        let request = AcquireRequest {
            owner_sha256: owner_sha256.clone(),
            key_id: key(worker),
            model: "p/m".to_owned(),
            ttl_ms: TTL_MS,
            configuration_version: 1,
        };
        let answer = self.client.clone().acquire(request).await?.into_inner();
        match answer.answer.context("no answer")? {
            acquire_response::Answer::Lease(lease) => Ok(common::LeaseName {
                owner_sha256,
                generation: lease.generation,
            }),
            acquire_response::Answer::Refused(refused) => anyhow::bail!("{refused:?}"),
        }
    }

    async fn release(&self, worker: usize, lease: &common::LeaseName) -> Result<()> {
        let request = ReleaseRequest {
            lease: Some(lease.clone()),
            key_id: key(worker),
            reason: String::new(),
        };
        let released = self.client.clone().release(request).await?.into_inner();
        let is_released = matches!(released.answer, Some(release_response::Answer::Lease(_)));
        ensure!(is_released, "{released:?}");
        Ok(())
    }

    async fn renew(&self, worker: usize, lease: &common::LeaseName) -> Result<()> {
        let request = RenewRequest {
            lease: Some(lease.clone()),
            key_id: key(worker),
            ttl_ms: TTL_MS,
        };
        let renewed = self.client.clone().renew(request).await?.into_inner();
        let is_renewed = matches!(renewed.answer, Some(renew_response::Answer::Lease(_)));
        ensure!(is_renewed, "{renewed:?}");
        Ok(())
    }

    async fn fence(&self, worker: usize, lease: &common::LeaseName, number: u64) -> Result<()> {
        let request = FenceRequest {
            registration: Some(registration(worker, lease, number)?),
            key_id: key(worker),
        };
        let fenced = self.client.clone().fence(request).await?.into_inner();
        let is_granted = matches!(fenced.answer, Some(fence_response::Answer::Grant(_)));
        ensure!(is_granted, "{fenced:?}");
        Ok(())
    }

    async fn end(&self, worker: usize, lease: &common::LeaseName, number: u64) -> Result<()> {
        let request = EndActivityRequest {
            registration: Some(registration(worker, lease, number)?),
        };
        self.client.clone().end_activity(request).await?;
        Ok(())
    }
}

fn registration(worker: usize, lease: &common::LeaseName, number: u64) -> Result<Registration> {
    Ok(Registration {
        lease: Some(lease.clone()),
        connection: connection(worker)?.to_string(),
        plane: 1,
        number,
    })
}

fn key(worker: usize) -> String {
    format!("{KEY}{worker}")
}
