//! What is in flight under leases, as the authority keeps it (decision 42).
//!
//! A provider cannot check whether a request may still come, so the data plane stops at a horizon that it was given, and
//! the authority remembers that horizon: until then, and a guard longer, the connection is nobody else's. A fence that
//! finds enough of the horizon left only reads; otherwise it registers anew. When the lease is over, what is in flight
//! may be renewed until the drain has passed.
//!
//! The store reads without a lock. What a rule wants to write is written while lease and registration stand as they were
//! seen; otherwise it reads again.

use crate::ids::{ConnectionId, KeyId, PlaneIncarnation};
use crate::settings::LeaseSettings;
use crate::time::Timestamp;

use super::{Lease, LeaseError, LeaseName};

/// A data plane may have attempts in flight on a connection. One row for each connection, lease and data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Where.
    pub connection: ConnectionId,
    /// Under which lease.
    pub lease: LeaseName,
    /// Who.
    pub plane: PlaneIncarnation,
    /// Which registration of this data plane, from 1. It does not fall before `until`.
    pub number: u64,
    /// Until then nobody else is given the connection: the data plane's horizon and a guard. Only ever later.
    pub until: Timestamp,
}

/// What a registration of a data plane is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityName {
    /// Where.
    pub connection: ConnectionId,
    /// Under which lease.
    pub lease: LeaseName,
    /// Who.
    pub plane: PlaneIncarnation,
    /// Which registration of this data plane, from 1.
    pub number: u64,
}

/// A data plane is about to send.
#[derive(Clone, Copy, Debug)]
pub struct Fence<'a> {
    /// Which lease the request names.
    pub lease: LeaseName,
    /// The key it came with.
    pub key: &'a KeyId,
    /// Where it is about to go.
    pub connection: &'a ConnectionId,
    /// Who asks.
    pub plane: PlaneIncarnation,
    /// Its registration.
    pub number: u64,
}

/// What a data plane may do, in ms from when it asked, so that different clocks and slow answers only shorten it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease lasts; 0 when it is over.
    pub lease_ms: u64,
    /// What is in flight may go on.
    pub horizon_ms: u64,
    /// Nothing starts in this last part of lease and horizon.
    pub guard_ms: u64,
}

/// A grant, and the registration to write for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// What the data plane may do, once that is written.
    pub grant: Grant,
    /// To write, in place of the one there is; `None` when what is stored covers the grant.
    pub write: Option<Activity>,
}

/// Why a fence lets nothing pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// The lease does not allow it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The data plane has registered anew meanwhile: it does not listen to this answer.
    #[error("the data plane has a newer registration")]
    Superseded,
}

/// Whether a data plane may send, and until when. `own` is the owner's row that has not ended, `stored` the registration
/// of this data plane under this lease on this connection.
///
/// # Errors
/// [`FenceError`].
pub fn fence(
    own: Option<&Lease>,
    stored: Option<&Activity>,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
    now: Timestamp,
) -> Result<Granted, FenceError> {
    let lease = own
        .filter(|own| own.is_live(now))
        .ok_or(LeaseError::Required)?;
    lease.check(asked.lease, asked.key)?;
    if lease.connection != *asked.connection {
        return Err(LeaseError::ConnectionMismatch.into());
    }
    // One that is past its end keeps nobody away, and protects nothing any more.
    if stored.is_some_and(|stored| stored.number > asked.number && stored.until > now) {
        return Err(FenceError::Superseded);
    }
    let enough_ms = settings.horizon_ms.saturating_mul(2) / 3;
    let covering = stored.filter(|stored| {
        stored.number == asked.number && stored.horizon(settings).remaining_ms(now) >= enough_ms
    });
    let limits = Limits::of(lease, settings, now);
    let activity = Activity {
        connection: asked.connection.clone(),
        lease: asked.lease,
        plane: asked.plane,
        number: asked.number,
        until: limits.until(stored, settings),
    };
    let write = covering.is_none() && stored != Some(&activity);
    Ok(Granted {
        grant: limits.grant(covering.unwrap_or(&activity), settings, now),
        write: write.then_some(activity),
    })
}

/// Lets go on what is in flight under a registration; `None` when it is not there any more, or its horizon has passed:
/// the connection may be somebody else's. `lease` is the newest row of its lease on its connection, over or not.
#[must_use]
pub fn renew_activity(
    stored: Option<&Activity>,
    lease: &Lease,
    number: u64,
    settings: &LeaseSettings,
    now: Timestamp,
) -> Option<Granted> {
    let stored =
        stored.filter(|stored| stored.number == number && stored.horizon(settings) > now)?;
    let limits = Limits::of(lease, settings, now);
    let activity = Activity {
        until: limits.until(Some(stored), settings),
        ..stored.clone()
    };
    Some(Granted {
        grant: limits.grant(&activity, settings, now),
        write: (activity != *stored).then_some(activity),
    })
}

impl Activity {
    /// Whether a data plane means this registration when it says that nothing is in flight under `number` any more.
    /// Later ones stay; earlier ones, whose end got lost, go with it.
    #[must_use]
    pub fn ends_with(&self, number: u64) -> bool {
        self.number <= number
    }

    fn horizon(&self, settings: &LeaseSettings) -> Timestamp {
        self.until.minus_ms(settings.guard_ms)
    }
}

/// How far a lease reaches at this moment.
struct Limits {
    /// Its end, past or to come.
    end: Timestamp,
    /// What is in flight ends then at the latest.
    drained: Timestamp,
    /// The horizon that may be given now.
    horizon: Timestamp,
}

impl Limits {
    fn of(lease: &Lease, settings: &LeaseSettings, now: Timestamp) -> Self {
        let end = lease.over_since(now).unwrap_or(lease.expires_at);
        let drained = end.plus_ms(settings.drain_ms);
        Self {
            end,
            drained,
            horizon: drained.min(now.plus_ms(settings.horizon_ms)),
        }
    }

    /// What was promised stays promised.
    fn until(&self, stored: Option<&Activity>, settings: &LeaseSettings) -> Timestamp {
        let until = self.horizon.plus_ms(settings.guard_ms);
        stored.map_or(until, |stored| stored.until.max(until))
    }

    fn grant(&self, activity: &Activity, settings: &LeaseSettings, now: Timestamp) -> Grant {
        let horizon = activity.horizon(settings).min(self.drained);
        Grant {
            lease_ms: self.end.remaining_ms(now),
            horizon_ms: horizon.remaining_ms(now),
            guard_ms: settings.guard_ms,
        }
    }
}
