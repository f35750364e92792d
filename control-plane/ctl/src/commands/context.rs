//! `tidegatectl context`: asks no control plane.

use serde_json::json;

use crate::cli::{ConnectionArguments, ContextCommand, ContextSetArguments, Output};
use crate::contexts::{Context, Contexts};
use crate::failure::Failure;
use crate::output::{Listing, write_line};

/// Shows or changes contexts.
pub(crate) fn run(
    connection: ConnectionArguments,
    command: ContextCommand,
    output: Output,
) -> Result<(), Failure> {
    let path = Contexts::path().ok_or_else(|| {
        Failure::Input("neither TIDEGATE_CTL_CONFIG, XDG_CONFIG_HOME nor HOME is set".to_owned())
    })?;
    let mut contexts = Contexts::read(Some(&path))?;
    connection.tls.check()?;
    let said = match command {
        ContextCommand::List => return list(&contexts).print(output),
        ContextCommand::Set(ContextSetArguments { name }) => {
            let said = format!("context {name} is set");
            contexts.set(Context {
                name,
                control_plane: connection.control_plane.map(|it| it.to_string()),
                token_file: connection.token_file,
                ca_file: connection.tls.ca_file,
                cert_file: connection.tls.cert_file,
                key_file: connection.tls.key_file,
                tls_domain: connection.tls.tls_domain,
            });
            said
        }
        ContextCommand::Use { name } => {
            let said = format!("context {name} is the current one");
            contexts.choose(name)?;
            said
        }
        ContextCommand::Delete { name } => {
            contexts.delete(&name)?;
            format!("context {name} is forgotten")
        }
    };
    contexts.write(&path)?;
    write_line(&said)
}

fn list(contexts: &Contexts) -> Listing {
    let mut listing = Listing::new(&[
        "name",
        "current",
        "control plane",
        "token file",
        "ca file",
        "cert file",
        "key file",
        "tls domain",
    ])
    .narrowed_to(&["name", "current", "control plane", "token file", "ca file"]);
    for context in &contexts.contexts {
        listing.push(vec![
            json!(context.name),
            json!(contexts.current.as_ref() == Some(&context.name)),
            json!(context.control_plane),
            json!(context.token_file),
            json!(context.ca_file),
            json!(context.cert_file),
            json!(context.key_file),
            json!(context.tls_domain),
        ]);
    }
    listing
}
