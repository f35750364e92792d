//! The channel to the control plane: what is said on the command line or in the environment, else by the context.

use std::path::Path;

use secrecy::SecretString;
use tidegate_plane_client::endpoint::{self, Address, ChannelSettings, PlaneChannel, TlsSettings};
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;

use crate::cli::ConnectionArguments;
use crate::contexts::Contexts;
use crate::failure::Failure;

/// The token's variable, used when no file is named.
const TOKEN_VARIABLE: &str = "TIDEGATE_ADMIN_TOKEN";
/// Where a control plane is when nobody says so.
const DEFAULT_CONTROL_PLANE: &str = "http://127.0.0.1:7400";
/// Largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// A client of the administration API with a time limit for each call.
#[derive(Debug)]
pub(crate) struct Client {
    admin: AdminServiceClient<PlaneChannel>,
    timeout: std::time::Duration,
}

impl Client {
    /// A request with the time limit, and the service to send it with.
    pub(crate) fn call<T>(
        &mut self,
        message: T,
    ) -> (&mut AdminServiceClient<PlaneChannel>, tonic::Request<T>) {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.timeout);
        (&mut self.admin, request)
    }

    /// The service, for a call that goes on until somebody ends it, and how long its beginning may take.
    pub(crate) fn endless(
        &mut self,
    ) -> (&mut AdminServiceClient<PlaneChannel>, std::time::Duration) {
        (&mut self.admin, self.timeout)
    }
}

/// Prepares a client; the connection is made by the first call.
pub(crate) fn connect(arguments: ConnectionArguments) -> Result<Client, Failure> {
    let ConnectionArguments {
        context,
        control_plane,
        token_file,
        ca_file,
        timeout,
    } = arguments;
    let contexts = Contexts::read(Contexts::path().as_deref())?;
    let context = contexts.chosen(context.as_deref())?;
    let given = std::env::var(TOKEN_VARIABLE).ok();
    let given = given.filter(|token| !token.trim().is_empty());
    let token = match (token_file, given) {
        (Some(path), _) => Some(read(&path)?),
        (None, Some(token)) => Some(token),
        (None, None) => {
            let path = context.and_then(|it| it.token_file.as_deref());
            path.map(read).transpose()?
        }
    };
    let token = token
        .map(|token| token.trim().to_owned())
        .filter(|token| !token.is_empty())
        .map(SecretString::from);
    let ca_file = ca_file.or_else(|| context.and_then(|it| it.ca_file.clone()));
    let tls = match ca_file {
        Some(path) => Some(TlsSettings {
            ca_certificate: Some(read(&path)?.into_bytes()),
            ..TlsSettings::default()
        }),
        None => None,
    };
    let control_plane = match control_plane {
        Some(address) => address,
        None => {
            let address = context.and_then(|it| it.control_plane.as_deref());
            let address = address.unwrap_or(DEFAULT_CONTROL_PLANE);
            address
                .parse()
                .map_err(|error| Failure::Input(format!("{address}: {error}")))?
        }
    };
    let settings = ChannelSettings {
        connect_timeout: timeout,
        ..ChannelSettings::default()
    };
    let address = Address::Tcp(control_plane);
    let channel = endpoint::channel(&address, &settings, tls.as_ref(), token.as_ref())
        .map_err(|error| Failure::Input(error.to_string()))?;
    Ok(Client {
        admin: AdminServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
        timeout,
    })
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}
