//! Tokens of the attempts of a request: each that gave an answer is recorded, once, when it ends
//! (`sessions-and-streams.md` §4.7).

use tidegate_core::outcome::{AttemptOutcome, Outcome};
use tidegate_core::usage::{Measured, OpenAttempt, TokenUsage, ToldTokens, UsageRecord};

use crate::control_port::ControlPort;
use crate::endpoint::Endpoint;
use crate::metrics::GenAiMetrics;
use crate::observe::Answered;
use crate::plan::{Unreadable, text};

use super::{InFlight, Life};

impl InFlight {
    /// Tells how it ended and counts how long it took, once: to its failure, or to its end.
    pub(super) fn ends(
        &mut self,
        gen_ai: &GenAiMetrics,
        endpoint: Endpoint,
        failed: Option<&Outcome>,
    ) {
        if !std::mem::replace(&mut self.has_ended, true) {
            if let Some(outcome) = failed {
                self.span.fails(outcome);
            }
            let seconds = self.sent.elapsed().as_secs_f64();
            gen_ai.operation(endpoint, &self.dispatch.attempt, seconds, failed);
        }
    }
}

impl<C: ControlPort> Life<C> {
    /// The answer of an attempt begins.
    pub(super) fn opens_usage(&self, success: &AttemptOutcome) {
        if !self.endpoint.uses_tokens() {
            return;
        }
        let attempt = &success.attempt;
        self.shared.control.opens(OpenAttempt {
            attempt: attempt.id,
            since: success.occurred_at,
            provider: attempt.provider.clone(),
            connection: attempt.connection.clone(),
            model: attempt.model.clone(),
            key: self.facts.key.as_ref().map(|key| key.id.clone()),
        });
    }

    /// The whole answer of the attempt in flight is here.
    pub(crate) fn uses_answer(&mut self, answer: &Answered) {
        // What is told need not be measured.
        let written = match answer.tokens.output {
            Some(_) => None,
            None => written(self.endpoint, &answer.body),
        };
        self.uses(answer.tokens.into(), written);
        self.is_complete();
    }

    /// The attempt in flight came to an end of its own, whatever becomes of what it answered.
    pub(crate) fn is_complete(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.ends(&self.shared.metrics.gen_ai, self.endpoint, None);
        }
    }

    /// What is known of the usage of the attempt in flight: what its provider told, and how many bytes the model wrote
    /// where they can be counted. Later words win.
    pub(crate) fn uses(&mut self, told: ToldTokens, written: Option<u64>) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.told = told;
            in_flight.written = written;
        }
    }

    /// An attempt that gave an answer has ended.
    pub(super) fn record_usage(&mut self, in_flight: &mut InFlight) {
        if !self.endpoint.uses_tokens() {
            return;
        }
        let measured = Measured {
            input_tokens: self.facts.estimated_tokens,
            output_bytes: in_flight.written,
        };
        let tokens = TokenUsage::of(in_flight.told, measured);
        self.usage = Some(self.usage.map_or(tokens, |before| before.plus(tokens)));
        self.shared.metrics.tokens.count(tokens);
        in_flight.span.uses(tokens);
        let attempt = &in_flight.dispatch.attempt;
        let gen_ai = &self.shared.metrics.gen_ai;
        gen_ai.tokens(self.endpoint, attempt, tokens);
        self.shared.control.record_usage(UsageRecord {
            attempt: attempt.id,
            at: self.shared.control.now(),
            provider: attempt.provider.clone(),
            connection: attempt.connection.clone(),
            model: attempt.model.clone(),
            key: self.facts.key.as_ref().map(|key| key.id.clone()),
            tokens,
        });
    }
}

/// Bytes of the text of a whole answer, where it can be read.
fn written(endpoint: Endpoint, body: &[u8]) -> Option<u64> {
    match text(endpoint, body) {
        Ok(text) => u64::try_from(text.len()).ok(),
        Err(Unreadable::Empty) => Some(0),
        Err(Unreadable::Unparseable) => None,
    }
}
