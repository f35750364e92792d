//! A limit on requests as providers keep it: so many in a window, told with every answer, 429 beyond.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A window that begins with the first request after the end of the one before. Clones are the same window.
#[derive(Debug, Clone)]
pub struct Window {
    limit: u32,
    lasts: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    ends_at: Option<Instant>,
    used: u32,
    windows: u64,
    refused: u64,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) refused: bool,
    pub(crate) headers: [(String, String); 3],
}

impl Window {
    /// `limit` requests in each window.
    #[must_use]
    pub fn new(limit: u32, lasts: Duration) -> Self {
        Self {
            limit,
            lasts,
            state: Arc::default(),
        }
    }

    /// How many windows began.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.state.lock().windows
    }

    /// How many requests were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state.lock().refused
    }

    pub(crate) fn count(&self, now: Instant) -> Counted {
        let mut state = self.state.lock();
        let ends_at = match state.ends_at.filter(|ends_at| *ends_at > now) {
            Some(ends_at) => ends_at,
            None => {
                state.used = 0;
                state.windows = state.windows.wrapping_add(1);
                now.checked_add(self.lasts).unwrap_or(now)
            }
        };
        state.ends_at = Some(ends_at);
        let refused = state.used >= self.limit;
        if refused {
            state.refused = state.refused.wrapping_add(1);
        } else {
            state.used = state.used.wrapping_add(1);
        }
        let remaining = self.limit.saturating_sub(state.used);
        let reset = ends_at.saturating_duration_since(now);
        let reset_ms = reset.as_micros().div_ceil(1_000);
        let header = |name: &str, value: String| (format!("x-ratelimit-{name}-requests"), value);
        Counted {
            refused,
            headers: [
                header("limit", self.limit.to_string()),
                header("remaining", remaining.to_string()),
                header("reset", format!("{reset_ms}ms")),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_window_and_each_answer_tells() {
        let window = Window::new(2, Duration::from_secs(3));
        let began = Instant::now();
        let at = |ms| window.count(began + Duration::from_millis(ms));
        let told = |counted: Counted| {
            let [_, (_, remaining), (_, reset)] = counted.headers;
            (counted.refused, remaining, reset)
        };
        let is = |refused, remaining: &str, reset: &str| {
            (refused, remaining.to_owned(), reset.to_owned())
        };
        assert_eq!(told(at(0)), is(false, "1", "3000ms"));
        assert_eq!(told(at(500)), is(false, "0", "2500ms"));
        assert_eq!(told(at(2_999)), is(true, "0", "1ms"));
        assert_eq!(told(at(3_100)), is(false, "1", "3000ms"));
        assert_eq!((window.windows(), window.refused()), (2, 1));
    }
}
