//! What a key may ask for, where nothing is sent yet: a session that acquires a lease names a model
//! (`sessions-and-streams.md` §1.7, check 5).

use crate::config::{ApiKey, Config};

use super::accounts::no_account;
use super::exclusion::Exclusions;
use super::wording::named;
use super::{Exclusion, ExclusionReason, Rejection, resolve};

/// The rejection that a request of the key for this model would get because the key may not ask for it; `None` when it
/// may, or when the model means nothing.
#[must_use]
pub fn refused_by_key(config: &Config, key: &ApiKey, model: &str) -> Option<Rejection> {
    let route = resolve(config, model).filter(|route| !route.allowed_by(key))?;
    let mut excluded = Exclusions::default();
    for target in route.targets.iter() {
        excluded.push(Exclusion {
            reason: ExclusionReason::NotAllowed,
            ..no_account(target)
        });
    }
    Some(Rejection {
        status: 404,
        code: "no_executable_targets".to_owned(),
        error_type: "invalid_request_error".to_owned(),
        message: format!(
            "no target can be used: {}",
            named(excluded.list().iter(), |_| true)
        ),
        retry_after_secs: None,
        pass_through: false,
        terminal_reason: "no_executable_targets".to_owned(),
        pool_size: route.pool_size(),
        attempted: 0,
        excluded: excluded.into_list(),
        lease: None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use crate::config::Document;
    use crate::settings::Overrides;

    use super::*;

    fn refusal(allowed: &[&str], model: &str) -> Option<Rejection> {
        let document: Document = serde_json::from_value(json!({
            "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://p.test/v1"}],
            "connections": [{"id": "c", "provider": "p"}],
            "combos": [{"name": "duo", "steps": ["p/m", "p/n"]}],
            "keys": [{"id": "k", "sha256": "00".repeat(32), "allowedModels": allowed}],
        }))
        .unwrap();
        let config = Config::build(document, 1, &Overrides::default()).unwrap();
        refused_by_key(&config, &config.document.keys[0], model)
    }

    #[rstest]
    #[case::everything(&[], "p/m")]
    #[case::a_model(&["p/m"], "p/m")]
    #[case::a_combo(&["duo"], "duo")]
    #[case::a_model_that_means_nothing(&["duo"], "what")]
    fn what_a_key_may_ask_for_is_not_refused(#[case] allowed: &[&str], #[case] model: &str) {
        assert_eq!(refusal(allowed, model), None);
    }

    #[rstest]
    #[case::another_model(&["p/m"], "p/n", 1)]
    #[case::a_combo_of_its_models(&["p/m", "p/n"], "duo", 2)]
    fn anything_else_is_refused_as_a_request_is(
        #[case] allowed: &[&str],
        #[case] model: &str,
        #[case] targets: usize,
    ) {
        let refused = refusal(allowed, model).unwrap();
        assert_eq!(
            (refused.status, refused.code.as_str()),
            (404, "no_executable_targets")
        );
        assert_eq!(refused.excluded.len(), targets);
        assert!(
            refused.message.contains("not_allowed"),
            "{}",
            refused.message
        );
    }
}
