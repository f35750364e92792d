//! `tidegatectl apply -f FILE`.

use tidegate_core::config::Document;
use tidegate_document::{Machine, exposed};
use tidegate_proto::admin::v1::ApplyConfigurationRequest;
use tidegate_wire::document;

use crate::cli::{ApplyArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::write_differences;

/// Replaces the configuration and shows what differs.
pub(crate) async fn run(
    client: &mut Client,
    arguments: &ApplyArguments,
    output: Output,
) -> Result<(), Failure> {
    let loaded = tidegate_document::load(&arguments.file, &Machine)
        .map_err(|error| Failure::Input(error.to_string()))?;
    if loaded.document == Document::default() {
        // Applied, it would delete everything; that is hardly meant.
        return Err(Failure::Input(format!(
            "{} describes nothing",
            arguments.file.display()
        )));
    }
    let (service, request) = client.call(ApplyConfigurationRequest {
        document: Some(document::to_proto(&loaded.document)),
        credentials: exposed(&loaded.credentials),
        refresh_tokens: exposed(&loaded.refresh_tokens),
        client_secrets: exposed(&loaded.client_secrets),
        expected_version: arguments.expected_version,
        dry_run: arguments.dry_run,
        reseal: arguments.reseal,
    });
    let applied = service.apply_configuration(request).await?.into_inner();
    write_differences(
        applied.version,
        &applied.differences,
        &applied.warnings,
        arguments.dry_run,
        output,
    )
}
