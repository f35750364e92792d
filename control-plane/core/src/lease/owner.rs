//! Who owns a lease. The token itself is never kept: it becomes its hash where it is read.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::LeaseError;

const PREFIX: &[u8] = b"vlo_";
/// Characters after the prefix.
const SECRET_BYTES: usize = 43;

/// SHA-256 of a whole owner token, prefix included (`sessions-and-streams.md` §1.3). What stores, logs and the gRPC
/// contract know of an owner. Its text is lower-case hexadecimal, 64 digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerHash([u8; 32]);

/// A text is not the hash of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hash of an owner is 64 lower-case hexadecimal digits")]
pub struct OwnerHashError;

impl OwnerHash {
    /// Of the value of `X-OmniRoute-Lease-Owner`: `vlo_` and 43 of `A-Za-z0-9_-`; white space around it does not
    /// count. The 43 characters are not decoded, since their last bits may be anything.
    ///
    /// # Errors
    /// [`LeaseError::ContextRequired`] without the header, [`LeaseError::ContextInvalid`] when it is no such token.
    pub fn of_header(value: Option<&[u8]>) -> Result<Self, LeaseError> {
        let token = value.ok_or(LeaseError::ContextRequired)?.trim_ascii();
        let is_token = token.strip_prefix(PREFIX).is_some_and(|secret| {
            secret.len() == SECRET_BYTES && secret.iter().all(|byte| is_token_byte(*byte))
        });
        if !is_token {
            return Err(LeaseError::ContextInvalid);
        }
        Ok(Self(Sha256::digest(token).into()))
    }

    /// Of the hash's own bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The hash's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Of the hash's text.
    ///
    /// # Errors
    /// [`OwnerHashError`] when it is not 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, OwnerHashError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| OwnerHashError)?;
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(OwnerHashError);
        }
        Ok(Self(bytes))
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

impl fmt::Display for OwnerHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for OwnerHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "OwnerHash({self})")
    }
}

impl TryFrom<String> for OwnerHash {
    type Error = OwnerHashError;

    fn try_from(text: String) -> Result<Self, OwnerHashError> {
        Self::from_hex(&text)
    }
}

impl From<OwnerHash> for String {
    fn from(hash: OwnerHash) -> Self {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn token(character: char, count: usize) -> String {
        format!("vlo_{}", String::from(character).repeat(count))
    }

    #[rstest]
    #[case::of_a(
        'A',
        "e92bcf4919157acf1a3c050ce99f6152b6eaa3002c77a160ad36d0c6652286d2"
    )]
    #[case::of_b_whose_last_bits_are_not_zero(
        'B',
        "bc1d88c7eccd84b91042c56781b3567f161a1e19e92400d35a9aacf38f4b86b2"
    )]
    fn vector_sessions_01_an_owner_is_the_hash_of_its_whole_token(
        #[case] character: char,
        #[case] hash: &str,
    ) {
        let owner = OwnerHash::of_header(Some(token(character, 43).as_bytes())).unwrap();
        assert_eq!(owner.to_string(), hash);
        assert_eq!(OwnerHash::from_hex(hash), Ok(owner));
        assert_eq!(OwnerHash::from_bytes(*owner.as_bytes()), owner);
    }

    #[rstest]
    #[case::short("vlo_short")]
    #[case::upper_case_prefix(&token('A', 43).to_uppercase())]
    #[case::of_42(&token('A', 42))]
    #[case::of_44(&token('A', 44))]
    #[case::padded(&format!("{}=", token('A', 42)))]
    #[case::plus(&format!("{}+", token('A', 42)))]
    #[case::slash(&format!("{}/", token('A', 42)))]
    #[case::a_space_inside(&format!("{} A", token('A', 41)))]
    #[case::two_tokens(&format!("{}, {}", token('A', 43), token('A', 43)))]
    #[case::a_letter_of_two_bytes(&format!("{}é", token('A', 41)))]
    #[case::empty("")]
    fn vector_sessions_02_what_is_no_token_is_refused(#[case] value: &str) {
        assert_eq!(
            OwnerHash::of_header(Some(value.as_bytes())),
            Err(LeaseError::ContextInvalid)
        );
    }

    #[test]
    fn vector_sessions_02_a_missing_token_is_told_from_a_wrong_one() {
        assert_eq!(OwnerHash::of_header(None), Err(LeaseError::ContextRequired));
    }

    #[test]
    fn vector_sessions_02_white_space_around_a_token_does_not_count() {
        let spaced = format!(" \t{} ", token('A', 43));
        assert_eq!(
            OwnerHash::of_header(Some(spaced.as_bytes())),
            OwnerHash::of_header(Some(token('A', 43).as_bytes()))
        );
    }

    #[rstest]
    #[case::short("e92b")]
    #[case::upper_case("E92BCF4919157ACF1A3C050CE99F6152B6EAA3002C77A160AD36D0C6652286D2")]
    #[case::no_digits("zz2bcf4919157acf1a3c050ce99f6152b6eaa3002c77a160ad36d0c6652286d2")]
    #[case::a_token(&token('A', 43))]
    fn a_text_that_is_no_hash_is_refused(#[case] text: &str) {
        assert_eq!(OwnerHash::from_hex(text), Err(OwnerHashError));
    }
}
