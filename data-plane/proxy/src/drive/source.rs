//! Who gave an answer.

use http::HeaderValue;
use tidegate_core::outcome::Attempt;

/// Who gave an answer, in headers for the client. The connection is nobody's business.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(super) provider: HeaderValue,
    /// The provider's own name of it; `None` when it cannot stand in a header.
    pub(super) model: Option<HeaderValue>,
}

impl Source {
    pub(super) fn of(attempt: &Attempt) -> Option<Self> {
        Some(Self {
            provider: HeaderValue::try_from(attempt.provider.as_str()).ok()?,
            model: HeaderValue::try_from(attempt.model.as_str()).ok(),
        })
    }
}
