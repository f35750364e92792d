//! Sealing of credentials: what the durable store keeps is worthless without a key that it never sees.
//!
//! From one 32-byte sealing key three are derived (HKDF-SHA-256): one encrypts (AES-256-GCM with a random nonce),
//! one makes fingerprints (HMAC-SHA-256), and the third is the key's public id. A sealed credential is
//!
//! | bytes | what |
//! |---|---|
//! | 1 | form, now 1 |
//! | 8 | id of the key, so that a wrong key is told from a changed text |
//! | 12 | nonce |
//! | rest | cipher text with its 16-byte tag |
//!
//! Bound to it as associated data are form, key id, connection and version: a row copied to another connection, or
//! an old row put back, does not open. Notes of conversations are sealed in the same form (`handoff`). A random nonce is safe for 2^32 credentials under one key.
//!
//! **Stance:** fail-closed. What does not open exactly is an error that says which of key, form and text is wrong;
//! none holds any part of a secret or key.

mod handoff;
mod key;

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{hkdf, hmac};
use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::ids::ConnectionId;
use zeroize::Zeroizing;

use crate::durable::{SealedCredential, SealedToken};

pub use key::{KEY_BYTES, KeyError, SealingKey};

/// Longest secret in bytes.
pub const MAX_SECRET_BYTES: usize = 65_536;

const FORM: u8 = 1;
const KEY_ID_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
const SALT: &[u8] = b"tidegate sealing v1";
const FOR_ENCRYPTION: &[u8] = b"credential encryption";
const FOR_FINGERPRINTS: &[u8] = b"credential fingerprint";
const FOR_KEY_ID: &[u8] = b"key id";

/// A secret of a connection that is not its credential. Bound to what is sealed, so that one kind is never opened as
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// The refresh token.
    RefreshToken,
    /// The secret of the OAuth client.
    ClientSecret,
}

impl TokenKind {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::RefreshToken => b"refresh token",
            Self::ClientSecret => b"client secret",
        }
    }
}

/// Why a credential could not be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It was sealed with another key than the one configured.
    #[error("the credential was sealed with another key than the configured one")]
    WrongKey,
    /// It is shorter than any sealed text, or of a form that this build does not know.
    #[error("the sealed credential has an unknown form")]
    Form,
    /// The text, its connection or its version were changed after sealing.
    #[error("the sealed credential was changed, or belongs to another connection or version")]
    Changed,
    /// It opened, and is not text.
    #[error("the credential is not valid UTF-8")]
    NotText,
    /// The secret is empty or longer than [`MAX_SECRET_BYTES`].
    #[error("a credential has 1 to {MAX_SECRET_BYTES} bytes")]
    Length,
    /// The cryptographic library refused; there may be no source of random numbers.
    #[error("the cryptographic library failed")]
    Library,
}

impl From<aws_lc_rs::error::Unspecified> for SealError {
    fn from(_: aws_lc_rs::error::Unspecified) -> Self {
        Self::Library
    }
}

/// Seals and opens credentials under one key.
pub struct Sealer {
    encryption: RandomizedNonceKey,
    fingerprints: hmac::Key,
    key_id: [u8; KEY_ID_BYTES],
}

impl fmt::Debug for Sealer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sealer")
            .field("key_id", &hex::encode(self.key_id))
            .finish_non_exhaustive()
    }
}

impl Sealer {
    /// A sealer under this key.
    ///
    /// # Errors
    /// [`SealError::Library`] when the library takes no keys at all.
    pub fn new(key: &SealingKey) -> Result<Self, SealError> {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(key.bytes());
        let derive = |purpose: &[u8]| -> Result<Zeroizing<[u8; KEY_BYTES]>, SealError> {
            let mut derived = Zeroizing::new([0; KEY_BYTES]);
            root.expand(&[purpose], hkdf::HKDF_SHA256)?
                .fill(derived.as_mut_slice())?;
            Ok(derived)
        };
        let public = derive(FOR_KEY_ID)?;
        let (key_id, _) = public.split_first_chunk().ok_or(SealError::Library)?;
        Ok(Self {
            encryption: RandomizedNonceKey::new(&AES_256_GCM, derive(FOR_ENCRYPTION)?.as_slice())?,
            fingerprints: hmac::Key::new(hmac::HMAC_SHA256, derive(FOR_FINGERPRINTS)?.as_slice()),
            key_id: *key_id,
        })
    }

    /// Seals the secret of a connection under the version it is going to have.
    ///
    /// # Errors
    /// [`SealError::Length`] for an empty or overlong secret, [`SealError::Library`].
    pub fn seal(
        &self,
        connection: &ConnectionId,
        version: u64,
        secret: &SecretString,
    ) -> Result<SealedCredential, SealError> {
        Ok(SealedCredential {
            connection: connection.clone(),
            version,
            sealed: self.encrypt(secret, &self.associated(connection, version))?,
            fingerprint: self.fingerprint(connection, secret),
            applied_version: version,
        })
    }

    /// Seals another secret of a connection under the version it is going to have.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn seal_token(
        &self,
        kind: TokenKind,
        connection: &ConnectionId,
        version: u64,
        secret: &SecretString,
    ) -> Result<SealedToken, SealError> {
        Ok(SealedToken {
            version,
            sealed: self.encrypt(secret, &self.associated_token(kind, connection, version))?,
            fingerprint: self.fingerprint_of_token(kind, connection, secret),
        })
    }

    fn encrypt(&self, secret: &SecretString, associated: &[u8]) -> Result<Vec<u8>, SealError> {
        let plain = secret.expose_secret().as_bytes();
        if plain.is_empty() || plain.len() > MAX_SECRET_BYTES {
            return Err(SealError::Length);
        }
        // All the room at once: a buffer that grows leaves copies of the secret behind.
        let mut text = Zeroizing::new(Vec::with_capacity(plain.len().saturating_add(TAG_BYTES)));
        text.extend_from_slice(plain);
        let nonce = self
            .encryption
            .seal_in_place_append_tag(Aad::from(associated), &mut *text)?;
        let mut sealed = vec![FORM];
        sealed.extend_from_slice(&self.key_id);
        sealed.extend_from_slice(nonce.as_ref());
        sealed.extend_from_slice(&text);
        Ok(sealed)
    }

    /// Opens a sealed credential.
    ///
    /// # Errors
    /// [`SealError::WrongKey`], [`SealError::Form`] or [`SealError::Changed`], whichever is the case.
    pub fn open(&self, credential: &SealedCredential) -> Result<SecretString, SealError> {
        let associated = self.associated(&credential.connection, credential.version);
        self.decrypt(&credential.sealed, &associated)
    }

    /// Opens another secret of a connection.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_token(
        &self,
        kind: TokenKind,
        connection: &ConnectionId,
        token: &SealedToken,
    ) -> Result<SecretString, SealError> {
        let associated = self.associated_token(kind, connection, token.version);
        self.decrypt(&token.sealed, &associated)
    }

    fn decrypt(&self, sealed: &[u8], associated: &[u8]) -> Result<SecretString, SealError> {
        let (form, rest) = sealed.split_first().ok_or(SealError::Form)?;
        let (key_id, rest) = rest
            .split_first_chunk::<KEY_ID_BYTES>()
            .ok_or(SealError::Form)?;
        let (nonce, text) = rest
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(SealError::Form)?;
        if *form != FORM || text.len() < TAG_BYTES {
            return Err(SealError::Form);
        }
        if *key_id != self.key_id {
            return Err(SealError::WrongKey);
        }
        let mut text = Zeroizing::new(text.to_vec());
        let plain = self
            .encryption
            .open_in_place(Nonce::from(nonce), Aad::from(associated), &mut text)
            .map_err(|_| SealError::Changed)?;
        let plain = std::str::from_utf8(plain).map_err(|_| SealError::NotText)?;
        Ok(SecretString::from(plain))
    }

    /// The fingerprint of a connection's secret: equal for equal secrets of one connection, different for two
    /// connections with the same secret, and of no use without the key.
    #[must_use]
    pub fn fingerprint(&self, connection: &ConnectionId, secret: &SecretString) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.fingerprints);
        context.update(&name_bytes(connection));
        context.update(secret.expose_secret().as_bytes());
        context.sign().as_ref().to_vec()
    }

    /// As [`Self::fingerprint`], of another secret of a connection.
    #[must_use]
    pub fn fingerprint_of_token(
        &self,
        kind: TokenKind,
        connection: &ConnectionId,
        secret: &SecretString,
    ) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.fingerprints);
        // No name is that long, so that what follows is never taken for a credential's.
        context.update(&[u8::MAX; 8]);
        context.update(kind.bytes());
        context.update(&name_bytes(connection));
        context.update(secret.expose_secret().as_bytes());
        context.sign().as_ref().to_vec()
    }

    fn associated_token(
        &self,
        kind: TokenKind,
        connection: &ConnectionId,
        version: u64,
    ) -> Vec<u8> {
        let mut associated = self.associated(connection, version);
        associated.extend_from_slice(kind.bytes());
        associated
    }

    fn associated(&self, connection: &ConnectionId, version: u64) -> Vec<u8> {
        let mut associated = vec![FORM];
        associated.extend_from_slice(&self.key_id);
        associated.extend_from_slice(&version.to_be_bytes());
        associated.extend_from_slice(&name_bytes(connection));
        associated
    }
}

fn name_bytes(connection: &ConnectionId) -> Vec<u8> {
    bytes_with_length(connection.as_str().as_bytes())
}

/// The bytes with their length before them, so that what follows cannot be taken for a part of them.
fn bytes_with_length(text: &[u8]) -> Vec<u8> {
    // Texts are far shorter than 2^64.
    let mut bytes = u64::try_from(text.len())
        .unwrap_or(u64::MAX)
        .to_be_bytes()
        .to_vec();
    bytes.extend_from_slice(text);
    bytes
}

#[cfg(test)]
mod tests;
