//! The limit of `Decide`: a tonic service with the same messages that does nothing.
#![expect(clippy::print_stdout, reason = "tells its address to who started it")]

use tidegate_proto::routing::v1::routing_service_server::{RoutingService, RoutingServiceServer};
use tidegate_proto::routing::v1::{
    AbandonRequest, AbandonResponse, AwaitRequest, AwaitResponse, DecideRequest, DecideResponse,
    Dispatch, KeepPermitsRequest, KeepPermitsResponse, ReleasePermitsRequest,
    ReleasePermitsResponse, decide_response::Step,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

struct Echo;

#[tonic::async_trait]
impl RoutingService for Echo {
    async fn decide(
        &self,
        request: Request<DecideRequest>,
    ) -> Result<Response<DecideResponse>, Status> {
        let facts = request.into_inner().facts.unwrap_or_default();
        // As large as a real answer: names and numbers of one attempt.
        let attempt = tidegate_proto::common::v1::Attempt {
            provider: facts.model.clone(),
            connection: facts.key_id,
            model: facts.model,
            ..Default::default()
        };
        Ok(Response::new(DecideResponse {
            step: Some(Step::Dispatch(Dispatch {
                attempt: Some(attempt),
                ..Default::default()
            })),
            ..Default::default()
        }))
    }

    async fn r#await(&self, _: Request<AwaitRequest>) -> Result<Response<AwaitResponse>, Status> {
        Ok(Response::new(AwaitResponse::default()))
    }

    async fn abandon(
        &self,
        _: Request<AbandonRequest>,
    ) -> Result<Response<AbandonResponse>, Status> {
        Ok(Response::new(AbandonResponse {}))
    }

    async fn keep_permits(
        &self,
        _: Request<KeepPermitsRequest>,
    ) -> Result<Response<KeepPermitsResponse>, Status> {
        Ok(Response::new(KeepPermitsResponse {}))
    }

    async fn release_permits(
        &self,
        _: Request<ReleasePermitsRequest>,
    ) -> Result<Response<ReleasePermitsResponse>, Status> {
        Ok(Response::new(ReleasePermitsResponse {}))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening {}", listener.local_addr()?);
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(RoutingServiceServer::new(Echo))
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?;
    Ok(())
}
