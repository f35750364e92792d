//! `tidegatectl settings …`.

mod assignment;

use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use tidegate_core::settings::MAX_SETTINGS_BYTES;
use tidegate_proto::admin::v1::{
    GetSettingsRequest, GetSettingsResponse, PatchSettingsRequest, SettingSource,
};

use crate::cli::{ChangeArguments, Output, SettingsCommand, SettingsGetArguments};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, print_value, write_differences, write_line};

/// As the tests of the rules make it from the types.
const SCHEMA: &str = include_str!("../../../../docs/schema/settings.json");

/// Shows or changes settings.
pub(crate) async fn run(
    client: &mut Client,
    command: SettingsCommand,
    output: Output,
) -> Result<(), Failure> {
    match command {
        SettingsCommand::Get(arguments) => get(client, &arguments, output).await,
        SettingsCommand::Patch(arguments) => {
            let patch = read_patch(&arguments.file)?;
            change(client, patch, arguments.change, output).await
        }
        SettingsCommand::Set(arguments) => {
            let patch = assignment::patch(&arguments.assignments)?;
            change(client, patch, arguments.change, output).await
        }
        SettingsCommand::Schema => schema(output),
    }
}

/// Prints the JSON Schema.
pub(crate) fn schema(output: Output) -> Result<(), Failure> {
    let schema: Value =
        serde_json::from_str(SCHEMA).map_err(|error| Failure::Output(error.to_string()))?;
    print_value(&schema, output)
}

async fn get(
    client: &mut Client,
    arguments: &SettingsGetArguments,
    output: Output,
) -> Result<(), Failure> {
    let (service, request) = client.call(GetSettingsRequest {});
    let settings = service.get_settings(request).await?.into_inner();
    let wanted = arguments.section.as_deref();
    if arguments.effective {
        return effective(&settings, wanted, output);
    }
    let mut written = parse(&settings.written_json)?;
    for name in wanted.into_iter().flat_map(|path| path.split('.')) {
        written = written.get(name).cloned().unwrap_or(Value::Null);
    }
    if output.is_for_people() {
        write_mended(&settings)?;
    }
    print_value(
        &written,
        if output.is_for_people() {
            Output::Yaml
        } else {
            output
        },
    )
}

/// Whether a path is the wanted one or below it.
fn is_below(path: &str, wanted: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| {
        path.strip_prefix(wanted)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn effective(
    settings: &GetSettingsResponse,
    wanted: Option<&str>,
    output: Output,
) -> Result<(), Failure> {
    let mut listing = Listing::new(&["path", "value", "source"]);
    let mut count = 0_usize;
    for setting in &settings.effective {
        if !is_below(&setting.path, wanted) {
            continue;
        }
        count += 1;
        let source = match setting.source() {
            SettingSource::Stored => "stored".to_owned(),
            SettingSource::Environment => format!("environment {}", setting.variable),
            SettingSource::BuiltIn | SettingSource::Unspecified => "built in".to_owned(),
        };
        listing.push(vec![
            json!(setting.path),
            parse(&setting.value_json)?,
            json!(source),
        ]);
    }
    if let Some(wanted) = wanted
        && count == 0
    {
        return Err(Failure::Input(format!("there is no setting {wanted}")));
    }
    if wanted.is_none() {
        for setting in &settings.connection_overrides {
            listing.push(vec![
                json!(format!(
                    "connection {}: {}",
                    setting.connection, setting.member
                )),
                parse(&setting.value_json)?,
                json!("stored"),
            ]);
        }
    }
    if output.is_for_people() {
        write_mended(settings)?;
    }
    listing.print(output)
}

/// Says what the control plane could not take as it stands in the store.
fn write_mended(settings: &GetSettingsResponse) -> Result<(), Failure> {
    for mended in &settings.mended {
        write_line(&format!("# note: {} {}", mended.path, mended.message))?;
    }
    Ok(())
}

async fn change(
    client: &mut Client,
    patch: Map<String, Value>,
    arguments: ChangeArguments,
    output: Output,
) -> Result<(), Failure> {
    let ChangeArguments {
        dry_run,
        expected_version,
        author,
    } = arguments;
    let (service, request) = client.call(PatchSettingsRequest {
        patch_json: Value::Object(patch).to_string(),
        expected_version,
        author,
        dry_run,
    });
    let changed = service.patch_settings(request).await?.into_inner();
    write_differences(changed.version, &changed.differences, &[], dry_run, output)
}

fn parse(json: &str) -> Result<Value, Failure> {
    serde_json::from_str(json).map_err(|error| Failure::Output(error.to_string()))
}

fn read_patch(file: &Path) -> Result<Map<String, Value>, Failure> {
    let failure =
        |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", file.display()));
    let limit = u64::try_from(MAX_SETTINGS_BYTES).unwrap_or(u64::MAX);
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(limit.saturating_add(1))
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|file| file.take(limit.saturating_add(1)).read_to_string(&mut text))
    }
    .map_err(|error| failure(&error))?;
    if text.len() > MAX_SETTINGS_BYTES {
        return Err(failure(&format!("larger than {MAX_SETTINGS_BYTES} bytes")));
    }
    serde_saphyr::from_str(&text).map_err(|error| failure(&error.without_snippet()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_valid_json_and_names_every_section() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        assert!(schema["properties"]["providerBreaker"]["properties"]["apikey"].is_object());
        assert_eq!(schema["additionalProperties"], false);
    }

    #[test]
    fn a_path_is_wanted_whole_or_from_its_beginning() {
        assert!(is_below("streams.idleTimeoutMs", None));
        assert!(is_below("streams.idleTimeoutMs", Some("streams")));
        assert!(is_below("streams", Some("streams")));
        assert!(!is_below("streamsX.a", Some("streams")));
        assert!(!is_below("streams", Some("streams.idleTimeoutMs")));
    }
}
