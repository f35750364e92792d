//! Settings in `tidegate.admin.v1.AdminService`.

use serde_json::Value;
use tidegate_core::settings::{Overrides, Source, effective};
use tidegate_proto::admin::v1 as proto;

use crate::config::Current;

/// Members of a connection that say what it is, not how it is treated.
const IDENTITY: [&str; 5] = ["id", "provider", "priority", "enabled", "credential"];

/// The settings in force, for people.
pub(super) fn told(current: &Current, overrides: &Overrides) -> proto::GetSettingsResponse {
    let config = &current.config;
    let written = &config.document.settings;
    let reading = written.stored();
    let effective = effective(&reading, overrides)
        .into_iter()
        .map(|setting| {
            let (source, variable) = match setting.source {
                Source::BuiltIn => (proto::SettingSource::BuiltIn, String::new()),
                Source::Environment(variable) => (proto::SettingSource::Environment, variable),
                Source::Stored => (proto::SettingSource::Stored, String::new()),
            };
            proto::EffectiveSetting {
                path: setting.path,
                value_json: setting.value.to_string(),
                source: source.into(),
                variable,
            }
        })
        .collect();
    let mended = reading
        .warnings
        .into_iter()
        .map(|warning| proto::MendedSetting {
            path: warning.field,
            message: warning.message,
        })
        .collect();
    proto::GetSettingsResponse {
        version: config.version,
        written_json: Value::Object(written.members().clone()).to_string(),
        effective,
        connection_overrides: connection_overrides(current),
        mended,
    }
}

/// What connections say in place of the settings. A member that is not written is as the settings say.
fn connection_overrides(current: &Current) -> Vec<proto::ConnectionOverride> {
    let mut all = Vec::new();
    for connection in &current.config.document.connections {
        let Ok(Value::Object(members)) = serde_json::to_value(connection) else {
            continue;
        };
        for (member, value) in members {
            if !IDENTITY.contains(&member.as_str()) {
                all.push(proto::ConnectionOverride {
                    connection: connection.id.to_string(),
                    member,
                    value_json: value.to_string(),
                });
            }
        }
    }
    all
}
