//! A control plane with a busy history in which what is looked for is rare.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_proto::admin::v1::watch_events_response::What;
use tidegate_proto::admin::v1::{
    Event, ListEventsRequest, ListEventsResponse, WatchBegan, WatchEventsRequest,
    WatchEventsResponse,
};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, BoxStream, Service, tokio_stream};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::cli::{ConnectionArguments, TlsArguments};
use crate::connect::{Client, connect};
use crate::failure::Failure;

/// So many connections end at once; the next one tells something.
const ENDED: usize = 2;

/// When the newest event of any kind happened that there is when a watch has begun so often before.
pub(super) fn newest(begun: u64) -> u64 {
    1_800_000_000_000 + begun * 300_000
}

/// Answers lists and watches of events, and nothing else.
#[derive(Clone, Debug)]
pub(super) struct Fake {
    address: SocketAddr,
    listener: Arc<Mutex<Option<TcpListener>>>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Watches that began.
    watches: usize,
    /// From when on what passes the filter was looked for; of each list once.
    since: Vec<u64>,
}

impl Fake {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener: Arc::new(Mutex::new(Some(listener))),
            seen: Arc::default(),
        }
    }

    pub(super) fn client(&self) -> Client {
        connect(ConnectionArguments {
            context: None,
            control_plane: Some(format!("http://{}", self.address).parse().unwrap()),
            token_file: None,
            tls: TlsArguments::default(),
            timeout: Duration::from_secs(10),
        })
        .unwrap()
    }

    /// Answers for as long as the command runs.
    pub(super) async fn serves(
        &self,
        command: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let listener = self.listener.lock().unwrap().take().unwrap();
        let incoming = TcpIncoming::from(listener);
        let server = Server::builder().add_service(self.clone());
        tokio::select! {
            ended = server.serve_with_incoming(incoming) => panic!("{ended:?}"),
            ran = command => ran,
        }
    }

    pub(super) fn read_since(&self) -> Vec<u64> {
        self.seen.lock().unwrap().since.clone()
    }

    fn list(&self, asked: &ListEventsRequest) -> ListEventsResponse {
        let mut seen = self.seen.lock().unwrap();
        let begun = seen.watches - 1;
        let is_narrow = asked.filter.as_ref().is_some_and(|it| !it.kinds.is_empty());
        if !is_narrow {
            let events = vec![Event {
                at_unix_ms: newest(begun.try_into().unwrap()),
                kind: "cooldown".to_owned(),
                ..Event::default()
            }];
            return ListEventsResponse {
                events,
                next_page_token: "older".to_owned(),
            };
        }
        if asked.page_token.is_empty() {
            seen.since.push(asked.since_unix_ms);
        }
        // There is no end to the first gap.
        let next_page_token = if begun == 1 { "older" } else { "" };
        ListEventsResponse {
            events: Vec::new(),
            next_page_token: next_page_token.to_owned(),
        }
    }

    fn watch(&self) -> Vec<What> {
        let mut seen = self.seen.lock().unwrap();
        seen.watches += 1;
        let mut told = vec![What::Began(WatchBegan {})];
        if seen.watches > ENDED {
            told.push(What::Event(Event {
                kind: "breaker".to_owned(),
                ..Event::default()
            }));
        }
        told
    }
}

impl UnaryService<ListEventsRequest> for Fake {
    type Response = ListEventsResponse;
    type Future = Ready<Result<Response<ListEventsResponse>, Status>>;

    fn call(&mut self, asked: Request<ListEventsRequest>) -> Self::Future {
        ready(Ok(Response::new(self.list(&asked.into_inner()))))
    }
}

impl ServerStreamingService<WatchEventsRequest> for Fake {
    type Response = WatchEventsResponse;
    type ResponseStream = BoxStream<WatchEventsResponse>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _asked: Request<WatchEventsRequest>) -> Self::Future {
        let told = self.watch().into_iter();
        let told = told.map(|what| Ok(WatchEventsResponse { what: Some(what) }));
        ready(Ok(Response::new(Box::pin(tokio_stream::iter(told)))))
    }
}

impl NamedService for Fake {
    const NAME: &'static str = "tidegate.admin.v1.AdminService";
}

impl Service<http::Request<Body>> for Fake {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            Ok(if request.uri().path().ends_with("/ListEvents") {
                let codec = ProstCodec::<ListEventsResponse, ListEventsRequest>::default();
                Grpc::new(codec).unary(fake, request).await
            } else {
                let codec = ProstCodec::<WatchEventsResponse, WatchEventsRequest>::default();
                Grpc::new(codec).server_streaming(fake, request).await
            })
        })
    }
}
