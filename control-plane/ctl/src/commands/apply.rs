//! `tidegatectl apply -f FILE` and `diff -f FILE`.
//!
//! A file is a part of the configuration unless `--prune` says that it is the whole.

use serde_json::json;
use tidegate_core::config::Document;
use tidegate_document::{Machine, exposed};
use tidegate_proto::admin::v1::{ApplyConfigurationRequest, ApplyConfigurationResponse};
use tidegate_wire::document;
use tonic::{Code, Status};

use crate::cli::{ApplyArguments, DiffArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{differences_value, print_value, write_differences};

/// Most things that are named though the file does not name them.
const MAX_NAMED: usize = 10;

/// Writes what the file names, or replaces the configuration, and shows what differs.
pub(crate) async fn run(
    client: &mut Client,
    arguments: &ApplyArguments,
    output: Output,
) -> Result<(), Failure> {
    let applied = send(client, arguments).await?;
    tell(&applied, arguments.dry_run, output)
}

/// What differs, and what stays: who takes something out of a file and applies it is not to believe that it is gone.
fn tell(
    applied: &ApplyConfigurationResponse,
    dry_run: bool,
    output: Output,
) -> Result<(), Failure> {
    let (differences, warnings) = (&applied.differences, &applied.warnings);
    if output.is_for_people() {
        write_differences(applied.version, differences, warnings, dry_run, output)?;
    } else {
        let mut told = differences_value(applied.version, differences, warnings, dry_run);
        told["untouchedCount"] = json!(applied.untouched);
        told["untouched"] = json!(applied.untouched_subjects);
        print_value(&told, output)?;
    }
    if let Some(note) = untouched_note(applied.untouched, &applied.untouched_subjects) {
        eprintln!("{note}");
    }
    Ok(())
}

fn untouched_note(count: u32, subjects: &[String]) -> Option<String> {
    if count == 0 {
        return None;
    }
    let mut named: Vec<&str> = subjects
        .iter()
        .take(MAX_NAMED)
        .map(String::as_str)
        .collect();
    let left = usize::try_from(count).map_or(usize::MAX, |count| count.saturating_sub(named.len()));
    let more = format!("{left} others");
    if left > 0 {
        named.push(&more);
    }
    let named = named.join(", ");
    Some(format!(
        "note: the configuration has {count} more that the file does not name, and that stay: {named}; --prune takes them out"
    ))
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
    tell(&found, true, output)?;
    if found.differences.is_empty() {
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
    let document = document::to_proto(&loaded.document);
    let (whole, part) = if arguments.prune {
        (Some(document), None)
    } else {
        (None, Some(document))
    };
    let (service, request) = client.call(ApplyConfigurationRequest {
        document: whole,
        part,
        credentials: exposed(&loaded.credentials),
        refresh_tokens: exposed(&loaded.refresh_tokens),
        client_secrets: exposed(&loaded.client_secrets),
        expected_version: arguments.expected_version,
        dry_run: arguments.dry_run,
        reseal: arguments.reseal,
        author: arguments.author.clone(),
    });
    match service.apply_configuration(request).await {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) if !arguments.prune && takes_no_part(&status) => {
            let message = "the control plane is older than this tidegatectl and takes no part of a configuration; nothing was \
                           changed: upgrade the control planes first, or apply the whole with --prune";
            Err(Failure::Input(message.to_owned()))
        }
        Err(status) => Err(status.into()),
    }
}

/// So answers a control plane of before there were parts: of a part it sees nothing.
fn takes_no_part(status: &Status) -> bool {
    status.code() == Code::InvalidArgument && status.message().contains("document is missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_named_and_what_is_not_named_counted() {
        assert_eq!(untouched_note(0, &[]), None);
        let subjects: Vec<String> = (0..12).map(|it| format!("key k{it}")).collect();
        let few = untouched_note(2, subjects.get(..2).unwrap()).unwrap();
        assert!(few.contains("2 more"), "{few}");
        assert!(few.contains("stay: key k0, key k1; --prune"), "{few}");
        let many = untouched_note(500, &subjects).unwrap();
        assert!(many.contains("key k9, 490 others; --prune"), "{many}");
    }

    #[test]
    fn an_older_control_plane_is_told_from_a_fault_of_the_file() {
        assert!(takes_no_part(&Status::invalid_argument(
            "document is missing"
        )));
        let fault = Status::invalid_argument("the configuration has 1 violations");
        assert!(!takes_no_part(&fault));
    }
}
