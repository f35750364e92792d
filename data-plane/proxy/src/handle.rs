//! One request through all its phases: route, identify, read, parse, drive.

mod admin;
mod cors;
mod leases;
pub(crate) mod management;
mod models_health;
pub(crate) mod read;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use http::header::{CONNECTION, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use tidegate_core::config::ApiKey;
use tidegate_core::lease::{LeaseError, LeaseName};
use tidegate_core::routing::RequestFacts;
use tidegate_plane_client::Snapshot;
use tidegate_telemetry::Span;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::control_port::ControlPort;
use crate::dispatch::Passed;
use crate::drive::{Admitted, drive};
use crate::early;
use crate::endpoint::{Endpoint, Format, Route};
use crate::facts;
use crate::idempotency::Whose;
use crate::identify;
use crate::leasing;
use crate::life::Life;
use crate::metrics::RefusalLabels;
use crate::models;
use crate::proxy::{Shared, Surface};
use crate::refusal::Refusal;
use crate::relay::Relay;
use crate::reply::{ErrorContext, REQUEST_ID, ReplyBody, VERSION, refuse};
use crate::request::RequestBody;
use crate::spans::{Branch, tell_status};

/// Limits of a head that are answered in the client's format; hyper's own are larger.
const MAX_HEADERS: usize = 100;
const MAX_HEAD_BYTES: usize = 32 * 1024;
const CLOSE: HeaderValue = HeaderValue::from_static("close");
const OUR_VERSION: HeaderValue = HeaderValue::from_static(env!("CARGO_PKG_VERSION"));

/// Answers one request of a client at this address. A panic in a phase is answered with 500 and ends nothing but its request.
pub(crate) async fn handle<C: ControlPort>(
    shared: Arc<Shared<C>>,
    surface: Surface,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let route = Route::find(request.uri().path()).filter(|route| surface.answers(*route));
    let wants_head = request.method() == Method::HEAD;
    let is_http2 = request.version() == Version::HTTP_2;
    let format = match route {
        Some(Route::Model(endpoint)) => endpoint.format(),
        _ => Format::of_headers(request.headers()),
    };
    let answered = {
        let routed =
            AssertUnwindSafe(route_to(&shared, route, format, peer, request)).catch_unwind();
        let mut routed = std::pin::pin!(routed);
        tokio::select! {
            answered = routed.as_mut() => answered.unwrap_or(Err(Refusal::Internal)),
            () = shared.end.cancelled() => Err(Refusal::ShuttingDown),
        }
    };
    let mut response = answered.unwrap_or_else(|refusal| {
        let labels = RefusalLabels {
            code: refusal.kind().to_owned(),
        };
        shared.metrics.refusals.get_or_create(&labels).inc();
        let request_id = shared.next_request_id();
        tracing::info!(
            target: "tidegate::access",
            request_id,
            status = refusal.status().as_u16(),
            code = refusal.code(),
            "request refused"
        );
        let mut response = refuse(format, &refusal, ErrorContext::default());
        if let Ok(id) = HeaderValue::try_from(request_id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        response
    });
    response.headers_mut().insert(VERSION, OUR_VERSION);
    cors::allow(response.headers_mut());
    if wants_head {
        without_body(&mut response);
    }
    if is_http2 {
        let (stall_time, tasks) = (shared.limits.stall_time, &shared.tasks);
        return response.map(|body| body.kept_for(stall_time, None, tasks));
    }
    if shared.is_draining() {
        // Its client goes elsewhere with the next request. One that came on a connection that is closed for idleness at
        // the same moment would be lost.
        response.headers_mut().insert(CONNECTION, CLOSE);
    }
    response
}

/// What HEAD is answered: everything but the body.
fn without_body(response: &mut Response<ReplyBody>) {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    *response.body_mut() = ReplyBody::empty();
}

async fn route_to<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    route: Option<Route>,
    format: Format,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Refusal> {
    let begun = Instant::now();
    let route = route.ok_or(Refusal::UnknownPath)?;
    check_head(request.headers())?;
    if request.method() == Method::OPTIONS {
        return Ok(cors::preflight(route));
    }
    if matches!(route, Route::Model(_)) && leasing::is_upgrade(request.headers()) {
        refuse_managed_upgrade(shared, request.headers())?;
    }
    if !route.answers(request.method()) {
        return Err(Refusal::MethodNotAllowed {
            allow: route.allow(),
        });
    }
    match route {
        Route::Livez => Ok(admin::livez()),
        Route::Readyz => Ok(admin::readyz(shared.is_ready())),
        Route::Metrics => admin::metrics(&shared.registry.read()),
        Route::Models => {
            let snapshot = shared.configured().ok_or(Refusal::NotConfigured)?;
            let always = shared.limits.require_key;
            let key = identify::key(request.headers(), &snapshot.config, always)?;
            Ok(models::list(format, &snapshot.config, key.as_deref()))
        }
        Route::ModelsHealth => models_health::answer(shared, &request).await,
        Route::SessionLeases => Ok(leases::answer(shared, request).await),
        Route::Management(resource) => management::answer(shared, resource, request).await,
        Route::Model(endpoint) => ask(shared, endpoint, peer, request, begun).await,
    }
}

/// A request that names a model.
async fn ask<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    endpoint: Endpoint,
    peer: IpAddr,
    request: Request<Incoming>,
    begun: Instant,
) -> Result<Response<ReplyBody>, Refusal> {
    let traces = &shared.tracing.traces;
    let has_key = || known_key(shared, shared.configured(), request.headers()).is_some();
    let mut traced = Some(Branch::of_request(
        traces,
        endpoint,
        request.headers(),
        has_key,
    ));
    let answered = admit(shared, endpoint, peer, request, begun, &mut traced).await;
    // Whoever was let in took it along.
    if let Some((_, mut span)) = traced {
        match &answered {
            Ok(response) => tell_status(&mut span, response.status(), None),
            Err(refusal) => tell_status(&mut span, refusal.status(), Some(refusal.code())),
        }
    }
    answered
}

/// Who sends a request, and what the configuration of that moment says of how its body is read and its answer awaited.
struct Caller {
    key: Option<Arc<ApiKey>>,
    lease: Option<LeaseName>,
    body_names_session: bool,
    patience: Option<early::Patience>,
}

impl Caller {
    /// As its headers say, before anything of its body is read.
    fn of<C: ControlPort>(shared: &Shared<C>, headers: &HeaderMap) -> Result<Self, Refusal> {
        let snapshot = shared.configured().ok_or(Refusal::NotConfigured)?;
        let config = &snapshot.config;
        let key = identify::key(headers, config, shared.limits.require_key)?;
        Ok(Self {
            lease: leasing::of_request(headers, key.as_deref())?,
            key,
            body_names_session: config.settings.session_affinity_body_keys,
            patience: early::Patience::of(config, shared.limits.heartbeats),
        })
    }
}

async fn admit<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    endpoint: Endpoint,
    peer: IpAddr,
    request: Request<Incoming>,
    begun: Instant,
    traced: &mut Option<(Branch, Span)>,
) -> Result<Response<ReplyBody>, Refusal> {
    let (head, body) = request.into_parts();
    let caller = match Caller::of(shared, &head.headers) {
        Ok(caller) => caller,
        Err(refusal) => {
            shared.unread.discard(&head.headers, body).await;
            return Err(refusal);
        }
    };
    let Caller {
        key,
        lease,
        body_names_session,
        patience,
    } = caller;
    let bytes = read::body(&head.headers, body, &shared.limits).await?;
    let takes_background = endpoint == Endpoint::Responses;
    let mut body = if body_names_session {
        RequestBody::parse_with_session(bytes, takes_background)?
    } else {
        RequestBody::parse(bytes, takes_background)?
    };
    body.stream &= endpoint.streams();
    let facts = facts::of_request(endpoint, &head.headers, key, &body)?;
    let facts = Arc::new(RequestFacts { lease, ..facts });
    let passed = Passed::take(endpoint, &head.headers, &head.uri);
    let repetitions = &shared.repetitions;
    let whose = Whose::of(facts.key.as_deref(), peer);
    let named = repetitions.name(whose, endpoint, &head.headers, &facts, &body, &passed)?;
    let relay = Relay::begin(shared, endpoint, &head.headers, &facts);
    // In a box, since what follows would hold room for it three times over, and hyper moves the whole.
    let run = Box::pin(async {
        let request_id = shared.next_request_id();
        let promise = patience.filter(|_| body.stream).map(|patience| {
            let promise = early::Promise {
                endpoint,
                request_id: request_id.clone(),
                body: body.clone(),
            };
            (patience, promise)
        });
        let life = Life::begin(
            Arc::clone(shared),
            request_id,
            endpoint,
            Arc::clone(&facts),
            body.stream,
            begun,
            traced.take().unwrap_or_default(),
        );
        let admitted = Admitted {
            endpoint,
            passed,
            body,
            facts,
        };
        let (held_since, is_held_since) = watch::channel(None);
        let answering = drive(Arc::clone(shared), admitted, life, relay, held_since);
        match promise {
            Some((patience, promise)) => {
                early::keep(
                    shared,
                    patience.runs_out(is_held_since),
                    promise,
                    Box::pin(answering),
                )
                .await
            }
            None => answering.await,
        }
    });
    match named {
        Some(named) => repetitions.once(named, run).await,
        None => Ok(run.await),
    }
}

/// A handshake is answered by its method; whose requests are managed is told why there is no such transport for them.
fn refuse_managed_upgrade<C: ControlPort>(
    shared: &Shared<C>,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let key = known_key(shared, shared.control.snapshot(), headers);
    if key.is_some_and(|key| key.may_lease()) {
        return Err(LeaseError::UnsupportedTransport.into());
    }
    Ok(())
}

/// Whose key it is, if it is anybody's.
fn known_key<C: ControlPort>(
    shared: &Shared<C>,
    snapshot: Option<Arc<Snapshot>>,
    headers: &HeaderMap,
) -> Option<Arc<ApiKey>> {
    let key = identify::key(headers, &snapshot?.config, shared.limits.require_key);
    key.ok().flatten()
}

fn check_head(headers: &HeaderMap) -> Result<(), Refusal> {
    let bytes = headers
        .iter()
        .map(|(name, value)| name.as_str().len().saturating_add(value.len()))
        .fold(0, usize::saturating_add);
    if headers.len() > MAX_HEADERS || bytes > MAX_HEAD_BYTES {
        return Err(Refusal::HeadersTooLarge);
    }
    Ok(())
}

impl Surface {
    /// Whether a route is served there.
    pub(crate) fn answers(self, route: Route) -> bool {
        let is_admin = matches!(route, Route::Livez | Route::Readyz | Route::Metrics);
        match self {
            Self::Everything => true,
            Self::Clients => !is_admin,
            Self::Admin => is_admin,
        }
    }
}
