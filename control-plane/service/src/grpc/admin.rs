//! `tidegate.admin.v1.AdminService`.

use std::sync::Arc;

use tidegate_core::config::Protocol;
use tidegate_core::ids::{ConnectionId, EgressId, KeyId, ModelId, ProviderId};
use tidegate_core::routing::{Decision, EMERGENCY_TARGET, Plan};
use tidegate_proto::admin::v1 as proto;
use tidegate_proto::admin::v1::admin_service_server::AdminService;
use tidegate_wire as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::access::Right;
use crate::admin::{Admin, Operation, Question, Refused, Scope, Selection, to_its_end};
use crate::config::Current;
use crate::watch::freshness;

use super::changes::{self, caller};
use super::error::{Refusal, invalid, invalid_member};
use super::routing::{exclusions, name};
use super::{events, lists, quotas, resources, settings, status};

/// The service.
#[derive(Clone, Debug)]
pub(super) struct AdminApi {
    pub(super) admin: Arc<Admin>,
    /// Where watchers are fed, and changes made that are audited after the act.
    pub(super) tasks: TaskTracker,
    pub(super) drain: CancellationToken,
}

impl AdminApi {
    fn current(&self) -> Result<Arc<Current>, Status> {
        self.admin
            .config
            .current()
            .ok_or_else(|| Refusal::NotReady.status("there is no configuration yet"))
    }

    /// A call may be cut off at any time; what it began is not.
    async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let ended = to_its_end(&self.tasks, change).await;
        let done = ended.map_err(|error| Refusal::Internal.status(error.to_string()))?;
        done.map(Response::new)
    }
}

#[tonic::async_trait]
impl AdminService for AdminApi {
    async fn get_configuration(
        &self,
        _request: Request<proto::GetConfigurationRequest>,
    ) -> Result<Response<proto::GetConfigurationResponse>, Status> {
        let current = self.current()?;
        let credential_versions = current
            .credentials
            .iter()
            .map(|(connection, credential)| (connection.to_string(), credential.version))
            .collect();
        Ok(Response::new(proto::GetConfigurationResponse {
            version: current.config.version,
            document: Some(wire::document::to_proto(&current.config.document)),
            credential_versions,
        }))
    }

    async fn apply_configuration(
        &self,
        request: Request<proto::ApplyConfigurationRequest>,
    ) -> Result<Response<proto::ApplyConfigurationResponse>, Status> {
        let caller = caller(&request);
        let applied = changes::apply(&self.admin, &caller, request.into_inner());
        applied.await.map(Response::new)
    }

    async fn get_settings(
        &self,
        _request: Request<proto::GetSettingsRequest>,
    ) -> Result<Response<proto::GetSettingsResponse>, Status> {
        let overrides = self.admin.config.overrides();
        let told = settings::told(&*self.current()?, overrides);
        Ok(Response::new(told))
    }

    async fn patch_settings(
        &self,
        request: Request<proto::PatchSettingsRequest>,
    ) -> Result<Response<proto::PatchSettingsResponse>, Status> {
        let caller = caller(&request);
        let patched = changes::patch_settings(&self.admin, &caller, request.into_inner());
        patched.await.map(Response::new)
    }

    async fn set_connection_enabled(
        &self,
        request: Request<proto::SetConnectionEnabledRequest>,
    ) -> Result<Response<proto::SetConnectionEnabledResponse>, Status> {
        let caller = caller(&request);
        let set = changes::set_enabled(&self.admin, &caller, request.into_inner());
        set.await.map(Response::new)
    }

    async fn list_providers(
        &self,
        request: Request<proto::ListProvidersRequest>,
    ) -> Result<Response<proto::ListProvidersResponse>, Status> {
        let current = self.current()?;
        resources::providers(&current, request.get_ref()).map(Response::new)
    }

    async fn list_combos(
        &self,
        request: Request<proto::ListCombosRequest>,
    ) -> Result<Response<proto::ListCombosResponse>, Status> {
        let current = self.current()?;
        resources::combos(&current, request.get_ref()).map(Response::new)
    }

    async fn list_keys(
        &self,
        request: Request<proto::ListKeysRequest>,
    ) -> Result<Response<proto::ListKeysResponse>, Status> {
        let current = self.current()?;
        resources::keys(&current, request.get_ref()).map(Response::new)
    }

    async fn get_combo(
        &self,
        request: Request<proto::GetComboRequest>,
    ) -> Result<Response<proto::GetComboResponse>, Status> {
        let current = self.current()?;
        resources::combo(&current, request.get_ref()).map(Response::new)
    }

    async fn get_provider(
        &self,
        request: Request<proto::GetProviderRequest>,
    ) -> Result<Response<proto::GetProviderResponse>, Status> {
        let current = self.current()?;
        resources::provider(&self.admin, &current, request.get_ref()).map(Response::new)
    }

    async fn get_connection(
        &self,
        request: Request<proto::GetConnectionRequest>,
    ) -> Result<Response<proto::GetConnectionResponse>, Status> {
        let current = self.current()?;
        let told = resources::connection(&self.admin, &current, request.get_ref());
        told.await.map(Response::new)
    }

    async fn get_key(
        &self,
        request: Request<proto::GetKeyRequest>,
    ) -> Result<Response<proto::GetKeyResponse>, Status> {
        let current = self.current()?;
        let told = resources::key(&self.admin, &current, request.get_ref());
        told.await.map(Response::new)
    }

    async fn delete_resource(
        &self,
        request: Request<proto::DeleteResourceRequest>,
    ) -> Result<Response<proto::DeleteResourceResponse>, Status> {
        let caller = caller(&request);
        let deleted = changes::delete(&self.admin, &caller, request.into_inner());
        deleted.await.map(Response::new)
    }

    async fn list_breakers(
        &self,
        request: Request<proto::ListBreakersRequest>,
    ) -> Result<Response<proto::ListBreakersResponse>, Status> {
        let current = self.current()?;
        lists::breakers(&self.admin, &current, request.get_ref()).map(Response::new)
    }

    async fn list_connections(
        &self,
        request: Request<proto::ListConnectionsRequest>,
    ) -> Result<Response<proto::ListConnectionsResponse>, Status> {
        let current = self.current()?;
        let listed = lists::connections(&self.admin, &current, request.get_ref());
        listed.await.map(Response::new)
    }

    async fn list_lockouts(
        &self,
        request: Request<proto::ListLockoutsRequest>,
    ) -> Result<Response<proto::ListLockoutsResponse>, Status> {
        let current = self.current()?;
        lists::lockouts(&self.admin, &current, request.get_ref()).map(Response::new)
    }

    async fn list_cooldowns(
        &self,
        request: Request<proto::ListCooldownsRequest>,
    ) -> Result<Response<proto::ListCooldownsResponse>, Status> {
        let current = self.current()?;
        lists::cooldowns(&self.admin, &current, request.get_ref()).map(Response::new)
    }

    async fn list_leases(
        &self,
        request: Request<proto::ListLeasesRequest>,
    ) -> Result<Response<proto::ListLeasesResponse>, Status> {
        let current = self.current()?;
        let listed = lists::leases(&self.admin, &current, request.get_ref());
        listed.await.map(Response::new)
    }

    async fn end_lease(
        &self,
        request: Request<proto::EndLeaseRequest>,
    ) -> Result<Response<proto::EndLeaseResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let current = self.current()?;
        let admin = Arc::clone(&self.admin);
        self.finish(async move {
            let ended = lists::end_lease(&admin, &current, &request).await?;
            if let Some(ended) = &ended.ended {
                let (connection, generation) = (&ended.connection, ended.generation);
                let summary =
                    format!("lease of connection {connection} ended, generation {generation}");
                let operation = Operation::EndLease;
                admin.audit(&caller, operation, &summary).await;
            }
            Ok(ended)
        })
        .await
    }

    async fn list_permits(
        &self,
        request: Request<proto::ListPermitsRequest>,
    ) -> Result<Response<proto::ListPermitsResponse>, Status> {
        let current = self.current()?;
        let listed = lists::permits(&self.admin, &current, request.get_ref());
        listed.await.map(Response::new)
    }

    async fn list_pins(
        &self,
        request: Request<proto::ListPinsRequest>,
    ) -> Result<Response<proto::ListPinsResponse>, Status> {
        let current = self.current()?;
        let listed = lists::pins(&self.admin, &current, request.get_ref());
        listed.await.map(Response::new)
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Result<Response<proto::ListQueuesResponse>, Status> {
        let current = self.current()?;
        let listed = lists::queues(&self.admin, &current, request.get_ref());
        listed.await.map(Response::new)
    }

    async fn clear_permits(
        &self,
        request: Request<proto::ClearPermitsRequest>,
    ) -> Result<Response<proto::ClearPermitsResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let current = self.current()?;
        let admin = Arc::clone(&self.admin);
        self.finish(async move {
            let done = lists::clear_permits(&admin, &current, &request).await?;
            let summary = format!(
                "permits of connection {} forgotten, {} were out",
                request.connection, done.cleared
            );
            let operation = Operation::ClearPermits;
            admin.audit(&caller, operation, &summary).await;
            Ok(done)
        })
        .await
    }

    async fn list_events(
        &self,
        request: Request<proto::ListEventsRequest>,
    ) -> Result<Response<proto::ListEventsResponse>, Status> {
        let listed = events::list(&self.admin, request.into_inner());
        listed.await.map(Response::new)
    }

    type WatchEventsStream = ReceiverStream<Result<proto::WatchEventsResponse, Status>>;

    async fn watch_events(
        &self,
        request: Request<proto::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let caller = caller(&request);
        let right = Right::to_read(caller.clone(), Arc::clone(&self.admin.config))?;
        let begins = events::watch(&self.admin, &caller, request.into_inner());
        let (filter, watcher) = begins.await?;
        let (sender, receiver) = mpsc::channel(events::QUEUE);
        let feed = events::feed(filter, watcher, right, sender);
        self.tasks
            .spawn(self.drain.clone().run_until_cancelled_owned(feed));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<proto::ExplainResponse>, Status> {
        let request = request.into_inner();
        let current = self.current()?;
        let key = match name("key_id", &request.key_id, KeyId::new)? {
            None => None,
            Some(id) => Some(Arc::clone(current.keys.get(&id).ok_or_else(|| {
                Refusal::NotFound.status(format!("there is no key {id}"))
            })?)),
        };
        let protocol = match request.protocol.as_str() {
            "" => None,
            "openai" => Some(Protocol::Openai),
            "anthropic" => Some(Protocol::Anthropic),
            _ => {
                let message = "protocol: must be `openai` or `anthropic`";
                return Err(invalid_member("protocol", message.to_owned()));
            }
        };
        let facts = request.facts.map(|mut facts| {
            // The protocol is the question's own.
            facts.protocol = wire::routing::protocol_to_proto(Protocol::Openai).into();
            wire::routing::facts_from_proto(facts)
        });
        let facts = facts.transpose().map_err(|error| invalid(&error))?;
        let question = Question {
            facts,
            model: request.model,
            key,
            protocol,
            egress: name("egress", &request.egress, EgressId::new)?,
        };
        let (explanation, now) = self.admin.explain(&current, question).await;
        let (decision, code, message) = told(&explanation.decision);
        let targets = explanation
            .targets
            .iter()
            .map(|target| proto::ExplainedTarget {
                provider: target.provider.to_string(),
                connection: target
                    .connection
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                model: target.model.to_string(),
                chosen: target.chosen,
                pinned: target.pinned,
                exclusions: exclusions(&target.exclusions, now),
            })
            .collect();
        Ok(Response::new(proto::ExplainResponse {
            targets,
            decision: decision.to_owned(),
            code,
            message,
            freshness: Some(freshness(&self.admin.view, &self.admin.clock)),
        }))
    }

    async fn reset(
        &self,
        request: Request<proto::ResetRequest>,
    ) -> Result<Response<proto::ResetResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let selection = Selection {
            scope: scope(request.scope)?,
            provider: name("provider", &request.provider, ProviderId::new)?,
            connection: name("connection", &request.connection, ConnectionId::new)?,
            model: name("model", &request.model, ModelId::new)?,
        };
        let current = self.current()?;
        let admin = Arc::clone(&self.admin);
        self.finish(async move {
            let reset = admin.reset(&caller, &current.config, &selection, None);
            let outcome = reset.await.map_err(refused)?;
            Ok(proto::ResetResponse {
                reset_count: outcome.count,
                checkpointed: !outcome.unsaved,
            })
        })
        .await
    }

    async fn list_transitions(
        &self,
        request: Request<proto::ListTransitionsRequest>,
    ) -> Result<Response<proto::ListTransitionsResponse>, Status> {
        let listed = events::transitions(&self.admin, request.get_ref());
        listed.await.map(Response::new)
    }

    async fn report_quota(
        &self,
        request: Request<proto::ReportQuotaRequest>,
    ) -> Result<Response<proto::ReportQuotaResponse>, Status> {
        let current = self.current()?;
        let taken = quotas::report(&self.admin, &current, request.into_inner())?;
        Ok(Response::new(taken))
    }

    async fn list_quotas(
        &self,
        request: Request<proto::ListQuotasRequest>,
    ) -> Result<Response<proto::ListQuotasResponse>, Status> {
        let current = self.current()?;
        let listed = quotas::list(&self.admin, &current, request.get_ref())?;
        Ok(Response::new(listed))
    }

    async fn get_status(
        &self,
        _request: Request<proto::GetStatusRequest>,
    ) -> Result<Response<proto::GetStatusResponse>, Status> {
        Ok(Response::new(status::told(&self.admin).await))
    }
}

fn told(decision: &Decision) -> (&'static str, String, String) {
    match decision {
        // Every other target is marked where it is listed.
        Decision::Dispatch(dispatch) if dispatch.target == EMERGENCY_TARGET => {
            let (provider, model) = (&dispatch.provider, &dispatch.model);
            let account = &dispatch.connection;
            let message =
                format!("would go to the emergency fallback {provider}/{model} ({account})");
            ("dispatch", String::new(), message)
        }
        Decision::Dispatch(_) => ("dispatch", String::new(), String::new()),
        Decision::Wait(wait) => {
            let message = format!("would wait {} ms", wait.wait_ms);
            ("wait", String::new(), message)
        }
        Decision::Reject(rejection) => {
            ("reject", rejection.code.clone(), rejection.message.clone())
        }
        Decision::Plan(plan) => {
            let message = match &**plan {
                Plan::Fusion(plan) => format!("would ask {} steps at once", plan.panel.len()),
                Plan::Pipeline(plan) => {
                    format!("would ask {} steps one after the other", plan.stages.len())
                }
            };
            ("plan", String::new(), message)
        }
        // Explaining counts nothing, so no number is ever missing; pins are read before.
        Decision::TakeTurn(_) | Decision::ReadPin(_) => ("wait", String::new(), String::new()),
    }
}

fn scope(scope: i32) -> Result<Scope, Status> {
    match proto::ResetScope::try_from(scope) {
        Ok(proto::ResetScope::Unspecified | proto::ResetScope::Breakers) => Ok(Scope::Breakers),
        Ok(proto::ResetScope::Cooldowns) => Ok(Scope::Cooldowns),
        Ok(proto::ResetScope::Lockouts) => Ok(Scope::Lockouts),
        Ok(proto::ResetScope::All) => Ok(Scope::All),
        Err(_unknown) => Err(invalid_member("scope", "scope is not known".to_owned())),
    }
}

fn refused(error: Refused) -> Status {
    let message = error.to_string();
    match error {
        Refused::NoProvider(_) | Refused::NoConnection(_) => Refusal::NotFound.status(message),
        Refused::BreakerOfConnection => invalid_member("connection", message),
        Refused::Interrupted { .. } => Refusal::HotStoreAway.status(message),
        Refused::RetriesKept { .. } => Refusal::DurableStoreAway.status(message),
    }
}
