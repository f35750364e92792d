//! `tidegatectl lease`.

use serde_json::json;
use tidegate_proto::admin::v1::EndLeaseRequest;

use crate::cli::{LeaseCommand, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{print_value, write_line};

use super::get::state::{self, Of};

/// Shows leases, or ends one.
pub(crate) async fn run(
    client: &mut Client,
    command: LeaseCommand,
    output: Output,
) -> Result<(), Failure> {
    match command {
        LeaseCommand::List(of) => {
            let leases =
                state::leases(client, Of::provider(of.provider.as_deref()), output).await?;
            leases.print(output)
        }
        LeaseCommand::End {
            connection,
            generation,
        } => {
            let (service, request) = client.call(EndLeaseRequest {
                connection: connection.clone(),
                generation,
            });
            let ended = service.end_lease(request).await?.into_inner().ended;
            if !output.is_for_people() {
                return print_value(&json!({"ended": ended.is_some()}), output);
            }
            match ended {
                Some(lease) => write_line(&format!(
                    "ended: {} of key {}, generation {}",
                    lease.connection, lease.key_id, lease.generation
                )),
                None => write_line(&format!("{connection} has no such lease")),
            }
        }
    }
}
