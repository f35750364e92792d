//! Tokens of attempts: each attempt that gave an answer is recorded once, with where its numbers come from
//! (`sessions-and-streams.md` §4.7).
//!
//! **Numbers.** What the provider told stands. What it did not tell is estimated: a provider bills what it has written,
//! also when its stream broke off or the client left. There is no tokenizer, since each family of models has its own and
//! an estimate within a third is enough to see where money went: [`estimated_tokens`] takes 4 bytes of UTF-8 for a token.
//! A record of which any number is estimated says so.
//!
//! **Once.** Records may be repeated and may come twice to two control planes: the first of an attempt stands. The one
//! exception is an attempt whose data plane was lost: it is recorded as [`UsageSource::Unknown`], and if its data plane
//! was only cut off and tells the real numbers later, those stand ([`UsageSource::replaces`]).
//!
//! **Lost data planes.** A data plane tells of answers that are under way, and again and again that it lives, all in the
//! durable store, so that it is one fact for the whole fleet. One that is silent for too long is lost. Silence proves
//! nothing while nobody could listen, so whoever looks must have had the durable store meanwhile ([`SilenceWatch`]).

use crate::ids::{AttemptId, ConnectionId, KeyId, ModelId, ProviderId};
use crate::time::Timestamp;

/// Bytes of UTF-8 that a token is taken for.
const BYTES_PER_TOKEN: u64 = 4;

/// Estimate of the tokens of a text of so many bytes: a quarter, rounded up.
#[must_use]
pub fn estimated_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Where the numbers of a record come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsageSource {
    /// The provider told them.
    Provider,
    /// At least one is estimated.
    Estimated,
    /// Nobody knows: the data plane was lost, or the answer could not be measured.
    Unknown,
}

impl UsageSource {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Provider, Self::Estimated, Self::Unknown];

    /// Its word in logs, metrics and the durable store.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Estimated => "estimated",
            Self::Unknown => "unknown",
        }
    }

    /// A record of this source takes the place of one that stands.
    #[must_use]
    pub fn replaces(self, standing: Self) -> bool {
        standing == Self::Unknown && self != Self::Unknown
    }
}

/// Tokens of an attempt as far as its provider told them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldTokens {
    /// Prompt, cached parts included.
    pub input: Option<u64>,
    /// Completion.
    pub output: Option<u64>,
}

/// What an attempt can be measured by. `None` = there is nothing of the kind, or it cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Estimate of the tokens of the request's body.
    pub input_tokens: Option<u64>,
    /// Bytes of UTF-8 that the model wrote: text, reasoning and arguments of tools, not what frames them.
    pub output_bytes: Option<u64>,
}

/// Tokens of an attempt and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenUsage {
    /// Prompt tokens, cached parts included, if known.
    pub input: Option<u64>,
    /// Completion tokens, if known.
    pub output: Option<u64>,
    /// Where they come from.
    pub source: UsageSource,
}

impl TokenUsage {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        input: None,
        output: None,
        source: UsageSource::Unknown,
    };

    /// What was told, and an estimate of the rest.
    #[must_use]
    pub fn of(told: ToldTokens, measured: Measured) -> Self {
        let input = told.input.or(measured.input_tokens);
        let output = told
            .output
            .or_else(|| measured.output_bytes.map(estimated_tokens));
        let source = match (input, output) {
            (None, None) => UsageSource::Unknown,
            _ if (input, output) == (told.input, told.output) => UsageSource::Provider,
            _ => UsageSource::Estimated,
        };
        Self {
            input,
            output,
            source,
        }
    }

    /// As whoever wrote these numbers means them who does not say where they are from: releases before there were
    /// sources recorded what the provider told, or nothing.
    #[must_use]
    pub fn without_source(input: Option<u64>, output: Option<u64>) -> Self {
        Self::of(ToldTokens { input, output }, Measured::default())
    }

    /// Both together, as far as they are known; as good as the worse of them.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |one: Option<u64>, two: Option<u64>| match (one, two) {
            (Some(one), Some(two)) => Some(one.saturating_add(two)),
            (one, two) => one.or(two),
        };
        Self {
            input: sum(self.input, other.input),
            output: sum(self.output, other.output),
            source: self.source.max(other.source),
        }
    }
}

/// Tokens of one attempt, counted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRecord {
    /// Unique: of two records of the same attempt one counts ([`UsageSource::replaces`]).
    pub attempt: AttemptId,
    /// When the attempt ended, in the store's time.
    pub at: Timestamp,
    /// Provider.
    pub provider: ProviderId,
    /// Connection.
    pub connection: ConnectionId,
    /// The upstream's model id.
    pub model: ModelId,
    /// The client's key, where one was used.
    pub key: Option<KeyId>,
    /// The tokens.
    pub tokens: TokenUsage,
}

/// An attempt whose answer is under way, so that a record of it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenAttempt {
    /// Which.
    pub attempt: AttemptId,
    /// When its answer began, in the store's time.
    pub since: Timestamp,
    /// Provider.
    pub provider: ProviderId,
    /// Connection.
    pub connection: ConnectionId,
    /// The upstream's model id.
    pub model: ModelId,
    /// The client's key, where one was used.
    pub key: Option<KeyId>,
}

/// Longest time from one word of a data plane with answers under way to its next, in ms.
pub const HEARD_EVERY_MS: u64 = 10_000;
/// So often a data plane is asked to speak in the time after which its silence is taken for its end.
const TIMES_HEARD: u64 = 6;
/// Shortest silence that may be taken for an end, in ms: a data plane that was told [`HEARD_EVERY_MS`] by another replica,
/// looks a second late, and whose first two calls hang for 2 s each, is still heard before.
pub const MIN_SILENCE_MS: u64 = HEARD_EVERY_MS + 5_000;

/// Within what time a data plane must be heard again where a silence of so long is taken for its end, in ms.
#[must_use]
pub fn again_within_ms(silence_ms: u64) -> u64 {
    (silence_ms / TIMES_HEARD).min(HEARD_EVERY_MS)
}

/// How well the silence of data planes has been listened to, by any clock that never runs back.
///
/// Time in which the durable store answered adds up, as far as the limit; time in which it did not, or in which this
/// process stood still, is taken off again. Silence proves an end while all of the limit has been listened to. So a moment
/// of deafness costs as long a moment, never a whole limit; and of the limit before a proof at least half was listened to,
/// in which a data plane had to speak several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilenceWatch {
    limit_ms: u64,
    every_ms: u64,
    /// Listened so long, up to when the durable store answered last.
    heard_ms: u64,
    answered_ms: Option<u64>,
    /// It failed to since.
    failed: bool,
}

impl SilenceWatch {
    /// Deaf until the durable store answers. A silence of `limit_ms` is an end, and there is a look every `every_ms`.
    #[must_use]
    pub fn new(limit_ms: u64, every_ms: u64) -> Self {
        Self {
            limit_ms,
            every_ms,
            heard_ms: 0,
            answered_ms: None,
            failed: false,
        }
    }

    /// The durable store answered.
    pub fn answered(&mut self, now_ms: u64) {
        self.heard_ms = self.listened_ms(now_ms);
        self.answered_ms = Some(now_ms);
        self.failed = false;
    }

    /// It did not, so nobody may have been able to say anything since it last did.
    pub fn failed(&mut self) {
        self.failed = true;
    }

    /// A data plane that was silent for the limit up to now had the time to speak.
    #[must_use]
    pub fn proves(&self, now_ms: u64) -> bool {
        !self.failed && self.answered_ms.is_some() && self.listened_ms(now_ms) >= self.limit_ms
    }

    /// With the time since the last answer. More than twice the time between two looks means that this process stood
    /// still, and heard nobody either.
    fn listened_ms(&self, now_ms: u64) -> u64 {
        let since_ms = self
            .answered_ms
            .map_or(0, |answered_ms| now_ms.saturating_sub(answered_ms));
        if self.failed || since_ms > self.every_ms.saturating_mul(2) {
            self.heard_ms.saturating_sub(since_ms)
        } else {
            self.heard_ms.saturating_add(since_ms).min(self.limit_ms)
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, 0)]
    #[case(1, 1)]
    #[case(4, 1)]
    #[case(5, 2)]
    #[case(400, 100)]
    #[case(u64::MAX, 1 << 62)]
    fn four_bytes_are_a_token(#[case] bytes: u64, #[case] tokens: u64) {
        assert_eq!(estimated_tokens(bytes), tokens);
    }

    #[rstest]
    #[case::told((Some(9), Some(7)), (Some(1), Some(4)), (Some(9), Some(7)), UsageSource::Provider)]
    #[case::nothing_told((None, None), (Some(3), Some(9)), (Some(3), Some(3)), UsageSource::Estimated)]
    #[case::broken_after_the_prompt_was_told(
        (Some(9), None), (Some(3), Some(9)), (Some(9), Some(3)), UsageSource::Estimated)]
    #[case::output_alone_told((None, Some(7)), (Some(3), Some(9)), (Some(3), Some(7)), UsageSource::Estimated)]
    #[case::nothing_was_written((None, None), (Some(3), Some(0)), (Some(3), Some(0)), UsageSource::Estimated)]
    #[case::there_is_no_output((Some(9), None), (Some(3), None), (Some(9), None), UsageSource::Provider)]
    #[case::input_alone_can_be_measured((None, None), (Some(3), None), (Some(3), None), UsageSource::Estimated)]
    #[case::nothing_can_be_measured((None, None), (None, None), (None, None), UsageSource::Unknown)]
    #[case::zero_is_told((Some(0), Some(0)), (Some(3), Some(9)), (Some(0), Some(0)), UsageSource::Provider)]
    fn what_is_not_told_is_estimated(
        #[case] told: (Option<u64>, Option<u64>),
        #[case] measured: (Option<u64>, Option<u64>),
        #[case] tokens: (Option<u64>, Option<u64>),
        #[case] source: UsageSource,
    ) {
        let told = ToldTokens {
            input: told.0,
            output: told.1,
        };
        let measured = Measured {
            input_tokens: measured.0,
            output_bytes: measured.1,
        };
        let usage = TokenUsage::of(told, measured);
        assert_eq!((usage.input, usage.output), tokens);
        assert_eq!(usage.source, source);
    }

    #[test]
    fn without_a_source_it_is_the_provider_or_nobody() {
        let source = |input, output| TokenUsage::without_source(input, output).source;
        assert_eq!(source(Some(1), None), UsageSource::Provider);
        assert_eq!(source(None, None), UsageSource::Unknown);
    }

    #[test]
    fn a_sum_is_as_good_as_its_worse_part() {
        let of = |input, output, source| TokenUsage {
            input,
            output,
            source,
        };
        let told = of(Some(1), Some(u64::MAX), UsageSource::Provider);
        let estimated = of(None, Some(2), UsageSource::Estimated);
        let sum = of(Some(1), Some(u64::MAX), UsageSource::Estimated);
        assert_eq!(told.plus(estimated), sum);
        assert_eq!(estimated.plus(told), sum);
        let unknown = of(Some(1), Some(u64::MAX), UsageSource::Unknown);
        assert_eq!(told.plus(TokenUsage::UNKNOWN), unknown);
    }

    #[test]
    fn only_what_is_unknown_is_replaced_and_only_by_what_is_known() {
        for standing in UsageSource::ALL {
            for new in UsageSource::ALL {
                let expected = standing == UsageSource::Unknown && new != UsageSource::Unknown;
                assert_eq!(new.replaces(standing), expected, "{new:?} for {standing:?}");
            }
        }
    }

    /// Looks every 10 s of which one is as each letter says (`.` the store answers, `x` it does not), and when silence of
    /// 60 s first proves an end, if it does.
    #[rstest]
    #[case::from_the_start(".......", Some(60))]
    #[case::not_before_it_answers("xxx.......", Some(90))]
    #[case::one_slow_look_costs_its_own_time("...x.......", Some(100))]
    #[case::half_of_it_failed(".x.x.x.x.x.x.x.x.x.x.x", None)]
    #[case::for_longer_than_the_limit("...xxxxxxx......", None)]
    fn silence_proves_an_end_when_the_limit_was_listened_to(
        #[case] looks: &str,
        #[case] proves: Option<u64>,
    ) {
        let mut watch = SilenceWatch::new(60_000, 10_000);
        let mut first = None;
        for (second, look) in (0_u64..).step_by(10).zip(looks.chars()) {
            let now_ms = 1_000 * second;
            if look == 'x' {
                watch.failed();
            } else {
                if watch.proves(now_ms) {
                    first = first.or(Some(second));
                }
                watch.answered(now_ms);
            }
        }
        assert_eq!(first, proves);
    }

    #[test]
    fn a_moment_of_deafness_costs_as_long_a_moment() {
        let at = |second: u64| 1_000 * second;
        let mut watch = SilenceWatch::new(60_000, 10_000);
        for second in (0..=600).step_by(10) {
            watch.answered(at(second));
        }
        assert!(watch.proves(at(610)));
        watch.failed();
        assert!(!watch.proves(at(610)), "it may be away still");
        watch.answered(at(620));
        assert!(!watch.proves(at(639)));
        watch.answered(at(630));
        assert!(!watch.proves(at(639)));
        assert!(watch.proves(at(640)));
    }

    #[test]
    fn who_stood_still_heard_nobody() {
        let mut watch = SilenceWatch::new(40, 10);
        for now_ms in [0, 10, 20, 40] {
            watch.answered(now_ms);
        }
        assert!(watch.proves(60), "late, but listening");
        assert!(!watch.proves(61));
        watch.answered(61);
        watch.answered(71);
        assert!(!watch.proves(81));
        watch.answered(81);
        assert!(watch.proves(82));
        assert!(!watch.proves(10_000));
        watch.answered(10_000);
        for now_ms in [10_010, 10_020, 10_030] {
            watch.answered(now_ms);
        }
        assert!(!watch.proves(10_039) && watch.proves(10_040));
    }

    #[rstest]
    #[case(MIN_SILENCE_MS, 2_500)]
    #[case(60_000, 10_000)]
    #[case(3_600_000, HEARD_EVERY_MS)]
    fn however_long_silence_may_last_data_planes_are_heard_several_times(
        #[case] silence_ms: u64,
        #[case] again_ms: u64,
    ) {
        assert_eq!(again_within_ms(silence_ms), again_ms);
    }
}
