//! Which keys may lease (`sessions-and-streams.md` §1.2). Data planes check it first; a key may have changed since.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::config::ApiKey;
use tidegate_core::ids::KeyId;
use tidegate_core::lease::LeaseError;

use crate::clock::local_now;
use crate::config::Current;

use super::{LeaseFault, Leases};

/// How long a newer configuration is waited for, which the data plane may have already.
const CATCH_UP_LIMIT: Duration = Duration::from_millis(15);

/// A configuration, and a key in it that may lease.
#[derive(Debug)]
pub(super) struct Managed {
    pub(super) current: Arc<Current>,
    pub(super) key: Arc<ApiKey>,
}

impl Leases {
    /// The key as the configuration has it that is in force from this version on. Where that does not let it lease, a
    /// newer one may: this replica may be the last to hear of it.
    pub(super) async fn managed(
        &self,
        key: &KeyId,
        version: u64,
    ) -> Result<Result<Managed, LeaseError>, LeaseFault> {
        let deadline = local_now() + CATCH_UP_LIMIT;
        let current = self.at_least(version, deadline).await?;
        match may_lease(&current, key) {
            Ok(key) => Ok(Ok(Managed { key, current })),
            Err(_) => {
                let newer = current.config.version.saturating_add(1);
                let current = self.at_least(newer, deadline).await?;
                Ok(may_lease(&current, key).map(|key| Managed { key, current }))
            }
        }
    }

    async fn at_least(&self, version: u64, deadline: Instant) -> Result<Arc<Current>, LeaseFault> {
        let current = self.config.at_least(version, deadline).await;
        current.ok_or(LeaseFault::NotReady)
    }
}

fn may_lease(current: &Current, key: &KeyId) -> Result<Arc<ApiKey>, LeaseError> {
    let key = current.keys.get(key).ok_or(LeaseError::ApiKeyInvalid)?;
    key.leasing().check()?;
    Ok(Arc::clone(key))
}
