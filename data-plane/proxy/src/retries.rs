//! How much of what is in flight here are retries: the numbers that retry budgets are held against (decision 49,
//! [`RetryBudget`]).
//!
//! A request counts for its combo from its beginning to the last byte of its answer, an attempt for its provider while it
//! is in flight. Every attempt of a request but the first is a retry, of both. What is counted is given back by the drop
//! of what [`Retries`] handed out, so a request that is cut off gives it back too.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::config::{ComboEntry, Config};
use tidegate_core::ids::{ComboName, ProviderId};
use tidegate_core::retry_budget::RetryBudget;

/// Most providers that are told as spent.
const MAX_TOLD: usize = 64;

/// The counts of a data plane.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    counts: Mutex<BTreeMap<Scope, Count>>,
}

/// Whose budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Combo(ComboName),
    Provider(ProviderId),
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    in_flight: u32,
    retries: u32,
}

/// Something that counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    retries: Arc<Retries>,
    scope: Scope,
    counted: Count,
}

/// Which budgets are spent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) combo: bool,
    pub(crate) providers: Vec<ProviderId>,
}

impl Retries {
    /// A request to a combo begins.
    pub(crate) fn request(self: &Arc<Self>, combo: &ComboName) -> Held {
        let count = Count {
            in_flight: 1,
            retries: 0,
        };
        self.hold(Scope::Combo(combo.clone()), count)
    }

    /// A retry of a request to a combo goes out.
    pub(crate) fn retry(self: &Arc<Self>, combo: &ComboName) -> Held {
        let count = Count {
            in_flight: 0,
            retries: 1,
        };
        self.hold(Scope::Combo(combo.clone()), count)
    }

    /// An attempt at a provider that counts already goes out again.
    pub(crate) fn retry_at(self: &Arc<Self>, provider: &ProviderId) -> Held {
        let count = Count {
            in_flight: 0,
            retries: 1,
        };
        self.hold(Scope::Provider(provider.clone()), count)
    }

    /// An attempt goes out to a provider.
    pub(crate) fn attempt(self: &Arc<Self>, provider: &ProviderId, is_retry: bool) -> Held {
        let count = Count {
            in_flight: 1,
            retries: u32::from(is_retry),
        };
        self.hold(Scope::Provider(provider.clone()), count)
    }

    /// Which budgets a request to this combo, or to none, may not draw on any more.
    pub(crate) fn spent(
        &self,
        config: &Config,
        combo: Option<&ComboEntry>,
        live_planes: u32,
    ) -> Spent {
        let fleet = of_fleet(config);
        let is_spent = |budget: RetryBudget, count: &Count| {
            budget.is_spent(count.in_flight, count.retries, live_planes)
        };
        let counts = self.counts.lock();
        let of_combo = combo.is_some_and(|entry| {
            let count = counts.get(&Scope::Combo(entry.combo.name.clone()));
            let budget = of_combo(fleet, entry);
            is_spent(budget, &count.copied().unwrap_or_default())
        });
        let providers = counts
            .iter()
            .filter_map(|(scope, count)| match scope {
                Scope::Provider(provider) if is_spent(fleet, count) => Some(provider.clone()),
                Scope::Provider(_) | Scope::Combo(_) => None,
            })
            .take(MAX_TOLD)
            .collect();
        Spent {
            combo: of_combo,
            providers,
        }
    }

    /// Whether a request to this combo, or to none, may not be sent to this provider once more.
    pub(crate) fn is_spent_for(
        &self,
        config: &Config,
        combo: Option<&ComboEntry>,
        provider: &ProviderId,
        live_planes: u32,
    ) -> bool {
        let fleet = of_fleet(config);
        let combo = combo.map(|entry| {
            let scope = Scope::Combo(entry.combo.name.clone());
            (scope, of_combo(fleet, entry))
        });
        let provider = (Scope::Provider(provider.clone()), fleet);
        let counts = self.counts.lock();
        combo.into_iter().chain([provider]).any(|(scope, budget)| {
            let count = counts.get(&scope).copied().unwrap_or_default();
            budget.is_spent(count.in_flight, count.retries, live_planes)
        })
    }

    fn hold(self: &Arc<Self>, scope: Scope, counted: Count) -> Held {
        let mut counts = self.counts.lock();
        let count = counts.entry(scope.clone()).or_default();
        count.in_flight = count.in_flight.saturating_add(counted.in_flight);
        count.retries = count.retries.saturating_add(counted.retries);
        Held {
            retries: Arc::clone(self),
            scope,
            counted,
        }
    }
}

fn of_fleet(config: &Config) -> RetryBudget {
    let settings = &config.settings.retry_budget;
    RetryBudget {
        ratio: settings.ratio,
        floor: settings.min_concurrent,
    }
}

fn of_combo(fleet: RetryBudget, entry: &ComboEntry) -> RetryBudget {
    RetryBudget {
        ratio: entry.config.retry_budget_ratio.unwrap_or(fleet.ratio),
        ..fleet
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut counts = self.retries.counts.lock();
        let Some(count) = counts.get_mut(&self.scope) else {
            return;
        };
        count.in_flight = count.in_flight.saturating_sub(self.counted.in_flight);
        count.retries = count.retries.saturating_sub(self.counted.retries);
        // Nothing in flight is not remembered, so names come and go with configurations.
        if count.in_flight == 0 && count.retries == 0 {
            counts.remove(&self.scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_core::config::Document;
    use tidegate_core::settings::Overrides;

    use super::*;

    fn config() -> Config {
        let document: Document = serde_json::from_value(json!({
            "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "combos": [
                {"name": "c", "steps": ["p/m"]},
                {"name": "free", "steps": ["p/m"], "config": {"retryBudgetRatio": 0}},
            ],
            "settings": {"retryBudget": {"ratio": 0.5, "minConcurrent": 2}},
        }))
        .unwrap();
        Config::build(document, 1, &Overrides::default()).unwrap()
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let (config, retries) = (config(), Arc::new(Retries::default()));
        let provider = ProviderId::new("p").unwrap();
        let combo = config.combo("c");
        let name = &combo.unwrap().combo.name;
        assert_eq!(retries.spent(&config, combo, 1), Spent::default());
        let held = [
            retries.request(name),
            retries.retry(name),
            retries.retry(name),
            retries.attempt(&provider, true),
            retries.attempt(&provider, true),
        ];
        let spent = Spent {
            combo: true,
            providers: vec![provider],
        };
        assert_eq!(retries.spent(&config, combo, 1), spent);
        assert!(!retries.spent(&config, None, 1).combo);
        let other = ProviderId::new("other").unwrap();
        for (combo, provider, is_spent) in [
            (combo, &other, true),
            (None, &spent.providers[0], true),
            (None, &other, false),
        ] {
            assert_eq!(retries.is_spent_for(&config, combo, provider, 1), is_spent);
        }
        drop(held);
        assert_eq!(retries.spent(&config, combo, 1), Spent::default());
        assert!(retries.counts.lock().is_empty());
    }

    #[test]
    fn a_combo_may_have_a_ratio_of_its_own() {
        let (config, retries) = (config(), Arc::new(Retries::default()));
        let free = config.combo("free");
        let name = &free.unwrap().combo.name;
        let _held: Vec<Held> = (0..10).map(|_| retries.retry(name)).collect();
        assert!(!retries.spent(&config, free, 1).combo);
    }

    #[test]
    fn the_floor_is_shared_by_the_fleet() {
        let (config, retries) = (config(), Arc::new(Retries::default()));
        let provider = ProviderId::new("p").unwrap();
        let _held = retries.attempt(&provider, true);
        assert!(retries.spent(&config, None, 1).providers.is_empty());
        assert_eq!(retries.spent(&config, None, 2).providers, [provider]);
    }
}
