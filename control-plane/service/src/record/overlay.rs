//! What this replica could not write, laid over its own view.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::ids::{ConnectionId, ProviderId, Shard};
use tidegate_core::outcome::AttemptOutcome;
use tidegate_core::routing::View as _;
use tidegate_core::state::apply::{Applied, Subject, apply};
use tidegate_core::state::{ConnectionState, Event, ProviderState};
use tidegate_store::hot::MarkMove;

use super::Recorder;

impl Recorder {
    /// Applies the reports of these runs to the overlay, each once.
    pub(super) fn overlay_batch(&self, shard: Shard, runs: &[MarkMove]) {
        for outcome in self.queue(shard).take_for_overlay(runs) {
            let AttemptOutcome { attempt, .. } = &*outcome;
            let event = Event::Outcome(Box::new(AttemptOutcome::clone(&outcome)));
            self.overlay_event(&attempt.provider, Some(&attempt.connection), &event);
        }
    }

    /// Applies one event to the overlay. Marks of this write count as the version the view stands at: attempts
    /// decided from now on have seen them.
    pub(super) fn overlay_event(
        &self,
        provider: &ProviderId,
        connection: Option<&ConnectionId>,
        event: &Event,
    ) -> Applied {
        let Some(config) = self.config.config() else {
            return Applied::default();
        };
        let Some(entry) = config.provider(provider) else {
            return Applied::default();
        };
        let shard = Shard::of_provider(provider);
        let queue = self.queue(shard);
        let _turn = queue.overlay.lock();
        let version = self.view.complete_to(shard);
        let connection = connection
            .and_then(|connection| config.connection(connection))
            .filter(|connection| connection.provider == *provider);
        let mut provider_state = self
            .view
            .provider(provider)
            .map_or_else(ProviderState::default, Arc::unwrap_or_clone);
        let mut connection_state = connection.map(|connection| {
            self.view
                .connection(provider, &connection.id)
                .map_or_else(ConnectionState::default, Arc::unwrap_or_clone)
        });
        let subject = Subject {
            provider: &mut provider_state,
            connection: connection
                .zip(connection_state.as_mut())
                .map(|(config, state)| (&**config, state)),
        };
        let applied = apply(subject, event, self.clock.now(), &entry.policy, provider);
        if applied.changed {
            provider_state.resolve_marks(version);
            self.view.overlay_provider(provider, provider_state);
            if let Some((connection, mut state)) = connection.zip(connection_state) {
                state.resolve_marks(version);
                self.view
                    .overlay_connection(provider, &connection.id, state);
            }
            queue.overlaid.store(true, Ordering::Release);
        }
        applied
    }

    /// Takes the overlay away when nothing that waits is in it and the view is what the store has.
    pub(super) fn settle_overlay(&self, shard: Shard) {
        let queue = self.queue(shard);
        let _turn = queue.overlay.lock();
        if queue.overlaid.load(Ordering::Acquire)
            && self.view_can_be_trusted()
            && queue.nothing_overlaid()
        {
            queue.overlaid.store(false, Ordering::Release);
            self.view.clear_overlays(shard);
        }
    }
}
