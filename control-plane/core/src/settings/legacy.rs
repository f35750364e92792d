//! The settings under the names that they had before there were sections, for scripts that read those
//! (`sessions-and-streams.md` §5.4). They are told beside the sections and never taken: a patch names sections.

use serde_json::{Map, Value, json};

/// Name of the block in `GET /api/resilience`.
pub const LEGACY: &str = "legacy";

/// The classes that had a profile.
const CLASSES: [&str; 2] = ["oauth", "apikey"];
/// Members of a profile, each with the section where it is now, and its name there.
const PROFILE: [(&str, &str, &str); 5] = [
    ("transientCooldown", "connectionCooldown", "baseCooldownMs"),
    ("maxBackoffLevel", "connectionCooldown", "maxBackoffSteps"),
    (
        "circuitBreakerThreshold",
        "providerBreaker",
        "failureThreshold",
    ),
    (
        "degradationThreshold",
        "providerBreaker",
        "degradationThreshold",
    ),
    ("circuitBreakerReset", "providerBreaker", "resetTimeoutMs"),
];
/// Members of the defaults, each with its name in `requestQueue`.
const DEFAULTS: [(&str, &str); 3] = [
    ("requestsPerMinute", "requestsPerMinute"),
    ("minTimeBetweenRequests", "minTimeBetweenRequestsMs"),
    ("concurrentRequests", "concurrentRequests"),
];

/// The old names of what acts, from [`super::sections`]. What is unset there is null here.
#[must_use]
pub fn legacy(sections: &Map<String, Value>) -> Value {
    let section = |name: &str| sections.get(name).unwrap_or(&Value::Null);
    let profile = |class: &str| {
        let members = PROFILE.iter().map(|(old, of, member)| {
            let value = section(of).get(class).and_then(|it| it.get(member));
            ((*old).to_owned(), value.cloned().unwrap_or_default())
        });
        let mut profile: Map<String, Value> = members.collect();
        let cooldown = section("connectionCooldown").get(class);
        let by_hints = cooldown.and_then(|it| it.get("useUpstreamRetryHints"));
        // 0 meant: as long as the upstream says.
        let limited = match by_hints {
            Some(Value::Bool(true)) => json!(0),
            _ => profile
                .get("transientCooldown")
                .cloned()
                .unwrap_or_default(),
        };
        profile.insert("rateLimitCooldown".to_owned(), limited);
        (class.to_owned(), Value::Object(profile))
    };
    let profiles: Map<String, Value> = CLASSES.into_iter().map(profile).collect();
    let queue = section("requestQueue");
    let defaults = DEFAULTS.iter().map(|(old, member)| {
        let value = queue.get(member).cloned().unwrap_or_default();
        ((*old).to_owned(), value)
    });
    let defaults: Map<String, Value> = defaults.collect();
    json!({"profiles": profiles, "defaults": defaults})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Overrides, Settings, WrittenSettings, sections};

    fn told(written: Value) -> Value {
        let written: WrittenSettings = serde_json::from_value(written).unwrap();
        let settings: Settings = written.stored().settings;
        legacy(&sections(&settings, &Overrides::default()))
    }

    #[test]
    fn what_acts_is_told_under_its_old_names() {
        let profile = |cooldown: u32, limited: u32, steps: u32, breaker: [u32; 3]| {
            json!({
                "transientCooldown": cooldown, "rateLimitCooldown": limited, "maxBackoffLevel": steps,
                "circuitBreakerThreshold": breaker[0], "degradationThreshold": breaker[1],
                "circuitBreakerReset": breaker[2],
            })
        };
        let built_in = json!({
            "profiles": {
                "oauth": profile(5_000, 5_000, 8, [8, 5, 60_000]),
                "apikey": profile(3_000, 0, 5, [12, 7, 30_000]),
            },
            "defaults": {
                "requestsPerMinute": null, "minTimeBetweenRequests": null, "concurrentRequests": null,
            },
        });
        assert_eq!(told(json!({})), built_in);
        let written = told(json!({
            "requestQueue": {"requestsPerMinute": 60, "minTimeBetweenRequestsMs": 5, "concurrentRequests": 4},
            "connectionCooldown": {"apikey": {"baseCooldownMs": 9, "useUpstreamRetryHints": false}},
            "providerBreaker": {"oauth": {"failureThreshold": 30}},
        }));
        let expected = json!({
            "profiles": {
                "oauth": profile(5_000, 5_000, 8, [30, 5, 60_000]),
                "apikey": profile(9, 9, 5, [12, 7, 30_000]),
            },
            "defaults": {
                "requestsPerMinute": 60, "minTimeBetweenRequests": 5, "concurrentRequests": 4,
            },
        });
        assert_eq!(written, expected);
    }

    #[test]
    fn sections_that_are_not_there_are_told_as_unset() {
        let told = legacy(&Map::new());
        assert_eq!(told["profiles"]["oauth"]["transientCooldown"], Value::Null);
        assert_eq!(told["defaults"]["concurrentRequests"], Value::Null);
    }
}
