//! `tidegatectl watch`: one line for each event, or one JSON object or YAML document.

use serde_json::{Value, json};
use tidegate_proto::admin::v1::watch_events_response::What;
use tidegate_proto::admin::v1::{Event, EventFilter, WatchEventsRequest};
use tonic::Status;

use crate::cli::{EventArguments, Output, WatchArguments};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{moment, moment_value, print_value, printable, write_line};

/// The filter that arguments say.
pub(crate) fn filter(arguments: EventArguments) -> EventFilter {
    EventFilter {
        kinds: arguments.kind,
        provider: arguments.provider.unwrap_or_default(),
        connection: arguments.connection.unwrap_or_default(),
    }
}

/// Shows events until interrupted, or as many as were asked for.
pub(crate) async fn run(
    client: &mut Client,
    arguments: WatchArguments,
    output: Output,
) -> Result<(), Failure> {
    let WatchArguments {
        filter: wanted,
        count,
    } = arguments;
    let mut left = count;
    let (service, limit) = client.endless();
    let begun = service.watch_events(WatchEventsRequest {
        filter: Some(filter(wanted)),
    });
    let late = || Status::deadline_exceeded("the watch did not begin in time");
    let begun = tokio::time::timeout(limit, begun).await;
    let mut events = begun.map_err(|_elapsed| late())??.into_inner();
    while left != Some(0) {
        let Some(message) = events.message().await? else {
            return Err(Status::unavailable("the watch was ended by the control plane").into());
        };
        match message.what {
            Some(What::Event(event)) => {
                show(&event, output)?;
                left = left.map(|left| left.saturating_sub(1));
            }
            Some(What::Lagged(lagged)) => show_missed(lagged.missed, output)?,
            Some(What::Began(_)) if output.is_for_people() => write_line("watching")?,
            Some(What::Began(_)) | None => {}
        }
    }
    Ok(())
}

fn show(event: &Event, output: Output) -> Result<(), Failure> {
    if output.is_for_people() {
        return write_line(&line(event));
    }
    show_value(&as_value(event), output)
}

fn show_missed(missed: u64, output: Output) -> Result<(), Failure> {
    if output.is_for_people() {
        return write_line(&format!(
            "! {missed} events were missed: `tidegatectl get events` has them"
        ));
    }
    show_value(&json!({"missed": missed}), output)
}

/// One line for JSON, so that programs can read line by line.
fn show_value(value: &Value, output: Output) -> Result<(), Failure> {
    match output {
        Output::Table | Output::Wide | Output::Json => write_line(&value.to_string()),
        Output::Yaml => {
            write_line("---")?;
            print_value(value, output)
        }
    }
}

/// An event for people.
fn line(event: &Event) -> String {
    let mut words = vec![moment(Some(event.at_unix_ms)), event.kind.clone()];
    let of = [&event.provider, &event.connection]
        .into_iter()
        .filter(|name| !name.is_empty())
        .cloned();
    let of: Vec<String> = of.collect();
    if !of.is_empty() {
        words.push(of.join("/"));
    }
    words.push(event.description.clone());
    if !event.author.is_empty() {
        words.push(format!("(by {})", event.author));
    }
    words.join("  ").chars().map(printable).collect()
}

/// An event for programs.
pub(crate) fn as_value(event: &Event) -> Value {
    json!({
        "at": moment_value(Some(event.at_unix_ms)),
        "atUnixMs": event.at_unix_ms,
        "kind": event.kind,
        "provider": event.provider,
        "connection": event.connection,
        "description": event.description,
        "attempt": event.attempt,
        "rule": event.rule,
        "upstreamSaid": event.original_status,
        "author": event.author,
        "configurationVersion": event.configuration_version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_cannot_steer_a_terminal() {
        let event = Event {
            at_unix_ms: 0,
            kind: "configuration".to_owned(),
            description: "settings: a\nb".to_owned(),
            author: "admin ada".to_owned(),
            ..Event::default()
        };
        assert_eq!(
            line(&event),
            "1970-01-01T00:00:00Z  configuration  settings: a\u{fffd}b  (by admin ada)"
        );
        let event = Event {
            kind: "lock".to_owned(),
            provider: "p".to_owned(),
            connection: "c".to_owned(),
            description: "m".to_owned(),
            ..Event::default()
        };
        assert_eq!(line(&event), "1970-01-01T00:00:00Z  lock  p/c  m");
    }
}
