//! The fence of managed requests, immediately before each attempt is sent (decision 42). The first attempt, a retry,
//! what was waited for, what goes where it went ([`crate::again`]) and what was not processed ([`crate::sending`]) all come
//! through here: there is no other way to an upstream.

use tidegate_core::ids::ConnectionId;
use tidegate_core::lease::LeaseError;
use tidegate_core::routing::RequestFacts;
use tidegate_plane_client::Leased;

use crate::control_port::ControlPort;

/// Lets an attempt pass; `None` where there is no lease to ask about.
///
/// # Errors
/// Why it must not be sent. It is no outcome of the attempt, which is given back with all it was granted.
pub(crate) async fn pass<C: ControlPort>(
    control: &C,
    facts: &RequestFacts,
    connection: &ConnectionId,
) -> Result<Option<Leased>, LeaseError> {
    let Some(key) = facts.key.as_ref().filter(|key| key.may_lease()) else {
        return Ok(None);
    };
    // Whatever asks in the name of such a key has a lease, or is not sent.
    let lease = facts.lease.ok_or(LeaseError::Required)?;
    let leased = control.fence(lease, &key.id, connection).await?;
    Ok(Some(leased))
}

/// Whether a request is to be decided on anew after this refusal: its lease moved between decision and fence, as that of
/// another request of its session did, and it named no connection that it insists on.
pub(crate) fn has_moved(error: LeaseError, facts: &RequestFacts) -> bool {
    error == LeaseError::ConnectionMismatch && facts.forced_connection.is_none()
}

/// What comes of an attempt, unless it is cut before. Then it has been let go of.
///
/// # Errors
/// [`LeaseError::FenceStale`] when it is cut.
pub(crate) async fn until_cut<T>(
    cut: Option<impl Future<Output = ()>>,
    attempt: impl Future<Output = T>,
) -> Result<T, LeaseError> {
    let Some(cut) = cut else {
        return Ok(attempt.await);
    };
    tokio::select! {
        biased;
        () = cut => Err(LeaseError::FenceStale),
        observed = attempt => Ok(observed),
    }
}
