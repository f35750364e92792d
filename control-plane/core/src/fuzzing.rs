//! What must hold of errors and settings whatever strangers send. Plain functions: the fuzz targets feed them without end, the
//! tests here what is kept in `tests/fuzz/seeds`. Not part of any product build.
#![expect(clippy::expect_used, reason = "what does not hold must end the run")]

#[cfg(test)]
mod tests;

use crate::classify::{
    Classification, ClassifyContext, Consequence, CooldownLength, HintSource, LockLength, classify,
};
use crate::config::{Config, Document, Provider};
use crate::ids::{ModelId, ProviderId};
use crate::outcome::{Outcome, UpstreamError};
use crate::settings::{Overrides, ProviderClass, ProviderPolicy, Settings};
use crate::time::Timestamp;

const DAY_MS: u64 = 86_400_000;
/// Longest wait there is, in ms: 30 days.
const MAX_WAIT_MS: u64 = 30 * DAY_MS;
/// Longest wait of google's, in ms: 24 hours.
const MAX_GOOGLE_MS: u64 = DAY_MS;

/// Providers that rules name, and one that none names.
const PROVIDERS: [&str; 6] = [
    "acme",
    "gemini",
    "claude",
    "codex",
    "antigravity",
    "agentrouter",
];

/// Statuses with rules of their own, and some without.
const STATUSES: [u16; 16] = [
    400, 401, 402, 403, 404, 408, 409, 410, 413, 418, 429, 432, 500, 502, 503, 529,
];

/// Waits stated in headers and in a short body: one line a header (`name: value`), then a blank line and the body.
///
/// # Panics
/// When something that must hold does not.
pub fn hints(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let headers = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let choice = data.last().copied().unwrap_or_default();
    let error = UpstreamError {
        status: 429,
        headers,
        body: body.to_owned(),
        embedded: false,
    };
    check(choice, error);
}

/// Bodies: two bytes choose provider, class, status and whether the error stood in a 200 stream; the rest is the body.
///
/// # Panics
/// When something that must hold does not.
pub fn body(data: &[u8]) {
    let [choice, status, body @ ..] = data else {
        return;
    };
    let error = UpstreamError {
        status: STATUSES[usize::from(*status) % STATUSES.len()],
        headers: Vec::new(),
        body: String::from_utf8_lossy(body).into_owned(),
        embedded: status & 0b1000_0000 != 0,
    };
    check(*choice, error);
}

/// Settings documents: what reads and has no violations resolves to numbers that make sense, and survives writing.
///
/// # Panics
/// When something that must hold does not.
pub fn settings(data: &[u8]) {
    if let Ok(document) = serde_json::from_slice::<Document>(data) {
        let built = Config::build(document.clone(), 1, &Overrides::default());
        let again = Config::build(document, 1, &Overrides::default());
        assert_eq!(built.is_ok(), again.is_ok());
    }
    let Ok(settings) = serde_json::from_slice::<Settings>(data) else {
        return;
    };
    let text = serde_json::to_string(&settings).expect("can be written");
    assert_eq!(
        serde_json::from_str::<Settings>(&text).ok().as_ref(),
        Some(&settings)
    );
    let violations = settings.violations();
    assert_eq!(violations, settings.violations(), "the same again");
    if !violations.is_empty() {
        return;
    }
    for class in ["oauth", "apikey", "local"] {
        let provider: Provider = serde_json::from_value(serde_json::json!({
            "id": "openai", "protocol": "openai", "baseUrl": "https://x.test/v1", "class": class,
        }))
        .expect("a good provider");
        let policy = ProviderPolicy::resolve(&settings, &provider, &Overrides::default());
        assert!(policy.breaker.failure_threshold >= 1);
        assert!(policy.breaker.degradation_threshold >= 1);
        assert!(policy.lockout.max_ms >= policy.lockout.base_ms);
        let longest = policy.lockout.ladder_ms(policy.lockout.base_ms, u32::MAX);
        assert!(longest <= policy.lockout.max_ms);
        for now in [0, 1_700_000_000_000, u64::MAX] {
            let wait_ms = policy.lockout.daily_reset.ms_until(Timestamp(now));
            assert!((1..=DAY_MS).contains(&wait_ms));
        }
    }
}

/// Classifies an error under a provider and class chosen by a byte, and checks everything that must hold.
fn check(choice: u8, error: UpstreamError) {
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
    assert_eq!(
        classification,
        classify(&outcome, &context),
        "the same again"
    );
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
