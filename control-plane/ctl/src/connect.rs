//! The channel to the control plane.

use secrecy::SecretString;
use tidegate_plane_client::endpoint::{self, Address, ChannelSettings, PlaneChannel, TlsSettings};
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;

use crate::cli::ConnectionArguments;
use crate::failure::Failure;

/// The token's variable, used when no file is named.
const TOKEN_VARIABLE: &str = "TIDEGATE_ADMIN_TOKEN";
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
}

/// Prepares a client; the connection is made by the first call.
pub(crate) fn connect(arguments: &ConnectionArguments) -> Result<Client, Failure> {
    let read = |path: &std::path::Path| {
        std::fs::read_to_string(path)
            .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
    };
    let token = match &arguments.token_file {
        Some(path) => Some(read(path)?),
        None => std::env::var(TOKEN_VARIABLE).ok(),
    };
    let token = token
        .map(|token| token.trim().to_owned())
        .filter(|token| !token.is_empty())
        .map(SecretString::from);
    let tls = match &arguments.ca_file {
        Some(path) => Some(TlsSettings {
            ca_certificate: Some(read(path)?.into_bytes()),
            ..TlsSettings::default()
        }),
        None => None,
    };
    let settings = ChannelSettings {
        connect_timeout: arguments.timeout,
        ..ChannelSettings::default()
    };
    let address = Address::Tcp(arguments.control_plane.clone());
    let channel = endpoint::channel(&address, &settings, tls.as_ref(), token.as_ref())
        .map_err(|error| Failure::Input(error.to_string()))?;
    Ok(Client {
        admin: AdminServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
        timeout: arguments.timeout,
    })
}
