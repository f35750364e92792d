//! Leases of a control plane that does what a test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::lease::{
    Action, Generation, LeaseError, LeaseName, LeaseState, LeaseSummary, Lifecycle,
};
use tidegate_core::routing::Rejection;
use tidegate_core::time::Timestamp;
use tidegate_plane_client::{LeaseAnswer, LeasePlace, Leased};
use tokio_util::sync::CancellationToken;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct FakeLeases {
    /// Everything is refused with this.
    pub(crate) refuses: Mutex<Option<LeaseError>>,
    /// The next fence alone is refused with this.
    pub(crate) refuses_once: Mutex<Option<LeaseError>>,
    /// Fences take for ever.
    pub(crate) hangs: AtomicBool,
    pub(crate) asked: Mutex<Vec<(Lifecycle, KeyId)>>,
    pub(crate) fenced: Mutex<Vec<(LeaseName, KeyId, ConnectionId)>>,
    /// What ends each attempt that passed.
    cuts: Mutex<Vec<CancellationToken>>,
    /// Attempts in flight.
    running: Arc<Mutex<usize>>,
}

/// What leases look like that are well.
pub(crate) fn summary(state: LeaseState) -> LeaseSummary {
    LeaseSummary {
        state,
        generation: Generation::try_from(3).unwrap(),
        acquired_at: Timestamp(1_786_563_000_000),
        renewed_at: Timestamp(1_786_563_000_042),
        expires_at: Timestamp(1_786_563_120_042),
    }
}

impl FakeLeases {
    pub(crate) fn refuse(&self, error: LeaseError) {
        *self.refuses.lock() = Some(error);
    }

    pub(crate) fn running(&self) -> usize {
        *self.running.lock()
    }

    /// How many attempts asked to pass.
    pub(crate) fn fences(&self) -> usize {
        self.fenced.lock().len()
    }

    /// Everything in flight comes to its horizon.
    pub(crate) fn cut(&self) {
        for cut in self.cuts.lock().iter() {
            cut.cancel();
        }
    }

    pub(crate) fn lease(&self, asked: &Lifecycle, key: &KeyId) -> Result<LeaseAnswer, LeaseError> {
        self.asked.lock().push((asked.clone(), key.clone()));
        if let Some(error) = *self.refuses.lock() {
            return Err(error);
        }
        let (state, place) = match asked.action {
            Action::Acquire { .. } | Action::Renew { .. } => (LeaseState::Active, None),
            Action::Release { .. } => (LeaseState::Released, None),
            Action::Status { .. } => {
                let place = LeasePlace {
                    display_name: None,
                    provider: ProviderId::new("one").unwrap(),
                };
                (LeaseState::Active, Some(place))
            }
        };
        Ok(LeaseAnswer {
            lease: summary(state),
            place,
        })
    }

    pub(crate) async fn fence(
        &self,
        lease: LeaseName,
        key: &KeyId,
        connection: &ConnectionId,
    ) -> Result<Leased, LeaseError> {
        let asked = (lease, key.clone(), connection.clone());
        self.fenced.lock().push(asked);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if let Some(error) = self.refuses_once.lock().take() {
            return Err(error);
        }
        if let Some(error) = *self.refuses.lock() {
            return Err(error);
        }
        let cut = CancellationToken::new();
        self.cuts.lock().push(cut.clone());
        *self.running.lock() += 1;
        let running = Arc::clone(&self.running);
        Ok(Leased::new(cut, move || *running.lock() -= 1))
    }
}

/// What a control plane says where a rule of leases refuses.
pub(crate) fn refused(error: LeaseError) -> Rejection {
    Rejection {
        status: error.status(),
        code: error.code().to_owned(),
        error_type: "lease_error".to_owned(),
        message: error.to_string(),
        retry_after_secs: error.retry_after_seconds(),
        pass_through: false,
        terminal_reason: error.code().to_owned(),
        pool_size: 1,
        attempted: 0,
        excluded: Vec::new(),
        lease: Some(error),
    }
}
