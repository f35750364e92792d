//! The sealing key: 32 bytes, from text, wiped when dropped.

use std::fmt;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

/// Length of a sealing key.
pub const KEY_BYTES: usize = 32;

const HEX_CHARACTERS: usize = 64;
/// 32 bytes in base64, without and with padding.
const BASE64_CHARACTERS: [usize; 2] = [43, 44];

/// Why a text is no sealing key. Says nothing about the text but its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Neither 64 nor 43 or 44 characters long.
    #[error(
        "a sealing key is 32 bytes, as 64 hexadecimal digits or 44 characters of base64; this one has {found} characters"
    )]
    Length {
        /// Its length, in bytes of text without surrounding white space.
        found: usize,
    },
    /// A character that the form does not have.
    #[error("the sealing key is neither hexadecimal nor base64 of exactly 32 bytes")]
    Characters,
    /// All bytes are the same: a placeholder.
    #[error("the sealing key is a placeholder; make one with `openssl rand -hex 32`")]
    Placeholder,
}

/// A sealing key.
pub struct SealingKey(Zeroizing<[u8; KEY_BYTES]>);

impl fmt::Debug for SealingKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SealingKey(..)")
    }
}

impl SealingKey {
    /// Reads a key: 64 hexadecimal digits, or base64 (either alphabet, padded or not). White space around it
    /// is ignored, since files end in a line break.
    ///
    /// # Errors
    /// [`KeyError`], which does not repeat the text.
    pub fn parse(text: &SecretString) -> Result<Self, KeyError> {
        let text = text.expose_secret().trim();
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        if text.len() == HEX_CHARACTERS {
            hex::decode_to_slice(text, key.as_mut_slice()).map_err(|_| KeyError::Characters)?;
        } else if BASE64_CHARACTERS.contains(&text.len()) {
            decode_base64(text, &mut key)?;
        } else {
            return Err(KeyError::Length { found: text.len() });
        }
        Self::from_bytes(key)
    }

    /// A key from its bytes.
    ///
    /// # Errors
    /// [`KeyError::Placeholder`] when all bytes are the same.
    pub fn from_bytes(key: Zeroizing<[u8; KEY_BYTES]>) -> Result<Self, KeyError> {
        let [first, rest @ ..] = &*key;
        if rest.iter().all(|byte| byte == first) {
            return Err(KeyError::Placeholder);
        }
        Ok(Self(key))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }
}

fn decode_base64(text: &str, key: &mut [u8; KEY_BYTES]) -> Result<(), KeyError> {
    // A little more than a key, as the decoder wants for 44 characters.
    let mut decoded = Zeroizing::new([0; KEY_BYTES + 4]);
    for alphabet in [&STANDARD, &URL_SAFE] {
        let config =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let engine = GeneralPurpose::new(alphabet, config);
        if let Ok(KEY_BYTES) = engine.decode_slice(text, decoded.as_mut_slice()) {
            for (to, from) in key.iter_mut().zip(decoded.iter()) {
                *to = *from;
            }
            return Ok(());
        }
    }
    Err(KeyError::Characters)
}
