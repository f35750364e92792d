//! What a vector's fleet is configured with.

use serde_json::{Value, json};

/// A model that only the connection of the same name serves: asking for it tells how far a replica's view is.
pub(super) const SIDE: &str = "side";

/// What is configured.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Id of the one provider.
    pub(crate) provider: &'static str,
    /// Its class.
    pub(crate) class: &'static str,
    /// It keeps quotas per model.
    pub(crate) per_model_quota: bool,
    /// Its connections `c1`, `c2`, ... with whether they never cool.
    pub(crate) connections: Vec<bool>,
    /// Their priority.
    pub(crate) priority: u32,
    /// Sections of the settings beyond those that switch waiting off.
    pub(crate) settings: Value,
}

impl Setting {
    /// One connection that never cools at a provider of this class.
    pub(crate) fn never_cooling(class: &'static str) -> Self {
        Self {
            connections: vec![true],
            ..Self::cooling(class)
        }
    }

    /// One connection at a provider of this class.
    pub(crate) fn cooling(class: &'static str) -> Self {
        Self {
            provider: "p",
            class,
            per_model_quota: false,
            connections: vec![false],
            priority: 10,
            settings: json!({}),
        }
    }

    /// As many connections.
    pub(crate) fn with_connections(mut self, number: usize) -> Self {
        let never = self.connections.first().copied().unwrap_or_default();
        self.connections = vec![never; number];
        self
    }

    /// With model lockout as given.
    pub(crate) fn with_lockout(mut self, section: Value) -> Self {
        self.settings = json!({ "modelLockout": section });
        self
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        (1..=self.connections.len()).map(|number| format!("c{number}"))
    }

    pub(super) fn document(&self, base_url: &str) -> Value {
        let mut connections: Vec<Value> = self
            .names()
            .zip(&self.connections)
            .map(|(name, never)| {
                json!({
                    "id": name, "provider": self.provider, "priority": self.priority, "models": ["m", "n"],
                    "disableCooling": never, "credential": {"file": format!("{name}.key")},
                })
            })
            .collect();
        connections.push(json!({
            "id": SIDE, "provider": self.provider, "priority": 99, "models": [SIDE],
            "credential": {"file": "side.key"},
        }));
        let steps: Vec<Value> = self
            .names()
            .map(|name| json!({"model": format!("{}/m", self.provider), "connection": name}))
            .collect();
        let mut settings = self.settings.clone();
        settings["waitForCooldown"] = json!({"enabled": false});
        settings["comboCooldownWait"] = json!({"enabled": false});
        json!({
            "providers": [{
                "id": self.provider, "protocol": "openai", "baseUrl": base_url, "class": self.class,
                "models": ["m", "n", SIDE], "perModelQuota": self.per_model_quota,
            }],
            "connections": connections,
            "combos": [{"name": "combo", "steps": steps, "config": {"maxRetries": 0}}],
            "keys": [{"id": "client", "secret": {"file": "client.key"}}],
            "settings": settings,
        })
    }
}
