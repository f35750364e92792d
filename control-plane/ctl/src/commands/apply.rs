//! `tidegatectl apply -f FILE` and `diff -f FILE`.

use tidegate_core::config::Document;
use tidegate_document::{Machine, exposed};
use tidegate_proto::admin::v1::{ApplyConfigurationRequest, ApplyConfigurationResponse};
use tidegate_wire::document;

use crate::cli::{ApplyArguments, DiffArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::write_differences;

/// Replaces the configuration and shows what differs.
pub(crate) async fn run(
    client: &mut Client,
    arguments: &ApplyArguments,
    output: Output,
) -> Result<(), Failure> {
    let applied = send(client, arguments).await?;
    write_differences(
        applied.version,
        &applied.differences,
        &applied.warnings,
        arguments.dry_run,
        output,
    )
}

/// Shows what an apply would change; [`Failure::Differs`] when that is anything.
pub(crate) async fn diff(
    client: &mut Client,
    arguments: DiffArguments,
    output: Output,
) -> Result<(), Failure> {
    let asked = ApplyArguments {
        file: arguments.file,
        dry_run: true,
        reseal: false,
        expected_version: None,
    };
    let found = send(client, &asked).await?;
    let (differences, warnings) = (&found.differences, &found.warnings);
    write_differences(found.version, differences, warnings, true, output)?;
    if differences.is_empty() {
        Ok(())
    } else {
        Err(Failure::Differs)
    }
}

async fn send(
    client: &mut Client,
    arguments: &ApplyArguments,
) -> Result<ApplyConfigurationResponse, Failure> {
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
    Ok(service.apply_configuration(request).await?.into_inner())
}
