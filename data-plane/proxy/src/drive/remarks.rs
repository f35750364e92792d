//! What a client is told beside the answer.

use http::HeaderValue;
use tidegate_core::config::Config;
use tidegate_core::outcome::Attempt;
use tidegate_plane_client::Dispatch;

/// What a client is told of an attempt that was not quite what it asked for.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    /// So many of its tools were sent.
    pub(super) max_tools: Option<u32>,
    /// The last resort answered, `provider/model`.
    pub(super) emergency: Option<HeaderValue>,
}

impl Remarks {
    pub(super) fn of(dispatch: &Dispatch) -> Self {
        let Attempt {
            provider, model, ..
        } = &dispatch.attempt;
        let target = || HeaderValue::try_from(format!("{provider}/{model}")).ok();
        Self {
            max_tools: dispatch.max_tools,
            emergency: dispatch.emergency_max_tokens.and_then(|_| target()),
        }
    }
}

/// The combo's strategy; of a model that is no combo, the one that chose the account (`routing.md` §5.0).
pub(super) fn strategy(config: &Config, model: &str, dispatch: &Dispatch) -> Option<&'static str> {
    if let Some(entry) = config.combo_for(model) {
        return Some(entry.combo.strategy.as_str());
    }
    let entry = config.provider(&dispatch.attempt.provider)?;
    Some(entry.provider.account_strategy.strategy().as_str())
}
