//! `tidegate.management.v1.ManagementService`.

use bytes::Bytes;
use tidegate_core::time::Timestamp;
use tidegate_proto::management::v1 as proto;
use tidegate_proto::management::v1::management_service_server::ManagementService;
use tonic::{Request, Response, Status};

use crate::rest::{Asked, Rest};

/// The service.
#[derive(Clone, Debug)]
pub(super) struct ManagementApi {
    pub(super) rest: Rest,
}

#[tonic::async_trait]
impl ManagementService for ManagementApi {
    async fn call(
        &self,
        request: Request<proto::CallRequest>,
    ) -> Result<Response<proto::CallResponse>, Status> {
        let request = request.into_inner();
        let asked = Asked {
            method: &request.method,
            path: &request.path,
            authorization: request.authorization.as_deref(),
            remaining_ms: request.remaining_ms,
            not_after: request.not_after_unix_ms.map(Timestamp),
        };
        let body = Bytes::from(request.body);
        let answer = self.rest.answer(asked, async { Ok(body) }).await;
        Ok(Response::new(proto::CallResponse {
            status: u32::from(answer.status.as_u16()),
            body: answer.body.into(),
            allow: answer.allow.unwrap_or_default().to_owned(),
        }))
    }
}
