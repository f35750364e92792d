//! One thing of a configuration by its name, and what refers to it.
//!
//! What is referred to cannot be taken out: validation would say at each place that it is not there. Said of something
//! that *is* there this is no help, and validation stops at what it finds first. So it is looked for from the other side:
//! everything that refers to it, with the place in the document as it stands.

#[cfg(test)]
mod tests;

use std::fmt;

use super::meaning::{self, Meaning};
use super::names::Names;
use super::{Combo, Document, ModelStep, Violation, Violations, split_model};

/// One thing of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// An upstream family, by its id.
    Provider(String),
    /// A credential, by its id.
    Connection(String),
    /// A list of steps, by its name.
    Combo(String),
    /// A client's key, by its id.
    Key(String),
}

impl fmt::Display for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, id) = match self {
            Self::Provider(id) => ("provider", id),
            Self::Connection(id) => ("connection", id),
            Self::Combo(id) => ("combo", id),
            Self::Key(id) => ("key", id),
        };
        write!(formatter, "{kind} {id}")
    }
}

impl Document {
    /// Takes a thing out; `false` when it is not there.
    pub fn take_out(&mut self, resource: &Resource) -> bool {
        fn take<T>(all: &mut Vec<T>, fits: impl Fn(&T) -> bool) -> bool {
            let before = all.len();
            all.retain(|it| !fits(it));
            all.len() < before
        }
        match resource {
            Resource::Provider(id) => take(&mut self.providers, |it| it.id.as_str() == id),
            Resource::Connection(id) => take(&mut self.connections, |it| it.id.as_str() == id),
            Resource::Combo(name) => take(&mut self.combos, |it| it.name.as_str() == name),
            Resource::Key(id) => take(&mut self.keys, |it| it.id.as_str() == id),
        }
    }

    /// Everything that refers to a thing, at most [`super::MAX_VIOLATIONS`] of it by name, with its place in this document.
    #[must_use]
    pub fn referrers(&self, resource: &Resource) -> Vec<Violation> {
        let names = Names::of(self);
        let mut found = Referrers {
            resource,
            names: &names,
            found: Violations::default(),
        };
        found.connections(self);
        for (index, combo) in self.combos.iter().enumerate() {
            found.combo(&format!("combos[{index}]"), combo);
        }
        found.others(self);
        found.keys(self);
        found.found.into_vec()
    }
}

struct Referrers<'a> {
    resource: &'a Resource,
    names: &'a Names<'a>,
    found: Violations,
}

impl Referrers<'_> {
    /// Who stands at a place, and refers to it.
    fn note(&mut self, field: String, who: &str) {
        let message = format!("{who} refers to {}", self.resource);
        self.found.push(field, message);
    }

    fn is_provider(&self, id: &str) -> bool {
        matches!(self.resource, Resource::Provider(it) if it == id)
    }

    fn is_connection(&self, id: &str) -> bool {
        matches!(self.resource, Resource::Connection(it) if it == id)
    }

    fn is_combo(&self, name: &str) -> bool {
        matches!(self.resource, Resource::Combo(it) if it == name)
    }

    /// `provider/model` of the provider.
    fn is_model(&self, model: &str) -> bool {
        split_model(model).is_some_and(|(provider, _)| self.is_provider(provider.as_str()))
    }

    fn connections(&mut self, document: &Document) {
        for (index, connection) in document.connections.iter().enumerate() {
            if self.is_provider(connection.provider.as_str()) {
                let who = format!("connection {}", connection.id);
                self.note(format!("connections[{index}].provider"), &who);
            }
        }
    }

    fn combo(&mut self, path: &str, combo: &Combo) {
        let who = format!("combo {}", combo.name);
        for (index, step) in combo.steps.iter().enumerate() {
            let path = format!("{path}.steps[{index}]");
            let refers = match meaning::of(step, self.names) {
                Meaning::Model(provider, _) | Meaning::Pattern(provider, _) => {
                    self.is_provider(provider.as_str())
                }
                Meaning::Combo(name) => self.is_combo(name),
                Meaning::Nothing => false,
            };
            if refers {
                self.note(path.clone(), &who);
            }
            if let Some(step) = step.model_step() {
                self.step_connections(&path, step, &who);
            }
        }
        let config = &combo.config;
        let judge = config
            .fusion
            .as_ref()
            .and_then(|it| it.judge_model.as_ref());
        for (member, model) in [
            ("handoffModel", config.handoff_model.as_ref()),
            ("fusion.judgeModel", judge),
        ] {
            if model.is_some_and(|model| self.is_model(model)) {
                self.note(format!("{path}.config.{member}"), &who);
            }
        }
        let pool = config.auto.iter().flat_map(|auto| &auto.candidate_pool);
        for (index, provider) in pool.enumerate() {
            if self.is_provider(provider) {
                let field = format!("{path}.config.auto.candidatePool[{index}]");
                self.note(field, &who);
            }
        }
    }

    fn step_connections(&mut self, path: &str, step: &ModelStep, who: &str) {
        let pin = step.connection.as_ref();
        if pin.is_some_and(|pin| self.is_connection(pin.as_str())) {
            self.note(format!("{path}.connection"), who);
        }
        for (index, connection) in step.allowed_connections.iter().enumerate() {
            if self.is_connection(connection.as_str()) {
                self.note(format!("{path}.allowedConnections[{index}]"), who);
            }
        }
    }

    /// Mappings, quota pools and rows of models, which have no names of their own.
    fn others(&mut self, document: &Document) {
        for (index, mapping) in document.model_mappings.iter().enumerate() {
            if self.is_combo(mapping.combo.as_str()) {
                let who = format!("the mapping of {}", mapping.pattern);
                self.note(format!("modelMappings[{index}].combo"), &who);
            }
        }
        for (index, pool) in document.quota_pools.iter().enumerate() {
            let (path, who) = (
                format!("quotaPools[{index}]"),
                format!("the quota pool of {}", pool.group),
            );
            if self.is_provider(pool.provider.as_str()) {
                self.note(format!("{path}.provider"), &who);
            }
            for (number, shared) in pool.connections.iter().enumerate() {
                if self.is_connection(shared.connection.as_str()) {
                    self.note(format!("{path}.connections[{number}]"), &who);
                }
            }
        }
        for (index, row) in document.models.iter().enumerate() {
            if self.is_model(&row.model) {
                let who = format!("the row of {}", row.model);
                self.note(format!("models[{index}].model"), &who);
            }
        }
    }

    fn keys(&mut self, document: &Document) {
        for (index, key) in document.keys.iter().enumerate() {
            let who = format!("key {}", key.id);
            for (number, connection) in key.allowed_connections.iter().enumerate() {
                if self.is_connection(connection.as_str()) {
                    let field = format!("keys[{index}].allowedConnections[{number}]");
                    self.note(field, &who);
                }
            }
            for (number, model) in key.allowed_models.iter().enumerate() {
                // What is the name of a combo is one, whatever it begins with.
                let refers = if self.names.is_combo(model) {
                    self.is_combo(model)
                } else {
                    self.is_model(model)
                };
                if refers {
                    self.note(format!("keys[{index}].allowedModels[{number}]"), &who);
                }
            }
        }
    }
}
