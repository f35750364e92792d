//! `tidegatectl reset SCOPE`.

use serde_json::json;
use tidegate_proto::admin::v1::{ResetRequest, ResetScope};

use crate::cli::{Output, ResetArguments, Scope};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{print_value, write_line};

/// Ends states by hand.
pub(crate) async fn run(
    client: &mut Client,
    arguments: ResetArguments,
    output: Output,
) -> Result<(), Failure> {
    let ResetArguments {
        scope,
        provider,
        connection,
        model,
    } = arguments;
    let everything_of_one = connection.is_some() || model.is_some();
    let scope = match scope.unwrap_or(if everything_of_one {
        Scope::All
    } else {
        Scope::Breakers
    }) {
        Scope::Breakers => ResetScope::Breakers,
        Scope::Cooldowns => ResetScope::Cooldowns,
        Scope::Lockouts => ResetScope::Lockouts,
        Scope::All => ResetScope::All,
    };
    let (service, request) = client.call(ResetRequest {
        scope: scope.into(),
        provider: provider.unwrap_or_default(),
        connection: connection.unwrap_or_default(),
        model: model.unwrap_or_default(),
    });
    let answer = service.reset(request).await?.into_inner();
    if !output.is_for_people() {
        return print_value(
            &json!({"resetCount": answer.reset_count, "checkpointed": answer.checkpointed}),
            output,
        );
    }
    write_line(&format!("reset: {}", answer.reset_count))?;
    if !answer.checkpointed {
        write_line("note: not yet in the durable checkpoint")?;
    }
    Ok(())
}
