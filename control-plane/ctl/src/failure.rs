//! How a command fails: what people read, and the exit code that scripts read (`docs/operations/command-line.md`).

mod transport;

use std::error::Error as _;
use std::fmt;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Something differs.
const DIFFERS: u8 = 2;
/// The command line is not understood.
pub(crate) const USAGE: u8 = 64;
/// A file, or what it says, is refused.
const DATA: u8 = 65;
/// The control plane cannot be reached.
const UNAVAILABLE: u8 = 69;
/// The token is missing or not allowed to do this.
const NO_PERMISSION: u8 = 77;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is not understood.
    Usage(String),
    /// A file or the environment is wrong.
    Input(String),
    /// The control plane refused or did not answer.
    Refused(Box<Status>),
    /// Nothing came from the control plane at this address.
    Unreached {
        address: http::Uri,
        shows_certificate: bool,
        status: Box<Status>,
    },
    /// The answer cannot be written.
    Output(String),
    /// What was compared differs; that was told already.
    Differs,
    /// Whoever read the answer has gone, as `head` does; nothing is wrong.
    Closed,
}

impl Failure {
    /// The same, now that it is known who was called.
    pub(crate) fn of_calling(self, address: &http::Uri, shows_certificate: bool) -> Self {
        match self {
            // Only what failed on the way here has a cause; an answer has none.
            Self::Refused(status) if status.source().is_some() => Self::Unreached {
                address: address.clone(),
                shows_certificate,
                status,
            },
            other => other,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Input(_) => DATA,
            Self::Output(_) => 1,
            Self::Differs => DIFFERS,
            Self::Closed => 0,
            Self::Unreached { .. } => UNAVAILABLE,
            Self::Refused(status) => match status.code() {
                Code::InvalidArgument | Code::FailedPrecondition | Code::Aborted => DATA,
                Code::NotFound | Code::OutOfRange | Code::AlreadyExists => DATA,
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => UNAVAILABLE,
                Code::Unauthenticated | Code::PermissionDenied => NO_PERMISSION,
                Code::Ok
                | Code::Unknown
                | Code::ResourceExhausted
                | Code::Unimplemented
                | Code::Internal
                | Code::DataLoss => 1,
            },
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Input(message) | Self::Output(message) => {
                formatter.write_str(message)
            }
            Self::Closed | Self::Differs => Ok(()),
            Self::Unreached {
                address,
                shows_certificate,
                status,
            } => {
                write!(
                    formatter,
                    "the control plane does not answer at {address}: "
                )?;
                let Some(error) = status.source() else {
                    return formatter.write_str(status.message());
                };
                formatter.write_str(&transport::causes(error))?;
                match transport::hint(error, address, *shows_certificate) {
                    Some(hint) => write!(formatter, "\n  {hint}"),
                    None => Ok(()),
                }
            }
            Self::Refused(status) => {
                // A control plane that answers says so with a code of its own.
                let answered = status.get_details_error_info().is_some();
                let silent = matches!(
                    status.code(),
                    Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
                );
                if silent && !answered {
                    write!(formatter, "the control plane does not answer: ")?;
                }
                if let Some(info) = status.get_details_error_info() {
                    write!(formatter, "{}: ", info.reason)?;
                }
                formatter.write_str(status.message())?;
                if let Some(bad_request) = status.get_details_bad_request() {
                    for violation in &bad_request.field_violations {
                        write!(
                            formatter,
                            "\n  {}: {}",
                            violation.field, violation.description
                        )?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::{ErrorDetails, FieldViolation};

    #[test]
    fn every_violation_is_shown() {
        let status = Status::with_error_details(
            Code::InvalidArgument,
            "the document is not valid",
            ErrorDetails::with_bad_request(vec![
                FieldViolation::new("combos[0].steps", "must not be empty"),
                FieldViolation::new("keys[1].id", "is not unique"),
            ]),
        );
        let failure = Failure::from(status);
        assert_eq!(failure.exit_code(), DATA);
        assert_eq!(
            failure.to_string(),
            "the document is not valid\n  combos[0].steps: must not be empty\n  keys[1].id: is not unique"
        );
    }

    #[test]
    fn scripts_can_tell_an_absent_control_plane_from_a_refused_token() {
        assert_eq!(
            Failure::from(Status::unavailable("x")).exit_code(),
            UNAVAILABLE
        );
        assert_eq!(
            Failure::from(Status::unauthenticated("x")).exit_code(),
            NO_PERMISSION
        );
    }
}
