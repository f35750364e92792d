//! The context of a trace as W3C headers: `traceparent` and `tracestate`.
//!
//! What is read comes from strangers. A `traceparent` that is not exactly of the form that the recommendation gives, or
//! that there are two of, is as good as none; so is a `tracestate` that is too long, or has no meaning. Nothing else of a
//! client (`baggage`, say) is read or passed on.

use std::str::FromStr as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Longest `tracestate` that is passed on, in bytes: as much as everybody must take.
const MAX_STATE_BYTES: usize = 512;
/// Most members of one.
const MAX_STATE_MEMBERS: usize = 32;

/// Which span something belongs to, here or elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(pub(crate) SpanContext);

impl TraceContext {
    /// What a caller's headers say; `None` when that is nothing that can be used.
    #[must_use]
    pub fn of_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next()?;
        if parents.next().is_some() {
            return None;
        }
        let (trace_id, span_id, flags) = parse_parent(parent.to_str().ok()?)?;
        let state = state_of(headers).unwrap_or_default();
        Some(Self(SpanContext::new(
            trace_id, span_id, flags, true, state,
        )))
    }

    /// Tells whoever is called.
    pub fn write(&self, headers: &mut HeaderMap) {
        let context = &self.0;
        let flags = context.trace_flags() & TraceFlags::SAMPLED;
        let (trace, span) = (context.trace_id(), context.span_id());
        let parent = format!("00-{trace:032x}-{span:016x}-{:02x}", flags.to_u8());
        if let Ok(mut parent) = HeaderValue::try_from(parent) {
            // No other message has the same, so it must not push what repeats out of the tables of HTTP/2.
            parent.set_sensitive(true);
            headers.insert(TRACEPARENT, parent);
        }
        let state = context.trace_state().header();
        if !state.is_empty()
            && let Ok(state) = HeaderValue::try_from(state)
        {
            headers.insert(TRACESTATE, state);
        }
    }

    /// The trace, as 32 hexadecimal digits, if it is sampled: what is not will not be found.
    #[must_use]
    pub fn sampled_trace_id(&self) -> Option<String> {
        self.0
            .is_sampled()
            .then(|| format!("{:032x}", self.0.trace_id()))
    }
}

/// `version "-" trace-id "-" parent-id "-" flags`, all of lower-case hexadecimal digits. Later versions may say more
/// behind another dash.
fn parse_parent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut parts = text.trim().splitn(5, '-');
    let mut digits = |count: usize| {
        let part = parts.next()?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (part.len() == count && part.bytes().all(is_digit)).then_some(part)
    };
    let version = digits(2)?;
    let trace = TraceId::from_hex(digits(32)?).ok()?;
    let span = SpanId::from_hex(digits(16)?).ok()?;
    let flags = u8::from_str_radix(digits(2)?, 16).ok()?;
    let ends_here = parts.next().is_none();
    let is_known = match version {
        "ff" => false,
        "00" => ends_here,
        _ => true,
    };
    let is_valid = trace != TraceId::INVALID && span != SpanId::INVALID;
    (is_known && is_valid).then_some((trace, span, TraceFlags::new(flags) & TraceFlags::SAMPLED))
}

/// Several headers are one list.
fn state_of(headers: &HeaderMap) -> Option<TraceState> {
    let mut joined = String::new();
    for value in headers.get_all(TRACESTATE) {
        let value = value.to_str().ok()?.trim();
        if value.is_empty() {
            continue;
        }
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(value);
        if joined.len() > MAX_STATE_BYTES {
            return None;
        }
    }
    let members = joined.split(',').count();
    if joined.is_empty() || members > MAX_STATE_MEMBERS {
        return None;
    }
    TraceState::from_str(&joined).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::try_from(*value).unwrap());
        }
        headers
    }

    #[rstest]
    #[case::sampled(PARENT, true)]
    #[case::not_sampled("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true)]
    #[case::unknown_flags("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-fe", true)]
    #[case::later_version("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", true)]
    #[case::more("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false)]
    #[case::no_version("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false)]
    #[case::upper_case("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false)]
    #[case::sign("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false)]
    #[case::short_trace("00-0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01", false)]
    #[case::no_trace("00-00000000000000000000000000000000-b7ad6b7169203331-01", false)]
    #[case::no_span("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false)]
    #[case::nothing("", false)]
    #[case::not_ascii("00-\u{e4}-b7ad6b7169203331-01", false)]
    fn parents_are_read_by_the_letter(#[case] parent: &str, #[case] is_good: bool) {
        let read = TraceContext::of_headers(&headers(&[("traceparent", parent)]));
        assert_eq!(read.is_some(), is_good);
    }

    #[test]
    fn two_parents_are_none() {
        let twice = headers(&[("traceparent", PARENT), ("traceparent", PARENT)]);
        assert_eq!(TraceContext::of_headers(&twice), None);
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        let state = "vendor=a:b,other=1";
        let given = headers(&[("traceparent", PARENT), ("tracestate", state)]);
        let context = TraceContext::of_headers(&given).unwrap();
        let mut written = HeaderMap::new();
        context.write(&mut written);
        assert_eq!(written, given);
        let id = context.sampled_trace_id();
        assert_eq!(id.as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
    }

    #[test]
    fn a_state_that_is_too_long_is_dropped_and_its_parent_is_not() {
        // One value may have 256 bytes.
        let first = format!("a={}", "x".repeat(254));
        let rest = MAX_STATE_BYTES - first.len() - ",v=".len();
        let longest = format!("{first},v={}", "x".repeat(rest));
        for (state, is_kept) in [(longest.clone(), true), (format!("{longest}x"), false)] {
            let given = headers(&[("traceparent", PARENT), ("tracestate", &state)]);
            let context = TraceContext::of_headers(&given).unwrap();
            assert_eq!(context.0.trace_state().get("v").is_some(), is_kept);
        }
        let many: Vec<String> = (0..=MAX_STATE_MEMBERS)
            .map(|it| format!("k{it}=1"))
            .collect();
        let given = headers(&[("traceparent", PARENT), ("tracestate", &many.join(","))]);
        let context = TraceContext::of_headers(&given).unwrap();
        assert_eq!(context.0.trace_state().header(), "");
    }

    #[test]
    fn several_states_are_one_list() {
        let given = headers(&[
            ("traceparent", PARENT),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
        ]);
        let context = TraceContext::of_headers(&given).unwrap();
        assert_eq!(context.0.trace_state().header(), "a=1,b=2");
    }
}
