//! Which requests are meant.

/// Requests by model, credential and path; what is not set matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    model: Option<String>,
    credential: Option<String>,
    path: Option<String>,
}

impl Selector {
    /// Every request.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Only requests whose body names this model.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Only requests with this bearer token or `x-api-key`.
    #[must_use]
    pub fn credential(mut self, credential: impl Into<String>) -> Self {
        self.credential = Some(credential.into());
        self
    }

    /// Only requests to this path, without query.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    pub(crate) fn matches(&self, subject: &Subject) -> bool {
        let agrees = |wanted: &Option<String>, given: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| given == Some(wanted))
        };
        agrees(&self.model, subject.model.as_deref())
            && agrees(&self.credential, subject.credential.as_deref())
            && agrees(&self.path, Some(&subject.path))
    }

    /// Of two selectors that match, the one with the larger number decides.
    pub(crate) fn specificity(&self) -> u8 {
        let credential = u8::from(self.credential.is_some()) * 4;
        let model = u8::from(self.model.is_some()) * 2;
        credential + model + u8::from(self.path.is_some())
    }
}

/// What a [`Selector`] looks at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    pub(crate) model: Option<String>,
    pub(crate) credential: Option<String>,
    pub(crate) path: String,
}
