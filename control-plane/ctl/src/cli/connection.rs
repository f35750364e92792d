//! Which control plane is called, and how.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tidegate_plane_client::endpoint::parse_address;

#[derive(Debug, Args)]
pub(crate) struct ConnectionArguments {
    /// Context of the configuration file to use, instead of its current one.
    #[arg(long, global = true, env = "TIDEGATE_CONTEXT")]
    pub(crate) context: Option<String>,

    /// Control plane, as http://host:port or https://host:port; else the context's, else http://127.0.0.1:7400.
    #[arg(long, global = true, env = "TIDEGATE_CONTROL_PLANE", value_parser = parse_address)]
    pub(crate) control_plane: Option<http::Uri>,

    /// File that holds the bearer token; else the file of a context that is named is used, else the variable
    /// `TIDEGATE_ADMIN_TOKEN`, else the file of the current context. A context's is only for the context's own address.
    #[arg(long, global = true, env = "TIDEGATE_ADMIN_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) tls: TlsArguments,

    /// Give up a call after this long.
    #[arg(long, global = true, default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: std::time::Duration,
}

/// How both sides know each other over https.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct TlsArguments {
    /// PEM file with who signed the control plane's certificate; else the context's, else the roots of the web.
    #[arg(long, global = true, env = "TIDEGATE_CA_FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// PEM file with the certificate that is shown to the control plane; needs --key-file. Else the context's.
    #[arg(long, global = true, env = "TIDEGATE_CERT_FILE")]
    pub(crate) cert_file: Option<PathBuf>,

    /// PEM file with the key of that certificate.
    #[arg(long, global = true, env = "TIDEGATE_KEY_FILE")]
    pub(crate) key_file: Option<PathBuf>,

    /// Name that the control plane's certificate must bear, instead of the host that is called, as through a forwarded
    /// port; else the context's.
    #[arg(long, global = true, env = "TIDEGATE_TLS_DOMAIN", value_name = "NAME")]
    pub(crate) tls_domain: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Show all contexts.
    List,
    /// Make a context, or change the members that are given.
    Set(ContextSetArguments),
    /// Make a context the current one.
    Use {
        /// Its name.
        name: String,
    },
    /// Forget a context.
    Delete {
        /// Its name.
        name: String,
    },
}

/// The control plane, the files and the name are those of `--control-plane`, `--token-file`, `--ca-file`, `--cert-file`,
/// `--key-file` and `--tls-domain`.
#[derive(Debug, Args)]
pub(crate) struct ContextSetArguments {
    /// Its name.
    pub(crate) name: String,
}
