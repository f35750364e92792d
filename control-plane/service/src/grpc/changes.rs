//! Changes of a part of the configuration in `tidegate.admin.v1.AdminService`.

use serde_json::{Map, Value};
use tidegate_core::config::{Resource, Warning};
use tidegate_core::ids::ConnectionId;
use tidegate_proto::admin::v1 as proto;
use tidegate_wire as wire;
use tonic::{Request, Status};

use crate::access::Caller;
use crate::admin::Admin;
use crate::config::apply::{Mode, Wanted, WantedSecrets};
use crate::config::change::Terms;

use super::error::{Refusal, invalid_document, invalid_member};
use super::routing::name;

/// Longest author, in bytes.
const MAX_AUTHOR_BYTES: usize = 128;
/// Most things that are named though a part did not name them.
const MAX_UNTOUCHED: usize = 100;

/// Who calls, as the guard found.
pub(super) fn caller<T>(request: &Request<T>) -> Caller {
    let caller = request.extensions().get();
    caller.cloned().unwrap_or(Caller::Local)
}

fn terms(
    caller: &Caller,
    expected: Option<u64>,
    author: &str,
    dry_run: bool,
) -> Result<Terms, Status> {
    if author.len() > MAX_AUTHOR_BYTES || author.chars().any(char::is_control) {
        let message = format!("author must be text of at most {MAX_AUTHOR_BYTES} bytes");
        return Err(invalid_member("author", message));
    }
    Ok(Terms {
        expected,
        author: format!("{caller} {author}").trim_end().to_owned(),
        dry_run,
        // Whoever calls is there until it is answered, and drops it otherwise.
        deadline: None,
    })
}

pub(super) async fn apply(
    admin: &Admin,
    caller: &Caller,
    request: proto::ApplyConfigurationRequest,
) -> Result<proto::ApplyConfigurationResponse, Status> {
    let (mode, document) = match (request.document, request.part) {
        (Some(whole), None) => (Mode::Replace, whole),
        (None, Some(part)) => (Mode::Merge, part),
        (None, None) => {
            let message = "there is neither a document nor a part";
            return Err(invalid_member("document", message.to_owned()));
        }
        (Some(_), Some(_)) => {
            let message = "must not be there beside a document";
            return Err(invalid_member("part", format!("part: {message}")));
        }
    };
    let (expected, dry_run) = (request.expected_version, request.dry_run);
    let Terms {
        expected,
        author,
        dry_run,
        deadline: _,
    } = terms(caller, expected, &request.author, dry_run)?;
    let wanted = Wanted {
        document: wire::document::from_proto(document).map_err(|it| invalid_document(&it))?,
        mode,
        secrets: WantedSecrets {
            credentials: request.credentials.into_iter().collect(),
            refresh_tokens: request.refresh_tokens.into_iter().collect(),
            client_secrets: request.client_secrets.into_iter().collect(),
        },
        expected,
        dry_run,
        reseal: request.reseal,
        author,
    };
    let applied = admin.config.apply(wanted, &admin.view).await?;
    admin.recorder.adopt_credentials().await;
    Ok(proto::ApplyConfigurationResponse {
        version: applied.version,
        differences: applied.differences,
        warnings: applied.warnings.into_iter().map(warning).collect(),
        untouched: u32::try_from(applied.untouched.len()).unwrap_or(u32::MAX),
        untouched_subjects: applied
            .untouched
            .iter()
            .take(MAX_UNTOUCHED)
            .map(ToString::to_string)
            .collect(),
    })
}

fn warning(warning: Warning) -> proto::ConfigurationWarning {
    proto::ConfigurationWarning {
        code: warning.code.to_owned(),
        path: warning.field,
        message: warning.message,
    }
}

pub(super) async fn patch_settings(
    admin: &Admin,
    caller: &Caller,
    request: proto::PatchSettingsRequest,
) -> Result<proto::PatchSettingsResponse, Status> {
    let patch: Map<String, Value> = serde_json::from_str(&request.patch_json).map_err(|error| {
        Refusal::InvalidRequest.status(format!("patch_json must be a JSON object: {error}"))
    })?;
    let (expected, dry_run) = (request.expected_version, request.dry_run);
    let terms = terms(caller, expected, &request.author, dry_run)?;
    let applied = admin.config.patch_settings(&patch, &terms).await?;
    Ok(proto::PatchSettingsResponse {
        version: applied.version,
        differences: applied.differences,
    })
}

pub(super) async fn set_enabled(
    admin: &Admin,
    caller: &Caller,
    request: proto::SetConnectionEnabledRequest,
) -> Result<proto::SetConnectionEnabledResponse, Status> {
    let connection = name("connection", &request.connection, ConnectionId::new)?;
    let connection = connection
        .ok_or_else(|| invalid_member("connection", "connection is missing".to_owned()))?;
    let (expected, dry_run) = (request.expected_version, request.dry_run);
    let terms = terms(caller, expected, &request.author, dry_run)?;
    let set = admin
        .config
        .set_enabled(&connection, request.enabled, &terms);
    let applied = set.await?;
    Ok(proto::SetConnectionEnabledResponse {
        version: applied.version,
        differences: applied.differences,
    })
}

pub(super) async fn delete(
    admin: &Admin,
    caller: &Caller,
    request: proto::DeleteResourceRequest,
) -> Result<proto::DeleteResourceResponse, Status> {
    let kind = request.kind();
    let (expected, dry_run) = (request.expected_version, request.dry_run);
    let terms = terms(caller, expected, &request.author, dry_run)?;
    let resource = match kind {
        proto::ResourceKind::Provider => Resource::Provider(request.id),
        proto::ResourceKind::Connection => Resource::Connection(request.id),
        proto::ResourceKind::Combo => Resource::Combo(request.id),
        proto::ResourceKind::Key => Resource::Key(request.id),
        proto::ResourceKind::Unspecified => {
            return Err(invalid_member("kind", "kind is not known".to_owned()));
        }
    };
    let applied = admin.config.delete(&resource, &terms).await?;
    Ok(proto::DeleteResourceResponse {
        version: applied.version,
        differences: applied.differences,
    })
}
