//! `tidegatectl ban CONNECTION` and `unban CONNECTION`.

use tidegate_proto::admin::v1::{ResetRequest, ResetScope, SetConnectionEnabledRequest};

use crate::cli::{BanArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{write_differences, write_line};

/// Switches a connection off.
pub(crate) async fn ban(
    client: &mut Client,
    arguments: BanArguments,
    output: Output,
) -> Result<(), Failure> {
    set(client, arguments, false, output).await
}

/// Switches a connection on and ends what excludes it: cooldown, model locks, a terminal state.
pub(crate) async fn unban(
    client: &mut Client,
    arguments: BanArguments,
    output: Output,
) -> Result<(), Failure> {
    let (connection, dry_run) = (arguments.connection.clone(), arguments.change.dry_run);
    set(client, arguments, true, output).await?;
    if dry_run {
        return Ok(());
    }
    let (service, request) = client.call(ResetRequest {
        scope: ResetScope::All.into(),
        connection,
        ..ResetRequest::default()
    });
    let count = service.reset(request).await?.into_inner().reset_count;
    if output.is_for_people() {
        write_line(&format!("reset: {count}"))?;
    }
    Ok(())
}

async fn set(
    client: &mut Client,
    arguments: BanArguments,
    enabled: bool,
    output: Output,
) -> Result<(), Failure> {
    let BanArguments { connection, change } = arguments;
    let dry_run = change.dry_run;
    let (service, request) = client.call(SetConnectionEnabledRequest {
        connection,
        enabled,
        expected_version: change.expected_version,
        author: change.author,
        dry_run,
    });
    let done = service.set_connection_enabled(request).await?.into_inner();
    write_differences(done.version, &done.differences, &[], dry_run, output)
}
