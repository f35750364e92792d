//! Final answers that a rule of leases gives.

use crate::lease::LeaseError;
use crate::routing::Rejection;

impl From<LeaseError> for Rejection {
    fn from(error: LeaseError) -> Self {
        Self {
            status: error.status(),
            code: error.code().to_owned(),
            error_type: "lease_error".to_owned(),
            message: error.to_string(),
            retry_after_secs: error.retry_after_seconds(),
            pass_through: false,
            terminal_reason: error.code().to_owned(),
            pool_size: 0,
            attempted: 0,
            excluded: Vec::new(),
            lease: Some(error),
        }
    }
}
