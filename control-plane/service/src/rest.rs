//! The contract's management endpoints (`sessions-and-streams.md` §5.4), implemented once (decision 61).
//!
//! A request comes in two ways: over a listener of this replica ([`crate::plane::ControlPlane::serve_api`]), or forwarded by
//! a data plane over gRPC. Both end in `Rest::answer`, which knows nothing of either, and reads no body before it knows that
//! its sender may do what it asks for. What is done is what the gRPC admin
//! API does, by the same use cases; here are only paths, rights and shapes.
//!
//! **Stance:** fail-closed. Nobody is let in who does not show who they are, also where gRPC on a loopback address asks for
//! nothing: clients of data planes come from anywhere, and pages in a browser reach loopback addresses over HTTP. Only how
//! everything is, in one word, is for everybody.

mod health;
mod over_http;
mod refusals;
mod shapes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use tidegate_core::management::{
    ClearLockouts, Operation, Resource, Right, read_clear, read_patch, read_reset, waited_for_ms,
};
use tidegate_core::settings::{LEGACY, legacy, sections};
use tidegate_core::time::Timestamp;
use tokio_util::task::TaskTracker;

use crate::access::{Access, Caller, Denied, Need};
use crate::admin::{Admin, Outcome, Refused, Scope, Selection, to_its_end};
use crate::clock::{Deadline, local_now};
use crate::config::Current;
use crate::config::apply::ApplyError;
use crate::config::change::Terms;
use crate::grpc::error::Refusal;
use crate::telemetry::rest_metrics::Ending;

use health::HealthCache;
use refusals::{failed, refused_caller, refused_change, refused_reset};
use shapes::{error_body, invalid_body, lockouts};

pub(crate) use over_http::respond;
pub use over_http::{ApiTls, ApiTlsError};

/// How long a change may take to be saved, from when its body is here. Data planes wait as long for it.
const CHANGE_LIMIT: Duration = Duration::from_secs(10);

/// A path that a replica serves over HTTP, for whoever checks that none is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The path.
    pub path: &'static str,
    /// The methods for an `Allow` header; every other one is 405.
    pub allow: &'static str,
    /// What somebody gets who shows nothing.
    pub without_credentials: Stranger,
}

/// What somebody gets who shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// An answer to every method: it tells nobody anything of value.
    Answered,
    /// One word to GET, and nothing else.
    Status,
    /// Nothing.
    Refused,
}

/// Every path of the listener for the contract.
pub fn api_paths() -> impl Iterator<Item = Served> {
    tidegate_core::management::RESOURCES.iter().map(|resource| {
        let mut operations = resource.methods.iter().map(|(_, operation)| *operation);
        let is_for_everybody = operations.any(|it| it.right() == Right::Anyone);
        Served {
            path: resource.path,
            allow: resource.allow,
            without_credentials: if is_for_everybody {
                Stranger::Status
            } else {
                Stranger::Refused
            },
        }
    })
}

/// Every path of the listener for probes and metrics.
pub fn telemetry_paths() -> impl Iterator<Item = Served> {
    let paths = crate::telemetry::http::PATHS.into_iter();
    paths.map(|path| Served {
        path,
        allow: crate::telemetry::http::ALLOWED,
        without_credentials: Stranger::Answered,
    })
}

/// A request, however it came.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    /// Without a query.
    pub(crate) path: &'a str,
    /// The `Authorization` header.
    pub(crate) authorization: Option<&'a str>,
    /// For how long somebody waits for the answer, in ms, where that is known.
    pub(crate) remaining_ms: Option<u64>,
    /// When that is over in the store's time, where that is known.
    pub(crate) not_after: Option<Timestamp>,
}

/// What is answered: JSON, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// For an `Allow` header.
    pub(crate) allow: Option<&'static str>,
    /// The rest of what the client sends must not be taken for another request.
    pub(crate) closes: bool,
}

impl Answer {
    fn ok(body: &Value) -> Self {
        Self::with(StatusCode::OK, body)
    }

    fn with(status: StatusCode, body: &Value) -> Self {
        Self {
            status,
            body: body.to_string().into(),
            allow: None,
            closes: false,
        }
    }

    /// A refusal of ours, before anything is done.
    pub(crate) fn refused(status: StatusCode, code: &str, message: &str) -> Self {
        Self::with(status, &error_body(status, code, message))
    }
}

/// A change that is understood. One of the state goes on to its end or its deadline, whoever still waits for it.
#[derive(Debug)]
enum Change {
    Settings(Map<String, Value>),
    Reset {
        selection: Selection,
        /// The member that says that it was done.
        done: &'static str,
    },
    Lockouts(ClearLockouts),
}

/// Answers.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    admin: Arc<Admin>,
    access: Access,
    health: Arc<HealthCache>,
    /// Where changes of the state are made, which go on to their end when nobody waits for it any more.
    tasks: TaskTracker,
}

impl Rest {
    pub(crate) fn new(admin: Arc<Admin>, access: Access, tasks: TaskTracker) -> Self {
        let health = Arc::new(HealthCache::new(Arc::clone(&admin), tasks.clone()));
        Self {
            admin,
            access,
            health,
            tasks,
        }
    }

    /// Answers one request, whose body is only read if there is something to be done with it; what it cannot be read for is
    /// the answer then. Dropped before, it still ends what it began to reset, and saves no settings.
    pub(crate) async fn answer(
        &self,
        asked: Asked<'_>,
        body: impl Future<Output = Result<Bytes, Answer>> + Send,
    ) -> Answer {
        let Some(resource) = Resource::find(asked.path) else {
            let message = "there is no such path here";
            return Answer::refused(StatusCode::NOT_FOUND, "unknown_path", message);
        };
        if asked.method == Method::OPTIONS.as_str() {
            return Answer {
                status: StatusCode::NO_CONTENT,
                body: Bytes::new(),
                allow: Some(resource.allow),
                closes: false,
            };
        }
        let Some(operation) = resource.operation(asked.method) else {
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let message = "this path does not answer this method";
            return Answer {
                allow: Some(resource.allow),
                ..Answer::refused(status, "method_not_allowed", message)
            };
        };
        let answer = self.answer_to(operation, asked, body).await;
        let metrics = &self.admin.metrics.rest;
        metrics.answered(operation, Ending::of(answer.status));
        answer
    }

    async fn answer_to(
        &self,
        operation: Operation,
        asked: Asked<'_>,
        body: impl Future<Output = Result<Bytes, Answer>> + Send,
    ) -> Answer {
        let need = match operation.right() {
            Right::Anyone => {
                let shown = asked.authorization.is_some();
                let full = shown && self.admit(Need::Read, asked).is_ok();
                return self.show_health(full).await;
            }
            Right::Read => Need::Read,
            Right::Manage => Need::Manage,
        };
        let caller = match self.admit(need, asked) {
            Ok(caller) => caller,
            Err(denied) => return refused_caller(denied),
        };
        let body = if need == Need::Manage {
            match body.await {
                Ok(body) => body,
                Err(unread) => return unread,
            }
        } else {
            Bytes::new()
        };
        let read_at = local_now();
        let Some(current) = self.admin.config.current() else {
            let message = "there is no configuration yet";
            return failed(StatusCode::SERVICE_UNAVAILABLE, Refusal::NotReady, message);
        };
        let change = match operation {
            Operation::ShowHealth => return self.show_health(true).await,
            Operation::ShowSettings => {
                return Answer::ok(&Value::Object(self.sections(&current)));
            }
            Operation::ListLockouts => {
                return Answer::ok(&lockouts(&self.admin, &current.config));
            }
            Operation::ResetBreakers => Ok(Change::Reset {
                selection: of_everything(Scope::Breakers),
                done: "success",
            }),
            Operation::Reset => read_reset(&body).map(|reset| Change::Reset {
                selection: Selection {
                    scope: reset.scope,
                    provider: reset.provider,
                    connection: reset.connection,
                    model: None,
                },
                done: "ok",
            }),
            Operation::PatchSettings => read_patch(&body).map(Change::Settings),
            Operation::ClearLockouts => read_clear(&body).map(Change::Lockouts),
        };
        let change = match change {
            Ok(change) => change,
            Err(bad) => return Answer::with(StatusCode::BAD_REQUEST, &invalid_body(&bad)),
        };
        let deadline = self.deadline_of(asked, read_at).await;
        // A change that was put elsewhere meanwhile, and what came after it, must not be undone by one that comes late.
        if deadline.left(local_now()).is_zero() {
            return refused_change(ApplyError::TooLate);
        }
        let rest = self.clone();
        let is_of_settings = matches!(change, Change::Settings(_));
        let making = async move { rest.make(change, &caller, &current, deadline).await };
        // Saved as a whole, audited in the same transaction, or not at all. Who has gone may have changed something since,
        // elsewhere, that this must not undo.
        if is_of_settings {
            return making.await;
        }
        to_its_end(&self.tasks, making)
            .await
            .unwrap_or_else(|error| {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                failed(status, Refusal::Internal, &error.to_string())
            })
    }

    /// Until when a change may be made whose request was read at `read_at`. What time it is the store says itself: this replica
    /// may have stood still with the request in its socket, and its clock with it.
    async fn deadline_of(&self, asked: Asked<'_>, read_at: Instant) -> Deadline {
        let Asked {
            remaining_ms,
            not_after,
            ..
        } = asked;
        let store_now = self.admin.hot.time().await;
        let now = local_now();
        let asking_ms = millis(now.saturating_duration_since(read_at));
        let remaining_ms = remaining_ms.map(|it| it.saturating_sub(asking_ms));
        let left_ms = waited_for_ms(remaining_ms, not_after, store_now)
            .unwrap_or(u64::MAX)
            .min(millis(CHANGE_LIMIT));
        Deadline {
            local: now + Duration::from_millis(left_ms),
            store: Some(store_now.plus_ms(left_ms)),
        }
    }

    fn admit(&self, need: Need, asked: Asked<'_>) -> Result<Caller, Denied> {
        let admitted = self.access.admit_shown(need, asked.authorization);
        if let Err(denied) = admitted {
            self.access.count(denied);
        }
        admitted
    }

    async fn show_health(&self, full: bool) -> Answer {
        if !full {
            return Answer::ok(&json!({ "status": self.health.word().await }));
        }
        Answer {
            status: StatusCode::OK,
            body: self.health.whole().await,
            allow: None,
            closes: false,
        }
    }

    fn sections(&self, current: &Current) -> Map<String, Value> {
        let stored = current.config.document.settings.stored();
        let mut told = sections(&stored.settings, self.admin.config.overrides());
        let old_names = legacy(&told);
        told.insert(LEGACY.to_owned(), old_names);
        told
    }

    async fn make(
        &self,
        change: Change,
        caller: &Caller,
        current: &Current,
        deadline: Deadline,
    ) -> Answer {
        let answer = match change {
            Change::Settings(patch) => self.patch_settings(caller, &patch, deadline).await,
            Change::Reset { selection, done } => {
                match self.reset(caller, current, &selection, deadline).await {
                    Ok(Outcome { count, unsaved }) => Answer::ok(&json!({
                        done: true,
                        "resetCount": count,
                        "message": format!("{selection}: {count} reset"),
                        "checkpointed": !unsaved,
                    })),
                    Err(refused) => refused_reset(&refused),
                }
            }
            Change::Lockouts(cleared) => {
                self.clear_lockouts(caller, current, cleared, deadline)
                    .await
            }
        };
        self.health.forget();
        answer
    }

    async fn reset(
        &self,
        caller: &Caller,
        current: &Current,
        selection: &Selection,
        deadline: Deadline,
    ) -> Result<Outcome, Refused> {
        self.admin
            .reset(caller, &current.config, selection, Some(deadline))
            .await
    }

    async fn clear_lockouts(
        &self,
        caller: &Caller,
        current: &Current,
        cleared: ClearLockouts,
        deadline: Deadline,
    ) -> Answer {
        let (selection, scope) = match cleared {
            ClearLockouts::All => (of_everything(Scope::Lockouts), None),
            ClearLockouts::Of {
                provider,
                connection,
                model,
            } => {
                let scope = match connection {
                    Some(_) => "connection-model",
                    None => "provider-model",
                };
                let selection = Selection {
                    scope: Scope::Lockouts,
                    provider: Some(provider),
                    connection,
                    model: Some(model),
                };
                (selection, Some(scope))
            }
        };
        let reset = self.reset(caller, current, &selection, deadline).await;
        let removed = match reset {
            Ok(outcome) => outcome.count,
            // What does not exist has no locks, and is gone however often that is asked for.
            Err(Refused::NoProvider(_) | Refused::NoConnection(_)) => 0,
            Err(refused) => return refused_reset(&refused),
        };
        Answer::ok(&match scope {
            None => json!({"ok": true, "clearedAll": true, "removed": removed}),
            Some(scope) => json!({
                "ok": true,
                "removed": removed,
                "cleared": removed > 0,
                "scope": scope,
            }),
        })
    }

    async fn patch_settings(
        &self,
        caller: &Caller,
        patch: &Map<String, Value>,
        deadline: Deadline,
    ) -> Answer {
        let terms = Terms {
            expected: None,
            author: caller.to_string(),
            dry_run: false,
            deadline: Some(deadline.local.into()),
        };
        let patched = self.admin.config.patch_settings(patch, &terms).await;
        if let Err(error) = patched {
            return refused_change(error);
        }
        let Some(current) = self.admin.config.current() else {
            let message = "there is no configuration any more";
            return failed(StatusCode::SERVICE_UNAVAILABLE, Refusal::NotReady, message);
        };
        let mut told = self.sections(&current);
        told.insert("ok".to_owned(), Value::Bool(true));
        Answer::ok(&Value::Object(told))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn of_everything(scope: Scope) -> Selection {
    Selection {
        scope,
        provider: None,
        connection: None,
        model: None,
    }
}
