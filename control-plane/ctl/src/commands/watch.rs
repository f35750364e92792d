//! `tidegatectl watch`: one line for each event, or one JSON object or YAML document.

mod known;

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_proto::admin::v1::watch_events_response::What;
use tidegate_proto::admin::v1::{Event, EventFilter, WatchEventsRequest};
use tonic::{Code, Status};

use super::get::history::{self, Found};
use crate::cli::{EventArguments, Output, WatchArguments};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{moment, moment_value, print_value, printable, write_line};

use known::Known;

/// Before a watch that ended is begun anew.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Most events that are read after a gap: a page.
const MAX_RECENT: u32 = 1_000;

/// The filter that arguments say.
pub(crate) fn filter(arguments: EventArguments) -> EventFilter {
    EventFilter {
        kinds: arguments.kind,
        provider: arguments.provider.unwrap_or_default(),
        connection: arguments.connection.unwrap_or_default(),
    }
}

/// Shows events until interrupted, or as many as were asked for. A watch that ends, as each does after some minutes, is begun
/// anew, and what was stored meanwhile is read; only the first beginning, and a refusal, fail.
pub(crate) async fn run(
    client: &mut Client,
    arguments: WatchArguments,
    output: Output,
) -> Result<(), Failure> {
    let filter = filter(arguments.filter);
    let mut watch = Watch {
        client,
        filter,
        output,
        left: arguments.count,
        known: Known::default(),
        has_begun: false,
        pause: FIRST_PAUSE,
    };
    loop {
        let ended = watch.follow().await;
        match ended {
            Err(failure) if watch.has_begun && may_pass(&failure) => {
                if watch.pause > FIRST_PAUSE {
                    eprintln!("note: the watch is interrupted, and tried again: {failure}");
                }
                tokio::time::sleep(watch.pause).await;
                watch.pause = watch.pause.saturating_mul(2).min(MAX_PAUSE);
            }
            ended => return ended,
        }
    }
}

struct Watch<'a> {
    client: &'a mut Client,
    filter: EventFilter,
    output: Output,
    /// How many events are still to be shown.
    left: Option<u64>,
    known: Known,
    has_begun: bool,
    pause: Duration,
}

impl Watch<'_> {
    /// One watch to its end.
    async fn follow(&mut self) -> Result<(), Failure> {
        let (service, limit) = self.client.endless();
        let begun = service.watch_events(WatchEventsRequest {
            filter: Some(self.filter.clone()),
        });
        let late = || Status::deadline_exceeded("the watch did not begin in time");
        let begun = tokio::time::timeout(limit, begun).await;
        let mut events = begun.map_err(|_elapsed| late())??.into_inner();
        while self.left != Some(0) {
            let Some(message) = events.message().await? else {
                return Err(Status::unavailable("the watch was ended by the control plane").into());
            };
            match message.what {
                Some(What::Event(event)) if self.known.was_filled(&event) => {}
                Some(What::Event(event)) => self.tell(event)?,
                Some(What::Lagged(lagged)) => show_missed(lagged.missed, self.output)?,
                Some(What::Began(_)) => self.begin().await?,
                None => {}
            }
        }
        Ok(())
    }

    /// Everything that is stored from now on is told. What was stored before is known the first time, and told later on.
    ///
    /// How far history was read is where the next gap begins, though nothing of it passed the filter: what is rare would be
    /// looked for in all that ever happened. That is asked for before the list is read, which then has all of it.
    async fn begin(&mut self) -> Result<(), Failure> {
        let everything = EventFilter::default();
        let newest = history::read(self.client, &everything, 0, 1).await?;
        let newest = newest.first().map_or(0, |newest| newest.at_unix_ms);
        if self.has_begun {
            let Found { events, goes_on } = self.recent().await?;
            if goes_on || events.len() >= usize::try_from(MAX_RECENT).unwrap_or(usize::MAX) {
                eprintln!("note: more happened meanwhile: `tidegatectl get events` has it");
            }
            for event in self.known.news(events) {
                if self.left != Some(0) {
                    self.tell(event)?;
                }
            }
            self.known.begin_at(newest);
        } else {
            self.known.begin_at(newest);
            for event in self.recent().await?.events.into_iter().rev() {
                self.known.note(event);
            }
            self.has_begun = true;
            if self.output.is_for_people() {
                write_line("watching")?;
            }
        }
        self.pause = FIRST_PAUSE;
        Ok(())
    }

    /// What was stored lately.
    async fn recent(&mut self) -> Result<Found, Failure> {
        history::look_through(self.client, &self.filter, self.known.since(), MAX_RECENT).await
    }

    fn tell(&mut self, event: Event) -> Result<(), Failure> {
        show(&event, self.output)?;
        self.known.note(event);
        self.left = self.left.map(|left| left.saturating_sub(1));
        Ok(())
    }
}

/// Whether to try again may help.
fn may_pass(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(status) => !matches!(
            status.code(),
            Code::InvalidArgument
                | Code::NotFound
                | Code::Unauthenticated
                | Code::PermissionDenied
                | Code::Unimplemented
        ),
        Failure::Usage(_)
        | Failure::Input(_)
        | Failure::Output(_)
        | Failure::Differs
        | Failure::Closed => false,
        // Said only once the command is over.
        Failure::Unreached { .. } => false,
    }
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
mod tests;
