//! Tells the control plane that nothing is in flight under a registration any more. It is told again for a while when
//! nobody takes it; a registration whose end is lost ends by its horizon.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tidegate_core::lease::ActivityName;
use tidegate_proto::lease::v1::EndActivityRequest;
use tidegate_wire::lease::registration_to_proto;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::ask::Persist;
use crate::client::Inner;

/// Most that are told at once.
const AT_ONCE: usize = 16;
/// How often one is told, and the pause in between.
const TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_secs(1);
/// While the process ends, whether anything is left is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Inner {
    /// Tells ends until told to stop, and then those that wait within the time for that. Runs once.
    pub(crate) async fn tell_ends(self: Arc<Self>) {
        let Some(mut receiver) = self.leases.ends.take() else {
            return;
        };
        let mut telling = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(()) = telling.next(), if !telling.is_empty() => {}
                ended = receiver.recv(), if telling.len() < AT_ONCE => match ended {
                    Some(ended) => telling.push(self.tell_end(ended)),
                    None => break,
                },
            }
        }
        // What is cut now ends in a moment.
        let rest = async {
            loop {
                while telling.len() < AT_ONCE
                    && let Ok(ended) = receiver.try_recv()
                {
                    telling.push(self.tell_end(ended));
                }
                if telling.is_empty() && self.leases.is_idle() {
                    return;
                }
                let _next = timeout(LOOK_EVERY, async {
                    if telling.next().await.is_none() {
                        std::future::pending::<()>().await;
                    }
                })
                .await;
            }
        };
        if timeout(self.limits.flush, rest).await.is_err() {
            self.leases.ends.lost();
        }
    }

    async fn tell_end(&self, ended: ActivityName) {
        let request = EndActivityRequest {
            registration: Some(registration_to_proto(&ended)),
        };
        for attempt in 0..TRIES {
            if attempt > 0 {
                pause(&self.stop).await;
            }
            let told = self.ask_leases(self.limits.lease, Persist::Once, |mut client| {
                let request = request.clone();
                async move { client.end_activity(request).await }
            });
            if told.await.is_some() {
                return;
            }
        }
        self.leases.ends.lost();
    }
}

/// Shorter while the process ends.
async fn pause(stop: &CancellationToken) {
    if stop.is_cancelled() {
        sleep(PAUSE / 4).await;
    } else {
        let _stopped = timeout(PAUSE, stop.cancelled()).await;
    }
}
