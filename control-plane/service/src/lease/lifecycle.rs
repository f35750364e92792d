//! Acquire, renew, release, status (`sessions-and-streams.md` §1.7).

use std::sync::Arc;

use tidegate_core::config::Protocol;
use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::lease::{
    Acquire, EndReason, Generation, Lease, LeaseName, LeaseSummary, Named, OwnerHash,
};
use tidegate_core::routing::{AttemptsSoFar, OrdinarySelection, RequestFacts, Speaks};
use tidegate_core::time::Timestamp;

use crate::telemetry::lease_call_metrics::LeaseAction;

use super::keys::Managed;
use super::selection::Asked;
use super::{Answered, LeaseFault, Leases, limited, new_id};

/// An acquire.
#[derive(Clone, Debug)]
pub(crate) struct AcquireAsked {
    pub(crate) owner: OwnerHash,
    pub(crate) key: KeyId,
    pub(crate) model: String,
    /// In ms; brought within the bounds by the store.
    pub(crate) ttl_ms: u64,
    /// Version of the configuration that whoever asks has.
    pub(crate) configuration_version: u64,
}

/// A lease, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) lease: LeaseSummary,
    pub(crate) provider: ProviderId,
}

impl Leases {
    /// Gives the owner a connection, or confirms the one it has.
    pub(crate) async fn acquire(&self, asked: AcquireAsked) -> Answered<LeaseSummary> {
        self.counted(LeaseAction::Acquire, self.acquire_now(asked))
            .await
    }

    async fn acquire_now(&self, asked: AcquireAsked) -> Answered<LeaseSummary> {
        let managed = match self
            .managed(&asked.key, asked.configuration_version)
            .await?
        {
            Ok(managed) => managed,
            Err(refused) => return Ok(Err(refused)),
        };
        let selection = self.select(&managed, asked.owner, asked.model)?;
        let Managed { current, key } = managed;
        let config = &current.config;
        let why = |connection: &ConnectionId| selection.why(config, &key, connection);
        let id = new_id();
        let acquire = Acquire {
            id,
            owner: asked.owner,
            key: &key.id,
            eligibility: selection.eligibility(),
            why: &why,
            ttl_ms: asked.ttl_ms,
        };
        let reply = limited(
            self.durable
                .acquire_lease(&acquire, &config.settings.leases),
        )
        .await?;
        let lease = match reply.answer {
            Ok(lease) => lease,
            Err(refused) => return Ok(Err(refused)),
        };
        self.remember(&lease, reply.now);
        self.show(&lease, reply.now).await;
        if lease.id == id {
            told(&lease, "a lease was given");
        }
        Ok(Ok(lease.summary()))
    }

    /// What ordinary selection says of a model; in which protocol it will be asked for is not known yet.
    fn select(
        &self,
        managed: &Managed,
        owner: OwnerHash,
        model: String,
    ) -> Result<OrdinarySelection, LeaseFault> {
        if !self.view.is_filled() {
            return Err(LeaseFault::NotReady);
        }
        let facts = RequestFacts {
            key: Some(Arc::clone(&managed.key)),
            // Who has which lease says the durable store, so what is leased is not left out here.
            lease: Generation::after(None).map(|generation| LeaseName { owner, generation }),
            ..RequestFacts::new(model, Protocol::Openai)
        };
        let asked = Asked {
            current: &managed.current,
            fleet: &self.fleet.fleet(),
            view: &*self.view,
            facts: &facts,
            so_far: &AttemptsSoFar::default(),
            egress: None,
            now: self.clock.now(),
        };
        Ok(asked.select(Speaks::Anything))
    }

    /// Extends a lease.
    pub(crate) async fn renew(
        &self,
        name: LeaseName,
        key: &KeyId,
        ttl_ms: u64,
    ) -> Answered<LeaseSummary> {
        let renewed = async {
            if let Err(refused) = self.managed(key, 0).await? {
                return Ok(Err(refused));
            }
            let named = named(name, key);
            let reply = limited(self.durable.renew_lease(name.owner, named, ttl_ms)).await?;
            let lease = match reply.answer {
                Ok(lease) => lease,
                Err(refused) => return Ok(Err(refused)),
            };
            self.remember(&lease, reply.now);
            self.show(&lease, reply.now).await;
            Ok(Ok(lease.summary()))
        };
        self.counted(LeaseAction::Renew, renewed).await
    }

    /// Ends a lease.
    pub(crate) async fn release(
        &self,
        name: LeaseName,
        key: &KeyId,
        reason: EndReason,
    ) -> Answered<LeaseSummary> {
        let released = async {
            if let Err(refused) = self.managed(key, 0).await? {
                return Ok(Err(refused));
            }
            let named = named(name, key);
            let reply = limited(self.durable.release_lease(name.owner, named, reason)).await?;
            let lease = match reply.answer {
                Ok(lease) => lease,
                Err(refused) => return Ok(Err(refused)),
            };
            self.placed.forget(name);
            self.show(&lease, reply.now).await;
            told(&lease, "a lease was given back");
            Ok(Ok(lease.summary()))
        };
        self.counted(LeaseAction::Release, released).await
    }

    /// All leases that have not ended, and the store's time.
    pub(crate) async fn list(&self) -> Result<(Timestamp, Vec<Lease>), LeaseFault> {
        limited(self.durable.list_leases()).await
    }

    /// Takes the lease of a connection from its owner, unless it is of another generation than the one named. `None`:
    /// there is none. One that moves at this very moment is ended where it is then.
    pub(crate) async fn end_by_hand(
        &self,
        connection: &ConnectionId,
        generation: Option<u64>,
    ) -> Result<Option<(Timestamp, Lease)>, LeaseFault> {
        let (now, leases) = self.list().await?;
        let found = leases.into_iter().find(|lease| {
            let is_meant = generation.is_none_or(|number| lease.generation.number() == number);
            lease.connection == *connection && is_meant && lease.is_live(now)
        });
        let Some(found) = found else {
            return Ok(None);
        };
        let name = found.name();
        let named = named(name, &found.key);
        let reason = EndReason::AuthorizationChanged;
        let reply = limited(self.durable.release_lease(name.owner, named, reason)).await?;
        let Ok(ended) = reply.answer else {
            // Its owner was faster.
            return Ok(None);
        };
        self.placed.forget(name);
        self.show(&ended, reply.now).await;
        told(&ended, "a lease was ended by hand");
        Ok(Some((reply.now, ended)))
    }

    /// How a lease stands.
    pub(crate) async fn status(&self, name: LeaseName, key: &KeyId) -> Answered<Standing> {
        let standing = async {
            if let Err(refused) = self.managed(key, 0).await? {
                return Ok(Err(refused));
            }
            let reply = limited(self.durable.lease_status(name.owner, named(name, key))).await?;
            Ok(reply.answer.map(|lease| Standing {
                lease: lease.summary(),
                provider: lease.provider,
            }))
        };
        self.counted(LeaseAction::Status, standing).await
    }
}

fn named(name: LeaseName, key: &KeyId) -> Named<'_> {
    Named {
        generation: name.generation,
        key,
    }
}

/// A line about a lease, without whose it is.
pub(super) fn told(lease: &Lease, what: &str) {
    tracing::info!(
        lease = %lease.id,
        key = %lease.key,
        connection = %lease.connection,
        generation = lease.generation.number(),
        "{what}"
    );
}
