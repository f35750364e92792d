//! `tidegatectl explain MODEL`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};
use tidegate_core::config::Protocol;
use tidegate_core::routing::body::{self, BodyFacts};
use tidegate_core::session_key::SessionKey;
use tidegate_proto::admin::v1::{ExplainRequest, ExplainResponse};
use tidegate_proto::common::v1::Exclusion;
use tidegate_proto::routing::v1::RequestFacts;
use tidegate_wire::routing::facts_to_proto;

use crate::cli::{ExplainArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, moment, print_value, remaining, write_line};

/// Longest body, in bytes: what data planes take unless they are told otherwise.
const MAX_BODY_BYTES: u64 = 10 * 1024 * 1024;
/// What the control plane says of a name that means nothing.
const NO_SUCH_MODEL: &str = "model_not_found";

/// Tells where a request would go.
pub(crate) async fn run(
    client: &mut Client,
    arguments: ExplainArguments,
    output: Output,
) -> Result<(), Failure> {
    let ExplainArguments {
        model,
        key,
        protocol,
        egress,
        session,
        body,
    } = arguments;
    let session = session.as_deref().map(session_of).transpose()?;
    let facts = match (body, session) {
        (None, None) => None,
        (body, session) => Some(facts_of(body.as_deref(), key.as_deref(), session)?),
    };
    let (service, request) = client.call(ExplainRequest {
        facts,
        model,
        key_id: key.unwrap_or_default(),
        protocol: protocol.unwrap_or_default(),
        egress: egress.unwrap_or_default(),
    });
    let explained = service.explain(request).await?.into_inner();
    if !output.is_for_people() {
        print_value(&as_value(&explained), output)?;
        return is_known(&explained);
    }
    let mut listing = Listing::new(&["", "provider", "connection", "model", "why not", "until"]);
    for target in &explained.targets {
        let sign = match (target.chosen, target.exclusions.is_empty()) {
            (true, _) => "->",
            (false, true) => "ok",
            (false, false) => "x",
        };
        let sign = if target.pinned {
            format!("{sign} pinned")
        } else {
            sign.to_owned()
        };
        let reasons: Vec<String> = target.exclusions.iter().map(reason).collect();
        let ends: Vec<String> = target.exclusions.iter().map(end).collect();
        listing.push(vec![
            json!(sign),
            json!(target.provider),
            json!(target.connection),
            json!(target.model),
            json!(reasons),
            json!(ends),
        ]);
    }
    listing.print(output)?;
    write_line(&format!("\n{}", conclusion(&explained)))?;
    is_known(&explained)
}

/// What would be done, with its code and its words where it has any.
fn conclusion(explained: &ExplainResponse) -> String {
    let ExplainResponse {
        decision,
        code,
        message,
        ..
    } = explained;
    let parts = [decision, code, message].map(String::as_str);
    let said: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    said.join(": ")
}

/// A name that means nothing is a fault of who asks, as everywhere else.
fn is_known(explained: &ExplainResponse) -> Result<(), Failure> {
    if explained.code == NO_SUCH_MODEL {
        return Err(Failure::Input(explained.message.clone()));
    }
    Ok(())
}

/// What the body of a request says, read as a data plane reads it.
fn facts_of(
    path: Option<&Path>,
    key: Option<&str>,
    session_key: Option<SessionKey>,
) -> Result<RequestFacts, Failure> {
    let facts = tidegate_core::routing::RequestFacts {
        session_key,
        ..tidegate_core::routing::RequestFacts::new(String::new(), Protocol::Openai)
    };
    let facts = match path {
        None => facts,
        Some(path) => facts.with_body(&body_of(path)?, key),
    };
    Ok(facts_to_proto(&facts, false))
}

/// The session that a header of this value names.
fn session_of(id: &str) -> Result<SessionKey, Failure> {
    SessionKey::of_headers(|_| Some(id.as_bytes()))
        .ok_or_else(|| Failure::Input("--session: no usable id of a session".to_owned()))
}

fn body_of(path: &Path) -> Result<BodyFacts, Failure> {
    let refused = |why: String| Failure::Input(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    let mut text = String::new();
    file.take(MAX_BODY_BYTES.saturating_add(1))
        .read_to_string(&mut text)
        .map_err(|error| refused(error.to_string()))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_BODY_BYTES {
        return Err(refused(format!("longer than {MAX_BODY_BYTES} bytes")));
    }
    let body = body::read(&text).map_err(|error| refused(format!("no JSON: {error}")))?;
    body::check_shape(&text).map_err(|fault| refused(fault.to_string()))?;
    Ok(body)
}

fn reason(exclusion: &Exclusion) -> String {
    let mut why = exclusion.cause.clone();
    if !exclusion.rule.is_empty() {
        why = format!("{why} by rule {}", exclusion.rule);
    }
    if let Some(status) = exclusion.original_status {
        why = format!("{why}, upstream said {status}");
    }
    if why.is_empty() {
        exclusion.reason.clone()
    } else {
        format!("{} ({})", exclusion.reason, why.trim_start())
    }
}

fn end(exclusion: &Exclusion) -> String {
    match exclusion.until_unix_ms {
        Some(until) => format!(
            "{} (in {})",
            moment(Some(until)),
            remaining(exclusion.remaining_ms)
        ),
        None => "-".to_owned(),
    }
}

pub(super) fn as_value(explained: &ExplainResponse) -> Value {
    let targets: Vec<Value> = explained
        .targets
        .iter()
        .map(|target| {
            let exclusions: Vec<Value> = target
                .exclusions
                .iter()
                .map(|exclusion| {
                    json!({
                        "reason": exclusion.reason,
                        "cause": exclusion.cause,
                        "rule": exclusion.rule,
                        "originalStatus": exclusion.original_status,
                        "remainingMs": exclusion.remaining_ms,
                        "untilUnixMs": exclusion.until_unix_ms,
                    })
                })
                .collect();
            json!({
                "provider": target.provider,
                "connection": target.connection,
                "model": target.model,
                "chosen": target.chosen,
                "pinned": target.pinned,
                "exclusions": exclusions,
            })
        })
        .collect();
    json!({
        "decision": explained.decision,
        "code": explained.code,
        "message": explained.message,
        "targets": targets,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn refusal_of(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("body.json");
        std::fs::write(&path, text).unwrap();
        facts_of(Some(&path), None, None).unwrap_err().to_string()
    }

    #[rstest]
    #[case::array("[{}]".to_owned(), "must be a JSON object")]
    #[case::text("\"hi\"".to_owned(), "must be a JSON object")]
    #[case::no_json("{".to_owned(), "no JSON")]
    #[case::deep(format!("{{\"a\":{}{}}}", "[".repeat(128), "]".repeat(128)), "nested deeper than 128")]
    #[case::long(format!("{{\"a\":\"{}\"}}", "x".repeat(10 * 1024 * 1024)), "longer than 10485760 bytes")]
    fn a_body_that_no_data_plane_takes_is_refused(#[case] text: String, #[case] why: &str) {
        let refusal = refusal_of(&text);
        assert!(refusal.contains(why), "{refusal}");
    }

    #[rstest]
    #[case::listed("dispatch", "", "", "dispatch")]
    #[case::not_listed("dispatch", "", "would go there", "dispatch: would go there")]
    #[case::wait("wait", "", "would wait 5 ms", "wait: would wait 5 ms")]
    #[case::reject("reject", "code", "why", "reject: code: why")]
    fn a_conclusion_says_all_that_is_known(
        #[case] decision: &str,
        #[case] code: &str,
        #[case] message: &str,
        #[case] expected: &str,
    ) {
        let [decision, code, message] = [decision, code, message].map(str::to_owned);
        let explained = ExplainResponse {
            decision,
            code,
            message,
            ..ExplainResponse::default()
        };
        assert_eq!(conclusion(&explained), expected);
    }

    #[test]
    fn a_name_that_means_nothing_is_a_failure() {
        let mut explained = ExplainResponse::default();
        assert!(is_known(&explained).is_ok());
        explained.code = "no_executable_targets".to_owned();
        assert!(is_known(&explained).is_ok(), "an answer like any other");
        explained.code = "model_not_found".to_owned();
        assert_eq!(is_known(&explained).unwrap_err().exit_code(), 65);
    }
}
