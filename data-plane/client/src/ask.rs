//! A question that any replica can answer, put to one after the other within one limit.
//!
//! It may be repeated, and it does not matter who answers. So a replica that fails is followed by the next at once, and
//! one that takes long is joined by another, unless what is asked for must not be under way twice. None of it says anything
//! about how replicas decide, so none is suspected for it.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Response, Status};

use crate::client::Inner;
use crate::endpoint::PlaneChannel;
use crate::replicas::Asked;

/// After this part of the limit another replica is asked beside those that have not answered.
const PATIENCE_PARTS: u32 = 4;
/// Pause after every replica has failed, before they are asked again.
const PAUSE: Duration = Duration::from_millis(200);

type Call<T> = BoxFuture<'static, (String, Result<Response<T>, Status>)>;

/// Whether a replica that takes long is joined by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// It is.
    Joined,
    /// It is waited for, since it may still do what it was asked for.
    Alone,
}

/// Whether replicas that all failed are asked again while there is time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persist {
    /// They are.
    Again,
    /// Once must do.
    Once,
}

impl Inner {
    /// The first answer that comes within `limit`.
    pub(crate) async fn ask_any<T, F>(
        &self,
        limit: Duration,
        persist: Persist,
        company: Company,
        call: impl Fn(PlaneChannel) -> F,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<T>, Status>> + Send + 'static,
    {
        let deadline = Instant::now() + limit;
        let patience = match company {
            Company::Joined => limit / PATIENCE_PARTS,
            Company::Alone => limit,
        };
        loop {
            let answer = self.ask_each_once(patience, deadline, &call).await;
            let again = Instant::now() + PAUSE;
            if answer.is_some() || persist == Persist::Once || again >= deadline {
                return answer;
            }
            sleep_until(again).await;
        }
    }

    async fn ask_each_once<T, F>(
        &self,
        patience: Duration,
        deadline: Instant,
        call: impl Fn(PlaneChannel) -> F,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<T>, Status>> + Send + 'static,
    {
        let mut asked = Asked::default();
        let mut calls: FuturesUnordered<Call<T>> = FuturesUnordered::new();
        loop {
            if let Some(replica) = self.replicas.choose(Instant::now(), asked) {
                asked.add(replica.index);
                let name = replica.name.clone();
                let answer = call(replica.channel());
                calls.push(Box::pin(async move { (name, answer.await) }));
            }
            let is_last = self.replicas.choose(Instant::now(), asked).is_none();
            let until = if is_last {
                deadline
            } else {
                deadline.min(Instant::now() + patience)
            };
            match timeout_at(until, calls.next()).await {
                Ok(Some((_, Ok(answer)))) => return Some(answer.into_inner()),
                Ok(Some((replica, Err(status)))) => {
                    tracing::debug!(replica, error = %status, "a replica gave no answer");
                }
                Ok(None) => return None,
                Err(_elapsed) if Instant::now() >= deadline => return None,
                Err(_elapsed) => {}
            }
        }
    }
}
