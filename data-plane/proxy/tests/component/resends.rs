//! Requests that were not processed: what must allow that they are sent again.

use std::sync::{Arc, OnceLock};

use serde_json::json;
use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{LocalFault, Outcome, TransportFault};
use tidegate_proxy::Limits;

use crate::bench::{Bench, Options, chat};
use crate::fake_control::FakeControl;
use crate::http2_upstream::{RESENDS, until_released};
use crate::scripted::{CHAT, leased_post};
use crate::tls_upstream::{Act, TlsUpstream};

/// A bench under a lease, whose upstream does what `act` says; it is told the control plane once there is one.
async fn leased_bench(
    act: impl Fn(usize, &FakeControl) -> Act + Send + Sync + 'static,
) -> (TlsUpstream, Bench) {
    let control: Arc<OnceLock<Arc<FakeControl>>> = Arc::default();
    let known = Arc::clone(&control);
    let upstream = TlsUpstream::start(100, move |request| act(request, known.get().unwrap())).await;
    let bench = Bench::start_with(Options {
        one_at: Some(upstream.base_url()),
        leases: true,
        limits: Limits {
            upstream_authorities: upstream.authorities.clone(),
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    assert!(control.set(Arc::clone(&bench.control)).is_ok());
    (upstream, bench)
}

#[tokio::test]
async fn what_is_sent_again_passes_the_fence() {
    let (upstream, bench) = leased_bench(|request, control| {
        assert_eq!(control.leases.fences(), request + 1);
        if request == 1 {
            Act::Refuse
        } else {
            Act::Answer
        }
    })
    .await;
    for _ in 0..2 {
        assert_eq!(leased_post(&bench).await.status, 200);
    }
    assert_eq!((upstream.requests(), bench.control.leases.fences()), (3, 3));
    assert_eq!(bench.control.leases.running(), 0);
}

/// Its connection may be somebody else's by then.
#[tokio::test]
async fn nothing_is_sent_again_under_a_lease_that_is_over() {
    let (upstream, bench) = leased_bench(|_, control| {
        control.leases.refuse(LeaseError::FenceStale);
        Act::Refuse
    })
    .await;
    let reply = leased_post(&bench).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (409, "LEASE_FENCE_STALE")
    );
    assert_eq!(upstream.requests(), 1);
    until_released(&bench, 1).await;
    let conflict = Outcome::Local(LocalFault::LeaseConflict);
    assert_eq!(bench.control.outcomes(), [conflict]);
    assert_eq!(bench.control.leases.running(), 0);
}

/// Which the first one sent again uses up.
#[tokio::test]
async fn what_is_sent_again_draws_on_the_retry_budget() {
    let upstream = TlsUpstream::start(100, |_| Act::Refuse).await;
    let bench = Bench::start_with(Options {
        one_at: Some(upstream.base_url()),
        settings: json!({"retryBudget": {"ratio": 0.5, "minConcurrent": 1}}),
        limits: Limits {
            upstream_authorities: upstream.authorities.clone(),
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (502, "upstream_reset")
    );
    assert_eq!(upstream.requests(), 2);
    assert!((bench.metric(RESENDS).await - 1.0).abs() < 0.5);
    let reset = Outcome::Transport(TransportFault::Reset);
    assert_eq!(bench.control.outcomes(), [reset]);
}
