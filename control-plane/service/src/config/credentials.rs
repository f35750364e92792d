//! Credentials between the durable store, where they are sealed, and the snapshot, where they are not.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::ids::ConnectionId;
use tidegate_proto::config::v1 as proto;
use tidegate_store::durable::SealedCredential;
use tidegate_store::seal::Sealer;

/// A credential in the clear. Shows no secret when printed and is wiped when dropped.
#[derive(Debug)]
pub(crate) struct Credential {
    /// Grows by one with each new secret of the connection.
    pub(crate) version: u64,
    /// The version an operator last applied; what is above it was renewed since.
    pub(crate) applied_version: u64,
    secret: SecretString,
}

impl Credential {
    /// As an authenticated data plane gets it.
    pub(crate) fn to_proto(&self, connection: &ConnectionId) -> proto::Credential {
        proto::Credential {
            connection: connection.to_string(),
            version: self.version,
            secret: self.secret_bytes().to_vec(),
        }
    }

    /// The secret, for a header.
    pub(crate) fn secret(&self) -> &SecretString {
        &self.secret
    }

    fn secret_bytes(&self) -> &[u8] {
        self.secret.expose_secret().as_bytes()
    }
}

/// All credentials as an authenticated data plane gets them.
pub(super) fn to_proto(credentials: &BTreeMap<ConnectionId, Credential>) -> Vec<proto::Credential> {
    credentials
        .iter()
        .map(|(connection, credential)| credential.to_proto(connection))
        .collect()
}

/// Opens all credentials; the reason names the connection and never a secret.
pub(super) fn open(
    sealer: &Sealer,
    sealed: &[SealedCredential],
) -> Result<BTreeMap<ConnectionId, Credential>, String> {
    sealed
        .iter()
        .map(|sealed| match sealer.open(sealed) {
            Ok(secret) => Ok((
                sealed.connection.clone(),
                Credential {
                    version: sealed.version,
                    applied_version: sealed.applied_version,
                    secret,
                },
            )),
            Err(error) => Err(format!("{}: {error}", sealed.connection)),
        })
        .collect()
}
