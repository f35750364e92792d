//! Names of things: providers, connections, models, combos, keys, attempts, shards.
//!
//! A name is validated where it enters the system ([`NameError`] says what is wrong) and is cheap to
//! clone afterwards. Names are compared byte for byte; provider names are lower-case by validation.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name in bytes of a provider, connection, combo or key.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest model id in bytes (`routing.md` §1.2 gives 200 characters to a step id; models are shorter).
pub const MAX_MODEL_BYTES: usize = 256;

/// Longest id in bytes of a rule: `operator:`, a provider's name, `:` and a number.
pub const MAX_RULE_BYTES: usize = 160;

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text is longer than the limit, in bytes.
    #[error("a name must not be longer than {limit} bytes")]
    TooLong {
        /// The limit that was exceeded.
        limit: usize,
    },
    /// The text holds a character that names may not hold.
    #[error("a name must not contain {character:?}")]
    Character {
        /// The offending character.
        character: char,
    },
}

fn check(text: &str, limit: usize, allowed: fn(char) -> bool) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > limit {
        return Err(NameError::TooLong { limit });
    }
    match text.chars().find(|character| !allowed(*character)) {
        Some(character) => Err(NameError::Character { character }),
        None => Ok(()),
    }
}

fn is_provider_character(character: char) -> bool {
    matches!(character, 'a'..='z' | '0'..='9' | '-' | '_' | '.')
}

fn is_name_character(character: char) -> bool {
    matches!(character, 'A'..='Z' | 'a'..='z' | '0'..='9' | '-' | '_' | '.')
}

fn is_rule_character(character: char) -> bool {
    is_provider_character(character) || character == ':'
}

fn is_path_character(character: char) -> bool {
    !character.is_control() && !character.is_whitespace()
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $limit:expr, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text and makes a name of it.
            ///
            /// # Errors
            /// [`NameError`] when the text is empty, too long or holds a character not allowed here.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
                let text = text.as_ref();
                check(text, $limit, $allowed)?;
                Ok(Self(Arc::from(text)))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:?}", &self.0)
            }
        }

        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "minLength": 1, "maxLength": $limit})
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    };
}

name!(
    /// An upstream family, for example `openai`. Lower-case letters, digits, `-`, `_`, `.`.
    ProviderId, MAX_NAME_BYTES, is_provider_character
);
name!(
    /// One credential at a provider. Unique over all providers. Letters, digits, `-`, `_`, `.`.
    ConnectionId, MAX_NAME_BYTES, is_name_character
);
name!(
    /// A provider's own model id. It may contain `/` and `:`, but no white space or control character.
    ModelId, MAX_MODEL_BYTES, is_path_character
);
name!(
    /// The name of a combo. It may contain `/`.
    ComboName, MAX_NAME_BYTES, is_path_character
);
name!(
    /// The id of a client's API key (not the key itself).
    KeyId, MAX_NAME_BYTES, is_name_character
);
name!(
    /// The identity under which requests leave towards providers (decision 23).
    EgressId, MAX_NAME_BYTES, is_path_character
);

name!(
    /// A rule about errors: a built-in one, or `operator:<provider>:<index>` (`failure-state.md` §5.3).
    RuleId, MAX_RULE_BYTES, is_rule_character
);

/// One run of one data-plane process. Random, never zero, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlaneIncarnation(pub u64);

/// One attempt: who made it and a number that grows by one. It is the idempotency key of every grant
/// (`architecture.md` §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    /// The data plane's incarnation.
    pub plane: PlaneIncarnation,
    /// The number of the attempt within the incarnation, from 1.
    pub number: u64,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}-{}", self.plane.0, self.number)
    }
}

/// How many shards there are. Fixed for the life of a store (`architecture.md` §3, Shards).
pub const SHARDS: u8 = 16;

/// One of the [`SHARDS`] parts of the hot state. A provider and all that hangs on it are in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shard(u8);

impl Shard {
    /// The shard with this number, if there is one.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (number < SHARDS).then_some(Self(number))
    }

    /// The shard of a provider. The hash (FNV-1a, 64 bit, with one mixing step, since its low bits alone
    /// spread short names badly) is part of the stored format.
    #[must_use]
    pub fn of_provider(provider: &ProviderId) -> Self {
        Self::of_name(provider.as_str())
    }

    /// The shard of what hangs on no provider, such as the counters of a combo; the same hash.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let mut hash = crate::hash::extend(crate::hash::EMPTY, name.as_bytes());
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 33;
        let number = hash % u64::from(SHARDS);
        Self(u8::try_from(number).unwrap_or(0))
    }

    /// All shards in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }

    /// The number of the shard, below [`SHARDS`].
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The number as an index into an array of [`SHARDS`] entries.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:02}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_refuse_what_would_break_keys_and_logs() {
        assert_eq!(ProviderId::new(""), Err(NameError::Empty));
        assert_eq!(
            ProviderId::new("OpenAI"),
            Err(NameError::Character { character: 'O' })
        );
        assert_eq!(
            ModelId::new("gpt 4"),
            Err(NameError::Character { character: ' ' })
        );
        assert_eq!(
            ConnectionId::new("x".repeat(MAX_NAME_BYTES + 1)),
            Err(NameError::TooLong {
                limit: MAX_NAME_BYTES
            })
        );
        assert!(ModelId::new("openai/gpt-oss-120b:free").is_ok());
    }

    #[test]
    fn shard_of_a_provider_is_part_of_the_stored_format() {
        let shard = |name: &str| Shard::of_provider(&ProviderId::new(name).unwrap()).number();
        assert_eq!([shard("openai"), shard("anthropic")], [4, 6]);
        assert_eq!(Shard::new(SHARDS), None);
    }
}
