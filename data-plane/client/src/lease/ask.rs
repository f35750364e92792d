//! A question about leases. Every answer comes from the durable store, whichever replica gives it, and every question may
//! be repeated.

use std::time::Duration;

use tidegate_proto::lease::v1::lease_service_client::LeaseServiceClient;
use tonic::{Response, Status};

use crate::ask::{Company, Persist};
use crate::client::Inner;
use crate::endpoint::PlaneChannel;

pub(super) type Client = LeaseServiceClient<PlaneChannel>;

impl Inner {
    /// The first answer that comes within `limit`.
    pub(super) async fn ask_leases<T, F>(
        &self,
        limit: Duration,
        persist: Persist,
        call: impl Fn(Client) -> F,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<T>, Status>> + Send + 'static,
    {
        let call = |channel| call(LeaseServiceClient::new(channel));
        let answer = self.ask_any(limit, persist, Company::Joined, call).await;
        if answer.is_none() {
            self.metrics.lease_unanswered.inc();
        }
        answer
    }
}
