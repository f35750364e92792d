//! Secrets on their way into the store: checked, compared with what was last applied, sealed.

use std::collections::BTreeMap;

use secrecy::SecretString;
use tidegate_core::config::{Connection, Document, Violation};
use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::View as _;
use tidegate_store::durable::{
    SealedCredential, SealedGrant, SealedSecrets, SealedToken, StoredDocument,
};
use tidegate_store::seal::{SealError, TokenKind};

use crate::config::Published;
use crate::view::View;

use super::{ApplyError, Target, WantedSecrets};

/// Longest secret in bytes; it has to fit into a request header.
const MAX_SECRET_BYTES: usize = 16 * 1024;

/// Secrets that were checked.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    credentials: BTreeMap<ConnectionId, SecretString>,
    refresh_tokens: BTreeMap<ConnectionId, SecretString>,
    client_secrets: BTreeMap<ConnectionId, SecretString>,
}

impl Secrets {
    /// Those that are good; what is wrong with the others is added to the violations.
    pub(super) fn check(
        document: &Document,
        wanted: &WantedSecrets,
        violations: &mut Vec<Violation>,
    ) -> Self {
        let mut check = |list: &str, secrets: &BTreeMap<String, Vec<u8>>| {
            let mut good = BTreeMap::new();
            for (name, secret) in secrets {
                match secret_of(document, name, secret) {
                    Ok((connection, secret)) => {
                        good.insert(connection, secret);
                    }
                    Err(message) => violations.push(Violation {
                        field: format!("{list}[{name}]"),
                        message: message.to_owned(),
                    }),
                }
            }
            good
        };
        Self {
            credentials: check("credentials", &wanted.credentials),
            refresh_tokens: check("refreshTokens", &wanted.refresh_tokens),
            client_secrets: check("clientSecrets", &wanted.client_secrets),
        }
    }
}

/// What is stored of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Stored<'a> {
    credential: Option<&'a SealedCredential>,
    grant: Option<&'a SealedGrant>,
}

impl Published {
    /// Secrets to store: those that an operator replaced, and the others as they are.
    pub(super) fn seal(
        &self,
        target: &Target,
        reseal: bool,
        stored: &StoredDocument,
        view: &View,
    ) -> Result<SealedSecrets, ApplyError> {
        let secrets = &target.secrets;
        let mut before: BTreeMap<&ConnectionId, Stored<'_>> = BTreeMap::new();
        for credential in &stored.secrets.credentials {
            before.entry(&credential.connection).or_default().credential = Some(credential);
        }
        for grant in &stored.secrets.grants {
            before.entry(&grant.connection).or_default().grant = Some(grant);
        }
        let mut sealed = SealedSecrets {
            revision: stored.secrets.revision,
            ..SealedSecrets::default()
        };
        for connection in &target.document.connections {
            let old = before.get(&connection.id).copied().unwrap_or_default();
            if !reseal {
                self.openable(&connection.id, old).map_err(|reason| {
                    ApplyError::SealedElsewhere {
                        connection: connection.id.clone(),
                        reason,
                    }
                })?;
            }
            let credential = secrets.credentials.get(&connection.id);
            let (credential, mut renewed) =
                self.credential(connection, credential, old.credential, view)?;
            sealed.credentials.extend(credential);
            let (grant, granted) = self.grant(&connection.id, secrets, old.grant)?;
            sealed.grants.extend(grant);
            renewed |= granted;
            if renewed {
                sealed.renewed.push(connection.id.clone());
            }
        }
        Ok(sealed)
    }

    fn openable(&self, connection: &ConnectionId, old: Stored<'_>) -> Result<(), SealError> {
        if let Some(credential) = old.credential {
            self.sealer.open(credential)?;
        }
        if let Some(grant) = old.grant {
            let kind = TokenKind::RefreshToken;
            self.sealer
                .open_token(kind, connection, &grant.refresh_token)?;
            if let Some(secret) = &grant.client_secret {
                self.sealer
                    .open_token(TokenKind::ClientSecret, connection, secret)?;
            }
        }
        Ok(())
    }

    /// The credential to store, and whether it is a new one.
    fn credential(
        &self,
        connection: &Connection,
        secret: Option<&SecretString>,
        old: Option<&SealedCredential>,
        view: &View,
    ) -> Result<(Option<SealedCredential>, bool), SealError> {
        let Some(secret) = secret else {
            return Ok((old.cloned(), false));
        };
        let fingerprint = self.sealer.fingerprint(&connection.id, secret);
        if let Some(old) = old.filter(|old| old.fingerprint == fingerprint) {
            return Ok((Some(old.clone()), false));
        }
        // A connection that comes back under an old name must not meet what its earlier credential caused.
        let seen = view
            .connection(&connection.provider, &connection.id)
            .map_or(0, |state| state.credential_version);
        let version = old.map_or(0, |old| old.version).max(seen).saturating_add(1);
        let sealed = self.sealer.seal(&connection.id, version, secret)?;
        Ok((Some(sealed), true))
    }

    /// What the access token is to be renewed with, and whether it is new. A client's secret without a refresh token
    /// is of no use and is not kept.
    fn grant(
        &self,
        connection: &ConnectionId,
        secrets: &Secrets,
        old: Option<&SealedGrant>,
    ) -> Result<(Option<SealedGrant>, bool), SealError> {
        let (refresh_token, token_is_new) = self.token(
            TokenKind::RefreshToken,
            connection,
            secrets.refresh_tokens.get(connection),
            old.map(|old| &old.refresh_token),
        )?;
        let Some(refresh_token) = refresh_token else {
            return Ok((None, false));
        };
        let (client_secret, secret_is_new) = self.token(
            TokenKind::ClientSecret,
            connection,
            secrets.client_secrets.get(connection),
            old.and_then(|old| old.client_secret.as_ref()),
        )?;
        let grant = SealedGrant {
            connection: connection.clone(),
            refresh_token,
            client_secret,
        };
        Ok((Some(grant), token_is_new || secret_is_new))
    }

    /// The token to store, and whether it is a new one: another than the one that was last applied, whatever that one
    /// was renewed to since.
    fn token(
        &self,
        kind: TokenKind,
        connection: &ConnectionId,
        secret: Option<&SecretString>,
        old: Option<&SealedToken>,
    ) -> Result<(Option<SealedToken>, bool), SealError> {
        let Some(secret) = secret else {
            return Ok((old.cloned(), false));
        };
        let fingerprint = self.sealer.fingerprint_of_token(kind, connection, secret);
        if let Some(old) = old.filter(|old| old.fingerprint == fingerprint) {
            return Ok((Some(old.clone()), false));
        }
        let version = old.map_or(0, |old| old.version).saturating_add(1);
        let sealed = self.sealer.seal_token(kind, connection, version, secret)?;
        Ok((Some(sealed), true))
    }
}

/// A secret and whose it is, or what is wrong with it.
fn secret_of(
    document: &Document,
    name: &str,
    secret: &[u8],
) -> Result<(ConnectionId, SecretString), &'static str> {
    let connection = document
        .connections
        .iter()
        .find(|connection| connection.id.as_str() == name)
        .ok_or("there is no such connection")?;
    if secret.is_empty() || secret.len() > MAX_SECRET_BYTES {
        return Err("must have between 1 and 16384 bytes");
    }
    let text = std::str::from_utf8(secret).map_err(|_| "must be text")?;
    if text.contains(|character: char| character.is_control()) {
        return Err("must not contain control characters or line breaks");
    }
    Ok((connection.id.clone(), SecretString::from(text)))
}
