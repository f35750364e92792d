//! What OpenTelemetry's GenAI conventions measure, by their names in Prometheus' spelling. `client` is us towards
//! providers, so each attempt counts; `server` is us towards our clients.
//!
//! Models are named by clients, so there are no more label values than [`MAX_MODELS`], and a model has one from its first
//! success on, so that names that nobody serves take no room: the others are counted together as [`OTHER`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;
use tidegate_core::outcome::{Attempt, Outcome};
use tidegate_core::usage::TokenUsage;
use tidegate_telemetry::FamilyRegistry;

use crate::endpoint::Endpoint;
use crate::spans::failure_code;

/// Most models of providers that are told apart.
const MAX_MODELS: usize = 200;
/// What the others are called.
const OTHER: &str = "_other";

/// The buckets that the conventions advise.
const SECONDS: [f64; 14] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const FIRST_SECONDS: [f64; 16] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Names as the conventions have them, dots as underscores.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: String,
    gen_ai_request_model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: String,
    gen_ai_request_model: String,
    /// Empty for a success.
    error_type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: String,
    gen_ai_request_model: String,
    gen_ai_token_type: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// See the module's documentation.
#[derive(Clone)]
pub(crate) struct GenAiMetrics {
    operations: Histograms<OperationLabels>,
    first_chunks: Histograms<Labels>,
    first_tokens: Histograms<Labels>,
    tokens: Histograms<TokenLabels>,
    /// Those that are told apart.
    models: Arc<RwLock<BTreeSet<(String, String)>>>,
    others: Counter,
}

impl fmt::Debug for GenAiMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GenAiMetrics")
            .field("models", &self.models.read().len())
            .finish_non_exhaustive()
    }
}

impl Default for GenAiMetrics {
    fn default() -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        let first_seconds: fn() -> Histogram = || Histogram::new(FIRST_SECONDS);
        let tokens: fn() -> Histogram = || Histogram::new(TOKENS);
        Self {
            operations: Family::new_with_constructor(seconds),
            first_chunks: Family::new_with_constructor(first_seconds),
            first_tokens: Family::new_with_constructor(first_seconds),
            tokens: Family::new_with_constructor(tokens),
            models: Arc::default(),
            others: Counter::default(),
        }
    }
}

impl GenAiMetrics {
    pub(super) fn name_in(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register_with_unit(
            "gen_ai_client_operation_duration",
            "Time from sending an attempt to its end, as OpenTelemetry's gen_ai.client.operation.duration",
            Unit::Seconds,
            self.operations.clone(),
        );
        registry.register_with_unit(
            "gen_ai_client_operation_time_to_first_chunk",
            "Time from sending an attempt to the first useful part of its stream",
            Unit::Seconds,
            self.first_chunks.clone(),
        );
        registry.register_with_unit(
            "gen_ai_server_time_to_first_token",
            "Time from a client's request to the first useful part of its stream, failed attempts and waits included",
            Unit::Seconds,
            self.first_tokens.clone(),
        );
        registry.register(
            "gen_ai_client_token_usage",
            "Tokens of attempts that gave an answer, as OpenTelemetry's gen_ai.client.token.usage",
            self.tokens.clone(),
        );
        registry
            .with_prefix("tidegate_dp")
            .register(
                "gen_ai_models_not_told_apart",
                "Measurements of attempts whose model is counted as _other: it has had no success, or as many are told apart as may be",
                self.others.clone(),
            );
    }

    /// An attempt has ended, or failed.
    pub(crate) fn operation(
        &self,
        endpoint: Endpoint,
        attempt: &Attempt,
        seconds: f64,
        failed: Option<&Outcome>,
    ) {
        let is_success = matches!(failed, None | Some(Outcome::Success));
        let Labels {
            gen_ai_operation_name,
            gen_ai_provider_name,
            gen_ai_request_model,
        } = self.labels(endpoint, attempt, is_success);
        let error_type = match failed {
            None | Some(Outcome::Success) => String::new(),
            Some(Outcome::Response(error)) if !error.embedded => error.status.to_string(),
            Some(outcome) => failure_code(outcome).to_owned(),
        };
        let labels = OperationLabels {
            gen_ai_operation_name,
            gen_ai_provider_name,
            gen_ai_request_model,
            error_type,
        };
        self.operations.get_or_create(&labels).observe(seconds);
    }

    /// The stream of an attempt is ready.
    pub(crate) fn first_chunk(&self, endpoint: Endpoint, attempt: &Attempt, seconds: f64) {
        let labels = self.labels(endpoint, attempt, true);
        self.first_chunks.get_or_create(&labels).observe(seconds);
    }

    /// The stream of a request is ready.
    pub(crate) fn first_token(&self, endpoint: Endpoint, attempt: &Attempt, seconds: f64) {
        let labels = self.labels(endpoint, attempt, true);
        self.first_tokens.get_or_create(&labels).observe(seconds);
    }

    /// An attempt that gave an answer has ended.
    pub(crate) fn tokens(&self, endpoint: Endpoint, attempt: &Attempt, usage: TokenUsage) {
        for (gen_ai_token_type, count) in [("input", usage.input), ("output", usage.output)] {
            let Some(count) = count else {
                continue;
            };
            let Labels {
                gen_ai_operation_name,
                gen_ai_provider_name,
                gen_ai_request_model,
            } = self.labels(endpoint, attempt, true);
            let labels = TokenLabels {
                gen_ai_operation_name,
                gen_ai_provider_name,
                gen_ai_request_model,
                gen_ai_token_type,
            };
            // More tokens than a u32 holds are in the last bucket in any case.
            let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
            self.tokens.get_or_create(&labels).observe(count);
        }
    }

    fn labels(&self, endpoint: Endpoint, attempt: &Attempt, is_success: bool) -> Labels {
        let named = (attempt.provider.to_string(), attempt.model.to_string());
        let (gen_ai_provider_name, gen_ai_request_model) = if self.tells_apart(&named, is_success) {
            named
        } else {
            self.others.inc();
            (named.0, OTHER.to_owned())
        };
        Labels {
            gen_ai_operation_name: endpoint.operation(),
            gen_ai_provider_name,
            gen_ai_request_model,
        }
    }

    fn tells_apart(&self, named: &(String, String), is_success: bool) -> bool {
        if self.models.read().contains(named) {
            return true;
        }
        if !is_success {
            return false;
        }
        let mut models = self.models.write();
        if models.len() >= MAX_MODELS {
            return models.contains(named);
        }
        models.insert(named.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
    use tidegate_core::outcome::StreamFault;
    use tidegate_core::version::Version;

    use super::*;

    fn attempt(model: usize) -> Attempt {
        Attempt {
            id: AttemptId {
                plane: PlaneIncarnation(1),
                number: 1,
            },
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new("c").unwrap(),
            model: ModelId::new(format!("m{model}")).unwrap(),
            decided_on: Version::default(),
            epoch: Version::default(),
            credential_version: 1,
            egress: None,
            probe: false,
            synthetic: false,
        }
    }

    fn encoded(metrics: &GenAiMetrics) -> String {
        let mut registry = Registry::default();
        metrics.name_in(&mut FamilyRegistry::of(&mut registry));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn names_are_those_of_the_conventions() {
        let metrics = GenAiMetrics::default();
        let broken = Outcome::Stream(StreamFault::IdleTimeout);
        metrics.operation(Endpoint::Messages, &attempt(1), 0.3, None);
        metrics.operation(Endpoint::Messages, &attempt(1), 0.3, Some(&broken));
        let text = encoded(&metrics);
        let line = "gen_ai_client_operation_duration_seconds_count{\
                    gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"p\",\
                    gen_ai_request_model=\"m1\",error_type=\"stream_idle_timeout\"} 1\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn models_beyond_the_limit_are_counted_together() {
        let metrics = GenAiMetrics::default();
        // Names that nobody serves take no room.
        let unknown = Outcome::Stream(StreamFault::IdleTimeout);
        for model in 1_000..1_000 + MAX_MODELS {
            metrics.operation(Endpoint::Messages, &attempt(model), 0.1, Some(&unknown));
        }
        for model in 0..MAX_MODELS + 5 {
            metrics.operation(Endpoint::ChatCompletions, &attempt(model), 0.1, None);
        }
        // One that is known stays known.
        metrics.operation(Endpoint::ChatCompletions, &attempt(0), 0.1, None);
        let text = encoded(&metrics);
        let counts = text
            .lines()
            .filter(|line| line.starts_with("gen_ai_client_operation_duration_seconds_count"));
        // Two of them are of the others: one for each operation and end.
        assert_eq!(counts.count(), MAX_MODELS + 2);
        assert!(
            text.contains("tidegate_dp_gen_ai_models_not_told_apart_total 205"),
            "{text}"
        );
    }
}
