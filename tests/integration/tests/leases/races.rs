//! Two owners that race for one connection through two control planes, over and over.

use anyhow::{Context as _, Result, bail, ensure};
use tidegate_integration::LIMIT;
use tidegate_proto::lease::v1::{
    AcquireRequest, ReleaseRequest, acquire_response, release_response,
};
use tidegate_test_support::FleetOptions;
use tokio::time::timeout;

use super::history::LeaseName;
use super::stage::{Setup, Stage, hash, wire_name};

const ROUNDS: usize = 1_000;

/// The generation that an owner was given; `None` when somebody else has the connection.
async fn acquire(stage: &Stage, replica: usize, owner: u8) -> Result<Option<u64>> {
    let request = AcquireRequest {
        owner_sha256: hash(owner)?.as_bytes().to_vec(),
        key_id: "k1".to_owned(),
        model: "p/m".to_owned(),
        ttl_ms: 60_000,
        configuration_version: 1,
    };
    let answer = stage.leases(replica)?.acquire(request).await?.into_inner();
    match answer.answer.context("no answer")? {
        acquire_response::Answer::Lease(lease) => Ok(Some(lease.generation)),
        acquire_response::Answer::Refused(refused) => {
            ensure!(refused.code == "lease-capacity-unavailable", "{refused:?}");
            Ok(None)
        }
    }
}

async fn release(stage: &Stage, replica: usize, lease: LeaseName) -> Result<()> {
    let request = ReleaseRequest {
        lease: Some(wire_name(lease)?),
        key_id: "k1".to_owned(),
        reason: String::new(),
    };
    let answer = stage.leases(replica)?.release(request).await?.into_inner();
    match answer.answer.context("no answer")? {
        release_response::Answer::Lease(_) => Ok(()),
        release_response::Answer::Refused(refused) => bail!("{refused:?}"),
    }
}

#[tokio::test]
async fn vector_sessions_23_of_two_owners_of_two_processes_one_wins_each_round() -> Result<()> {
    let stage = Stage::start(&Setup::default(), FleetOptions::default()).await?;
    let mut won = [0_u64; 2];
    for round in 0..ROUNDS {
        // Whose question is sent first changes, and so does which process hears it.
        let first = round % 2;
        let second = 1 - first;
        let [at, elsewhere] = [round / 2 % 2, 1 - round / 2 % 2];
        let race = async {
            tokio::try_join!(
                acquire(&stage, at, u8::try_from(first)?),
                acquire(&stage, elsewhere, u8::try_from(second)?)
            )
        };
        let given = timeout(LIMIT, race).await.context("no end of a race")??;
        let (owner, generation) = match given {
            (Some(generation), None) => (first, generation),
            (None, Some(generation)) => (second, generation),
            both => bail!("round {round}: {both:?}"),
        };
        won[owner] += 1;
        ensure!(
            generation == won[owner],
            "round {round}: each its own count"
        );
        let lease = LeaseName {
            owner: u8::try_from(owner)?,
            generation,
        };
        let given_back = release(&stage, elsewhere, lease);
        timeout(LIMIT, given_back).await.context("no release")??;
    }
    ensure!(won.iter().all(|won| *won > 0), "no race: {won:?}");
    Ok(())
}
