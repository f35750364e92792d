//! `tidegatectl get KIND [NAME]`.
//!
//! A name that is given and means nothing is an error, whatever is listed; a name that is known, of which there is nothing to
//! list, is an empty list.

pub(crate) mod configured;
pub(crate) mod history;
pub(crate) mod queues;
pub(crate) mod state;

use crate::cli::{GetArguments, Kind, Output};
use crate::connect::Client;
use crate::failure::Failure;

use state::Of;

/// Lists one kind of thing.
pub(crate) async fn run(
    client: &mut Client,
    arguments: &GetArguments,
    output: Output,
) -> Result<(), Failure> {
    check(arguments)?;
    let name = arguments.name.as_deref();
    let of = Of {
        provider: arguments.provider.as_deref(),
        connection: name,
    };
    let listing = match arguments.kind {
        Kind::Providers => configured::providers(client, name, output).await?,
        Kind::Combos => configured::combos(client, name, output).await?,
        Kind::Keys => configured::keys(client, name, output).await?,
        Kind::Connections => state::connections(client, of, output).await?,
        Kind::Breakers => state::breakers(client, name.or(of.provider), output).await?,
        Kind::Cooldowns => state::cooldowns(client, of, output).await?,
        Kind::Lockouts => state::lockouts(client, of, output).await?,
        Kind::Leases => state::leases(client, of, output).await?,
        Kind::Permits => state::permits(client, of, output).await?,
        Kind::Pins => queues::pins(client, of, output).await?,
        Kind::Queues => queues::queues(client, of, output).await?,
        Kind::Transitions => history::transitions(client, arguments).await?,
        Kind::Events => history::events(client, arguments).await?,
    };
    listing.print(output)
}

/// Refuses what would be passed over.
fn check(arguments: &GetArguments) -> Result<(), Failure> {
    let GetArguments {
        kind,
        name,
        provider,
        limit,
        kinds,
        since,
    } = arguments;
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    match kind {
        Kind::Providers | Kind::Combos | Kind::Keys if provider.is_some() => {
            return usage("--provider is for state and history");
        }
        Kind::Breakers if name.is_some() && provider.is_some() && name != provider => {
            return usage("a breaker is a provider's: name one, by itself or with --provider");
        }
        _ => {}
    }
    if *kind != Kind::Events && !kinds.is_empty() {
        return usage("--kind is for events");
    }
    if !matches!(kind, Kind::Transitions | Kind::Events) && limit.is_some() {
        return usage("--limit is for transitions and events");
    }
    if *kind != Kind::Events && since.is_some() {
        return usage("--since is for events");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn arguments(kind: Kind, name: Option<&str>, provider: Option<&str>) -> GetArguments {
        GetArguments {
            kind,
            name: name.map(str::to_owned),
            provider: provider.map(str::to_owned),
            limit: None,
            kinds: Vec::new(),
            since: None,
        }
    }

    #[rstest]
    #[case::of_state(arguments(Kind::Cooldowns, Some("a"), Some("one")), true)]
    #[case::a_breaker_by_its_provider(arguments(Kind::Breakers, None, Some("one")), true)]
    #[case::a_breaker_said_twice(arguments(Kind::Breakers, Some("one"), Some("one")), true)]
    #[case::two_breakers(arguments(Kind::Breakers, Some("one"), Some("two")), false)]
    #[case::keys_of_a_provider(arguments(Kind::Keys, None, Some("one")), false)]
    #[case::kinds_of_events(GetArguments { kinds: vec!["lock".to_owned()], ..arguments(Kind::Events, None, None) }, true)]
    #[case::kinds_of_transitions(GetArguments { kinds: vec!["lock".to_owned()], ..arguments(Kind::Transitions, None, None) }, false)]
    #[case::newest_transitions(GetArguments { limit: Some(5), ..arguments(Kind::Transitions, None, None) }, true)]
    #[case::first_connections(GetArguments { limit: Some(5), ..arguments(Kind::Connections, None, None) }, false)]
    #[case::leases_since(GetArguments { since: Some(std::time::Duration::ZERO), ..arguments(Kind::Leases, None, None) }, false)]
    fn what_would_be_passed_over_is_refused(#[case] arguments: GetArguments, #[case] good: bool) {
        let checked = check(&arguments);
        assert_eq!(checked.is_ok(), good);
        if let Err(refused) = checked {
            assert_eq!(refused.exit_code(), 64);
        }
    }
}
