//! Growing pauses between tries, with jitter, so that a fleet does not come back in step.

use std::time::Duration;

/// Pauses that double up to a cap.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    cap: Duration,
    current: Duration,
    tries: usize,
}

impl Backoff {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Self {
            first,
            cap,
            current: first,
            tries: 0,
        }
    }

    /// It worked.
    pub(crate) fn reset(&mut self) {
        self.current = self.first;
        self.tries = 0;
    }

    /// The next pause: between half of it and the whole.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.current;
        self.current = whole.saturating_mul(2).min(self.cap);
        whole.mul_f64(0.5 + 0.5 * rand::random::<f64>())
    }

    /// As [`Backoff::next`], but only after each of `alternatives` was tried once; until then nothing.
    pub(crate) fn next_after(&mut self, alternatives: usize) -> Duration {
        self.tries = self.tries.saturating_add(1);
        if self.tries < alternatives {
            return Duration::ZERO;
        }
        self.tries = 0;
        self.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_start_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(300));
        for whole in [100, 200, 300, 300] {
            let pause = backoff.next();
            assert!(pause >= ms(whole) / 2 && pause <= ms(whole), "{pause:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= ms(100));
    }

    #[test]
    fn alternatives_are_tried_before_the_first_pause() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(300));
        assert_eq!(backoff.next_after(3), Duration::ZERO);
        assert_eq!(backoff.next_after(3), Duration::ZERO);
        assert!(backoff.next_after(3) >= ms(50));
        assert_eq!(backoff.next_after(3), Duration::ZERO);
    }
}
