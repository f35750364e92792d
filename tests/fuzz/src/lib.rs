//! What must hold whatever an upstream sends, shared by the fuzz targets.

use tidegate_core::classify::{
    Classification, ClassifyContext, Consequence, CooldownLength, HintSource, LockLength, classify,
};
use tidegate_core::config::Provider;
use tidegate_core::ids::{ModelId, ProviderId};
use tidegate_core::outcome::{Outcome, UpstreamError};
use tidegate_core::settings::{Overrides, ProviderClass, ProviderPolicy, Settings};
use tidegate_core::time::Timestamp;

/// Longest wait there is, in ms: 30 days.
const MAX_WAIT_MS: u64 = 30 * 86_400_000;
/// Longest wait of google's, in ms: 24 hours.
const MAX_GOOGLE_MS: u64 = 86_400_000;

/// Providers that rules name, and one that none names.
const PROVIDERS: [&str; 6] = ["acme", "gemini", "claude", "codex", "antigravity", "agentrouter"];

/// Classifies an error under a provider and class chosen by a byte, and checks everything that must hold.
///
/// # Panics
/// When something does not.
pub fn check(choice: u8, error: UpstreamError) {
    let id = PROVIDERS[usize::from(choice) % PROVIDERS.len()];
    let class = match choice >> 6 {
        0 => ProviderClass::Oauth,
        1 => ProviderClass::Local,
        _ => ProviderClass::Apikey,
    };
    let provider: Provider = serde_json::from_value(serde_json::json!({
        "id": id, "protocol": "openai", "baseUrl": "https://x.test/v1", "class": class,
        "perModelQuota": choice & 0b10_0000 != 0,
    }))
    .expect("a good provider");
    let policy = ProviderPolicy::resolve(&Settings::default(), &provider, &Overrides::default());
    let id = ProviderId::new(id).expect("a good id");
    let model = ModelId::new("m").expect("a good id");
    let context = ClassifyContext::of(&id, &policy, &model, Timestamp(1_700_000_000_000));
    let outcome = Outcome::Response(error);
    let classification = classify(&outcome, &context);
    assert!(!classification.success, "an error is no success");
    assert_eq!(classification, classify(&outcome, &context), "the same again");
    within_caps(&classification);
    let text = serde_json::to_string(&classification).expect("can be written");
    let read: Classification = serde_json::from_str(&text).expect("can be read");
    assert_eq!(read, classification);
}

fn within_caps(classification: &Classification) {
    if let Some(hint) = classification.hint {
        let cap_ms = match hint.source {
            HintSource::GoogleRetryInfo => MAX_GOOGLE_MS,
            HintSource::Header | HintSource::Body => MAX_WAIT_MS,
        };
        assert!((1..=cap_ms).contains(&hint.wait_ms), "{hint:?}");
    }
    let length_ms = match classification.consequence {
        Consequence::CoolConnection(CooldownLength::Hint(ms) | CooldownLength::Flat(ms)) => ms,
        Consequence::LockModel(LockLength::Exact { ms, .. }) => ms,
        _ => return,
    };
    assert!((1..=MAX_WAIT_MS).contains(&length_ms), "{classification:?}");
}
