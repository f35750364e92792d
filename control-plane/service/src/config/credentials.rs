//! Credentials between the durable store, where they are sealed, and the snapshot, where they are not.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::ids::ConnectionId;
use tidegate_store::durable::SealedCredential;
use tidegate_store::seal::Sealer;

/// A credential in the clear. Shows no secret when printed and is wiped when dropped.
#[derive(Debug)]
pub(crate) struct Credential {
    /// Grows by one with each new secret of the connection.
    pub(crate) version: u64,
    secret: SecretString,
}

impl Credential {
    /// The secret, for the snapshot of an authenticated data plane only.
    pub(crate) fn secret_bytes(&self) -> &[u8] {
        self.secret.expose_secret().as_bytes()
    }
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
                    secret,
                },
            )),
            Err(error) => Err(format!("{}: {error}", sealed.connection)),
        })
        .collect()
}
