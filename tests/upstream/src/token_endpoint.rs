//! An OAuth 2.0 token endpoint on a loopback port: the refresh-token grant (RFC 6749 §6) with rotation.
//!
//! A refresh token is good for one use; the answer brings the next one. A used one is refused with `invalid_grant`
//! and counted, since that is what must not happen. What it does with a request is chosen at run time ([`TokenMode`]).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longest request that is read, in bytes.
const LONGEST_BODY: usize = 64 * 1024;
/// Length of the body of [`TokenMode::HugeBody`], in bytes.
const HUGE: usize = 8 * 1024 * 1024;

/// How the endpoint treats requests.
#[derive(Debug, Clone, Default)]
pub enum TokenMode {
    /// As it should.
    #[default]
    Ok,
    /// An error status without sense, such as 503. No token is used up.
    Status(u16),
    /// Never an answer. No token is used up.
    Hang,
    /// The token is used up at once, and the answer comes when this is cancelled.
    AnswerHeld(CancellationToken),
    /// An endless answer. No token is used up.
    HugeBody,
}

/// What became of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// When it came, since the start of the endpoint.
    pub at: Duration,
    /// The refresh token it showed.
    pub refresh_token: String,
    /// The `Authorization` header, if there was one.
    pub authorization: Option<String>,
    /// The access token that was issued for it, if one was.
    pub issued: Option<String>,
}

#[derive(Debug)]
struct State {
    mode: TokenMode,
    /// Seconds that access tokens live.
    expires_in: u64,
    /// Refresh tokens that are good.
    good: Vec<String>,
    issued: u64,
    requests: Vec<TokenRequest>,
}

/// A running token endpoint; it stops when dropped.
#[derive(Debug)]
pub struct TokenEndpoint {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: CancellationToken,
}

impl TokenEndpoint {
    /// Starts one that knows these refresh tokens. Access tokens are `at-1`, `at-2`, … and live for an hour.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(refresh_tokens: &[&str]) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State {
            mode: TokenMode::Ok,
            expires_in: 3_600,
            good: refresh_tokens.iter().map(ToString::to_string).collect(),
            issued: 0,
            requests: Vec::new(),
        }));
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let serving = serve(listener, Arc::clone(&state), tasks.clone(), stop.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(serving));
        Ok(Self { addr, state, stop })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/oauth/token", self.addr)
    }

    /// How it treats requests from now on.
    pub fn set_mode(&self, mode: TokenMode) {
        self.state.lock().mode = mode;
    }

    /// How long access tokens that it issues from now on live.
    pub fn set_life(&self, seconds: u64) {
        self.state.lock().expires_in = seconds;
    }

    /// All requests, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<TokenRequest> {
        self.state.lock().requests.clone()
    }

    /// How many access tokens were issued.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.state.lock().issued
    }
}

impl Drop for TokenEndpoint {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(
    listener: TcpListener,
    state: Arc<Mutex<State>>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let begun = Instant::now();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let state = Arc::clone(&state);
        let service = service_fn(move |request| answer(Arc::clone(&state), begun, request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            // How a connection ends is the client's affair.
            drop(connection.await);
        }));
    }
}

async fn answer(
    state: Arc<Mutex<State>>,
    begun: Instant,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, http::Error> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, LONGEST_BODY).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let member = |name: &str| {
        form_urlencoded::parse(&body)
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    };
    let authorization = head.headers.get(AUTHORIZATION);
    let mut recorded = TokenRequest {
        at: begun.elapsed(),
        refresh_token: member("refresh_token").unwrap_or_default(),
        authorization: authorization.and_then(|value| Some(value.to_str().ok()?.to_owned())),
        issued: None,
    };
    let good_form = head.method == Method::POST
        && head.uri.path() == "/oauth/token"
        && member("grant_type").as_deref() == Some("refresh_token");
    let (mode, reply) = {
        let mut state = state.lock();
        let issues = matches!(state.mode, TokenMode::Ok | TokenMode::AnswerHeld(_));
        let known = state
            .good
            .iter()
            .position(|good| *good == recorded.refresh_token);
        let reply = match known {
            Some(place) if issues && good_form => {
                state.issued += 1;
                let number = state.issued;
                let next = format!("{}.{number}", recorded.refresh_token);
                recorded.issued = Some(format!("at-{number}"));
                let reply = serde_json::json!({
                    "access_token": format!("at-{number}"),
                    "token_type": "Bearer",
                    "expires_in": state.expires_in,
                    "refresh_token": next,
                });
                state.good[place] = next;
                (StatusCode::OK, reply.to_string())
            }
            Some(_) if issues => (
                StatusCode::BAD_REQUEST,
                r#"{"error":"invalid_request"}"#.to_owned(),
            ),
            // The description repeats the token, as some do: it must show nowhere.
            _ => (
                StatusCode::BAD_REQUEST,
                serde_json::json!({
                    "error": "invalid_grant",
                    "error_description": format!("{} is not good", recorded.refresh_token),
                })
                .to_string(),
            ),
        };
        state.requests.push(recorded);
        (state.mode.clone(), reply)
    };
    let (status, text) = match mode {
        TokenMode::Ok => reply,
        TokenMode::Status(code) => (
            StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            "not now".to_owned(),
        ),
        TokenMode::Hang => std::future::pending().await,
        TokenMode::AnswerHeld(let_go) => {
            let_go.cancelled().await;
            reply
        }
        TokenMode::HugeBody => (StatusCode::OK, " ".repeat(HUGE)),
    };
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(text)))
}
