//! Settings documents: what reads and has no violations resolves to numbers that make sense, and survives writing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::config::{Config, Document, Provider};
use tidegate_core::settings::{Overrides, ProviderPolicy, Settings};
use tidegate_core::time::Timestamp;

const DAY_MS: u64 = 86_400_000;

fuzz_target!(|data: &[u8]| {
    if let Ok(document) = serde_json::from_slice::<Document>(data) {
        let built = Config::build(document.clone(), 1, &Overrides::default());
        let again = Config::build(document, 1, &Overrides::default());
        assert_eq!(built.is_ok(), again.is_ok());
    }
    let Ok(settings) = serde_json::from_slice::<Settings>(data) else {
        return;
    };
    let text = serde_json::to_string(&settings).expect("can be written");
    assert_eq!(serde_json::from_str::<Settings>(&text).ok().as_ref(), Some(&settings));
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
});
