//! `tidegatectl permit`.

use serde_json::json;
use tidegate_proto::admin::v1::ClearPermitsRequest;

use crate::cli::{Output, PermitCommand};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{print_value, write_line};

use super::get::state::{self, Of};

/// Shows permits, or forgets who holds them.
pub(crate) async fn run(
    client: &mut Client,
    command: PermitCommand,
    output: Output,
) -> Result<(), Failure> {
    match command {
        PermitCommand::List(of) => {
            let permits =
                state::permits(client, Of::provider(of.provider.as_deref()), output).await?;
            permits.print(output)
        }
        PermitCommand::Clear { connection } => {
            let (service, request) = client.call(ClearPermitsRequest { connection });
            let cleared = service.clear_permits(request).await?.into_inner().cleared;
            if !output.is_for_people() {
                return print_value(&json!({"cleared": cleared}), output);
            }
            write_line(&format!("cleared: {cleared}"))
        }
    }
}
