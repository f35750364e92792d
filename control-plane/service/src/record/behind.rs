//! A report that reaches a replica before what its attempt rests on.
//!
//! Whoever decided an attempt may be another replica, and what that one wrote a moment ago may not be in the view here
//! yet. Applied to the older values such a report would do something else, or seem to do nothing and be acknowledged:
//! the verdict of a probe that the view does not know would be a late outcome, and the probe would be out until it
//! expires. So the view first catches up with the version the attempt was decided on and, for a probe, with the grant,
//! which is newer than that version. What others wrote meanwhile need not be known: the report may come before it.
//!
//! Catching up is a matter of milliseconds of following. When it takes longer the shard is read, once; what the reading
//! does not show does not exist any more (a probe that another one holds by now), or never did.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::{AttemptId, ProviderId, Shard};
use tidegate_core::outcome::{Attempt, AttemptOutcome};
use tidegate_core::routing::View as _;
use tidegate_core::state::ProviderState;

use super::Recorder;
use super::direct::NotDone;

/// How long the follower is waited for before the shard is read.
const FOLLOW_LIMIT: Duration = Duration::from_millis(20);

impl Recorder {
    /// Makes the view at least as new as what these attempts rest on.
    pub(super) async fn catch_up_with(
        &self,
        shard: Shard,
        outcomes: &[Arc<AttemptOutcome>],
    ) -> Result<(), NotDone> {
        self.catch_up(shard, || {
            outcomes
                .iter()
                .all(|outcome| self.is_at(shard, &outcome.attempt))
        })
        .await
    }

    /// Makes the view show a probe that the attempt holds in the store, if it does.
    pub(crate) async fn catch_up_with_probe(
        &self,
        provider: &ProviderId,
        attempt: AttemptId,
    ) -> Result<(), NotDone> {
        self.catch_up(Shard::of_provider(provider), || {
            self.shows_probe(provider, attempt)
        })
        .await
    }

    /// The view, its overlay included, shows the attempt as the holder of the provider's probe.
    pub(crate) fn shows_probe(&self, provider: &ProviderId, attempt: AttemptId) -> bool {
        let holds = |state: Arc<ProviderState>| state.breaker.probe_holder() == Some(attempt);
        let held = self.view.held_provider(provider);
        let stored = held.and_then(|held| held.effective.clone());
        stored.is_some_and(holds) || self.view.provider(provider).is_some_and(holds)
    }

    fn is_at(&self, shard: Shard, attempt: &Attempt) -> bool {
        attempt.decided_on <= self.view.complete_to(shard)
            && (!attempt.probe || self.shows_probe(&attempt.provider, attempt.id))
    }

    async fn catch_up(&self, shard: Shard, caught_up: impl Fn() -> bool) -> Result<(), NotDone> {
        if caught_up() {
            return Ok(());
        }
        let mut updates = self.view.subscribe();
        let followed = async {
            // Having missed updates is as good a reason to look as having got one.
            while !caught_up() {
                if let Err(tokio::sync::broadcast::error::RecvError::Closed) = updates.recv().await
                {
                    return;
                }
            }
        };
        if tokio::time::timeout(FOLLOW_LIMIT, followed).await.is_ok() && caught_up() {
            return Ok(());
        }
        // Under the limit of a reading, not of a write: a shorter one would hold back everything that waits for the
        // shard for as long as the reading takes longer.
        let image = self.hot.read(shard).await?;
        if image.check.incarnation != Some(self.view.complete_to(shard).incarnation) {
            self.follower.doubt(shard);
            return Err(NotDone::Restoring);
        }
        self.view.learn(shard, image.entries, None);
        Ok(())
    }
}
