//! Conversions between the gRPC contract and the rules' types: one copy, for both planes and the command
//! line. Neither `tidegate-proto` nor `tidegate-core` knows the other; they meet here.
//!
//! Everything that comes from the wire is checked: a conversion from a message answers [`WireError`], which
//! names the member, and never panics. Conversions to messages cannot fail.

pub mod admission;
pub mod attempt;
pub mod document;
pub mod handoff;
pub mod lease;
pub mod plan;
pub mod quota;
pub mod routing;
pub mod telemetry;
pub mod usage;

use tidegate_core::ids::NameError;
use tidegate_core::version::Version;
use tidegate_proto::common::v1 as common;

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A member that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A member holds a text that is not a valid name.
    #[error("{field}: {source}")]
    Name {
        /// Which member.
        field: String,
        /// What is wrong.
        source: NameError,
    },
    /// A member holds a value outside its range or vocabulary.
    #[error("{field}: {message}")]
    Invalid {
        /// Which member.
        field: String,
        /// What is wrong.
        message: String,
    },
}

impl WireError {
    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            message: message.into(),
        }
    }

    /// The member that is wrong.
    #[must_use]
    pub fn field(&self) -> &str {
        match self {
            Self::Missing(field) => field,
            Self::Name { field, .. } | Self::Invalid { field, .. } => field,
        }
    }
}

pub(crate) fn name<T>(
    field: impl Into<String>,
    made: Result<T, NameError>,
) -> Result<T, WireError> {
    made.map_err(|source| WireError::Name {
        field: field.into(),
        source,
    })
}

pub(crate) fn optional_name<'a, T>(
    field: &'static str,
    text: &'a str,
    make: impl FnOnce(&'a str) -> Result<T, NameError>,
) -> Result<Option<T>, WireError> {
    if text.is_empty() {
        return Ok(None);
    }
    name(field, make(text)).map(Some)
}

/// A version as a message.
#[must_use]
pub fn version_to_proto(version: Version) -> common::Version {
    common::Version {
        incarnation: version.incarnation.0,
        revision: version.revision.0,
    }
}

/// A version from a message; unset means before everything.
#[must_use]
pub fn version_from_proto(version: Option<common::Version>) -> Version {
    version.map_or_else(Version::default, |version| {
        Version::new(version.incarnation, version.revision)
    })
}
