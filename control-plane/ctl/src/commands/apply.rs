//! `tidegatectl apply -f FILE` and `diff -f FILE`.
//!
//! A file is a part of the configuration unless `--prune` says that it is the whole.

use tidegate_core::config::Document;
use tidegate_document::{Machine, exposed};
use tidegate_proto::admin::v1::{ApplyConfigurationRequest, ApplyConfigurationResponse, ApplyMode};
use tidegate_wire::document;

use crate::cli::{ApplyArguments, DiffArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::write_differences;

/// Writes what the file names, or replaces the configuration, and shows what differs.
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
    )?;
    tell_untouched(applied.untouched);
    Ok(())
}

/// Who takes something out of a file and applies it is not to believe that it is gone.
fn tell_untouched(count: u32) {
    if count > 0 {
        eprintln!(
            "note: the configuration has {count} more that the file does not name, and that stay; --prune takes them out"
        );
    }
}

/// Shows what an apply would change; [`Failure::Differs`] when that is anything.
pub(crate) async fn diff(
    client: &mut Client,
    arguments: DiffArguments,
    output: Output,
) -> Result<(), Failure> {
    let asked = ApplyArguments {
        file: arguments.file,
        prune: arguments.prune,
        dry_run: true,
        reseal: false,
        expected_version: None,
        author: String::new(),
    };
    let found = send(client, &asked).await?;
    let (differences, warnings) = (&found.differences, &found.warnings);
    write_differences(found.version, differences, warnings, true, output)?;
    tell_untouched(found.untouched);
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
        // It changes nothing, or would delete everything; neither is meant.
        return Err(Failure::Input(format!(
            "{} describes nothing",
            arguments.file.display()
        )));
    }
    let mode = if arguments.prune {
        ApplyMode::Replace
    } else {
        ApplyMode::Merge
    };
    let (service, request) = client.call(ApplyConfigurationRequest {
        document: Some(document::to_proto(&loaded.document)),
        credentials: exposed(&loaded.credentials),
        refresh_tokens: exposed(&loaded.refresh_tokens),
        client_secrets: exposed(&loaded.client_secrets),
        expected_version: arguments.expected_version,
        dry_run: arguments.dry_run,
        reseal: arguments.reseal,
        mode: mode.into(),
        author: arguments.author.clone(),
    });
    Ok(service.apply_configuration(request).await?.into_inner())
}
