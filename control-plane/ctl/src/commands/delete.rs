//! `tidegatectl delete KIND NAME`.

use tidegate_proto::admin::v1 as proto;

use crate::cli::{DeleteArguments, Output, ResourceKind};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::write_differences;

/// Takes one thing out of the configuration.
pub(crate) async fn run(
    client: &mut Client,
    arguments: DeleteArguments,
    output: Output,
) -> Result<(), Failure> {
    let DeleteArguments { kind, name, change } = arguments;
    let dry_run = change.dry_run;
    let kind = match kind {
        ResourceKind::Provider => proto::ResourceKind::Provider,
        ResourceKind::Connection => proto::ResourceKind::Connection,
        ResourceKind::Combo => proto::ResourceKind::Combo,
        ResourceKind::Key => proto::ResourceKind::Key,
    };
    let (service, request) = client.call(proto::DeleteResourceRequest {
        kind: kind.into(),
        id: name,
        expected_version: change.expected_version,
        author: change.author,
        dry_run,
    });
    let done = service.delete_resource(request).await?.into_inner();
    write_differences(done.version, &done.differences, &[], dry_run, output)
}
