//! `tidegatectl apply -f FILE`.

use secrecy::ExposeSecret as _;
use serde_json::json;
use tidegate_core::config::Document;
use tidegate_document::Machine;
use tidegate_proto::admin::v1::ApplyConfigurationRequest;
use tidegate_wire::document;

use crate::cli::{ApplyArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{print_value, write_line};

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
    let credentials = loaded
        .credentials
        .iter()
        .map(|(connection, secret)| {
            (
                connection.to_string(),
                secret.expose_secret().as_bytes().to_vec(),
            )
        })
        .collect();
    let (service, request) = client.call(ApplyConfigurationRequest {
        document: Some(document::to_proto(&loaded.document)),
        credentials,
        expected_version: arguments.expected_version,
        dry_run: arguments.dry_run,
        reseal: arguments.reseal,
    });
    let applied = service.apply_configuration(request).await?.into_inner();
    if output != Output::Table {
        let differences: Vec<_> = applied
            .differences
            .iter()
            .map(|difference| {
                json!({
                    "kind": difference.kind,
                    "subject": difference.subject,
                    "details": difference.details,
                })
            })
            .collect();
        return print_value(
            &json!({
                "version": applied.version,
                "dryRun": arguments.dry_run,
                "differences": differences,
            }),
            output,
        );
    }
    for difference in &applied.differences {
        let sign = match difference.kind.as_str() {
            "added" => '+',
            "removed" => '-',
            _ => '~',
        };
        write_line(&format!("{sign} {}", difference.subject))?;
        for detail in &difference.details {
            write_line(&format!("    {detail}"))?;
        }
    }
    match (applied.differences.is_empty(), arguments.dry_run) {
        (true, _) => write_line(&format!("nothing differs from version {}", applied.version))?,
        (false, true) => write_line("dry run: nothing was changed")?,
        (false, false) => write_line(&format!("applied as version {}", applied.version))?,
    }
    Ok(())
}
