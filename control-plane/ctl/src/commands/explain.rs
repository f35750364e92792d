//! `tidegatectl explain MODEL`.

use std::path::Path;

use serde_json::{Value, json};
use tidegate_core::config::Protocol;
use tidegate_core::routing::body;
use tidegate_proto::admin::v1::{ExplainRequest, ExplainResponse};
use tidegate_proto::common::v1::Exclusion;
use tidegate_proto::routing::v1::RequestFacts;
use tidegate_wire::routing::facts_to_proto;

use crate::cli::{ExplainArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, moment, print_value, remaining, write_line};

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
        body,
    } = arguments;
    let facts = body
        .map(|path| facts_of(&path, key.as_deref()))
        .transpose()?;
    let (service, request) = client.call(ExplainRequest {
        facts,
        model,
        key_id: key.unwrap_or_default(),
        protocol: protocol.unwrap_or_default(),
        egress: egress.unwrap_or_default(),
    });
    let explained = service.explain(request).await?.into_inner();
    if output != Output::Table {
        return print_value(&as_value(&explained), output);
    }
    let mut listing = Listing::new(&["", "provider", "connection", "model", "why not", "until"]);
    for target in &explained.targets {
        let sign = match (target.chosen, target.exclusions.is_empty()) {
            (true, _) => "->",
            (false, true) => "ok",
            (false, false) => "x",
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
    match explained.code.as_str() {
        "" => write_line(&format!("\n{}", explained.decision))?,
        code => write_line(&format!(
            "\n{}: {code}: {}",
            explained.decision, explained.message
        ))?,
    }
    Ok(())
}

/// What the body of a request says, read as a data plane reads it.
fn facts_of(path: &Path, key: Option<&str>) -> Result<RequestFacts, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    let body = body::read(&text)
        .map_err(|error| Failure::Input(format!("{}: no JSON: {error}", path.display())))?;
    let facts = tidegate_core::routing::RequestFacts::new(String::new(), Protocol::Openai);
    Ok(facts_to_proto(&facts.with_body(&body, key), false))
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

fn as_value(explained: &ExplainResponse) -> Value {
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
