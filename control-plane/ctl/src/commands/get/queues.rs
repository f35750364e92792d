//! Queues of connections, and pins of sessions to them.

use serde_json::json;
use tidegate_proto::admin::v1::{ConnectionQueue, ListPinsRequest, ListQueuesRequest, SessionPin};

use super::state::{Of, time_left};
use crate::cli::Output;
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Column, Listing, moment_value, remaining};
use crate::pages::read_all;

const QUEUES: &[Column<ConnectionQueue>] = &[
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("per minute", |it, _| json!(it.requests_per_minute)),
    Column::new("apart ms", |it, _| json!(it.min_time_between_requests_ms)),
    Column::new("at once", |it, _| json!(it.concurrent_requests)),
    Column::wide("depth", |it, _| json!(it.max_queue_depth)),
    Column::new("running", |it, _| json!(it.running)),
    Column::new("waiting", |it, output| {
        let waiting = it.waiting.iter().map(|waiter| {
            if output.is_for_people() {
                let oldest = remaining(Some(waiter.oldest_ms));
                return json!(format!("{oldest} at {}", waiter.incarnation));
            }
            json!({"incarnation": waiter.incarnation, "oldestMs": waiter.oldest_ms})
        });
        waiting.collect()
    }),
    Column::new("spent", |it, output| {
        let spent = it.spent.iter().map(|spent| {
            if output.is_for_people() {
                let left = remaining(Some(spent.remaining_ms));
                return json!(format!("{} {left}", spent.model));
            }
            json!({"model": spent.model, "remainingMs": spent.remaining_ms})
        });
        spent.collect()
    }),
    Column::wide("stale", |it, _| json!(it.stale)),
];

/// Queues of connections that have one.
pub(crate) async fn queues(
    client: &mut Client,
    of: Of<'_>,
    output: Output,
) -> Result<Listing, Failure> {
    let queues = read_all!(
        client,
        list_queues,
        queues,
        ListQueuesRequest {
            provider: of.provider_text(),
            connection: of.connection_text(),
        }
    )?;
    Ok(Listing::of(&queues, QUEUES, output))
}

const PINS: &[Column<SessionPin>] = &[
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("session", |it, _| json!(it.session_prefix)),
    Column::new("remaining", |it, output| {
        time_left(Some(it.remaining_ms), output)
    }),
    Column::wide("since", |it, _| moment_value(Some(it.created_at_unix_ms))),
    Column::wide("expires", |it, _| moment_value(Some(it.expires_at_unix_ms))),
];

/// Pins of sessions.
pub(crate) async fn pins(
    client: &mut Client,
    of: Of<'_>,
    output: Output,
) -> Result<Listing, Failure> {
    let pins = read_all!(
        client,
        list_pins,
        pins,
        ListPinsRequest {
            provider: of.provider_text(),
            connection: of.connection_text(),
        }
    )?;
    Ok(Listing::of(&pins, PINS, output))
}
