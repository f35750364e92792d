//! What upstreams tell of their limits. Times travel as lengths, so that clocks of data planes do not matter.

use tidegate_core::admission::{MAX_AHEAD_MS, Place, Told, ToldRequests, ToldTokens};
use tidegate_core::time::Timestamp;
use tidegate_proto::routing::v1 as routing;

/// What an answer told, as a message sent at `now`; `None` when all of it has passed.
#[must_use]
pub fn told_to_proto(
    told: &Told,
    place: Option<Place>,
    now: Timestamp,
) -> Option<routing::ToldLimits> {
    let requests = told.requests.filter(|told| told.resets_at > now);
    let requests = requests.map(|told| routing::ToldRequests {
        limit: told.limit.unwrap_or(0),
        remaining: told.remaining,
        resets_in_ms: told.resets_at.remaining_ms(now),
    });
    let tokens = told.tokens.and_then(|told| match told {
        ToldTokens::Left => Some(routing::ToldTokens { resets_in_ms: 0 }),
        ToldTokens::NoneUntil(then) if then > now => Some(routing::ToldTokens {
            resets_in_ms: then.remaining_ms(now),
        }),
        ToldTokens::NoneUntil(_) => None,
    });
    (requests.is_some() || tokens.is_some()).then(|| routing::ToldLimits {
        requests,
        tokens,
        place: place.map(place_to_proto),
    })
}

/// What an answer told, from a message that came at `now`. A window that ends too late, or has ended, is left out.
#[must_use]
pub fn told_from_proto(message: &routing::ToldLimits, now: Timestamp) -> (Told, Option<Place>) {
    let is_followed = |ms: u64| (1..=MAX_AHEAD_MS).contains(&ms);
    let requests = message
        .requests
        .filter(|told| is_followed(told.resets_in_ms))
        .map(|told| ToldRequests {
            limit: (told.limit > 0).then_some(told.limit),
            remaining: told.remaining,
            resets_at: now.plus_ms(told.resets_in_ms),
        });
    let tokens = message.tokens.and_then(|told| match told.resets_in_ms {
        0 => Some(ToldTokens::Left),
        ms if is_followed(ms) => Some(ToldTokens::NoneUntil(now.plus_ms(ms))),
        _ => None,
    });
    let place = message.place.map(place_from_proto);
    (Told { requests, tokens }, place)
}

/// A place as a message.
#[must_use]
pub fn place_to_proto(place: Place) -> routing::AdmittedPlace {
    routing::AdmittedPlace {
        number: place.number,
        settled: place.settled,
    }
}

/// A place from a message.
#[must_use]
pub fn place_from_proto(message: routing::AdmittedPlace) -> Place {
    Place {
        number: message.number,
        settled: message.settled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);
    /// The other side's clock.
    const THERE: Timestamp = Timestamp(5);

    #[test]
    fn what_was_told_arrives_by_another_clock() {
        let told = |now: Timestamp| Told {
            requests: Some(ToldRequests {
                limit: Some(10),
                remaining: 1,
                resets_at: now.plus_ms(2_000),
            }),
            tokens: Some(ToldTokens::NoneUntil(now.plus_ms(3_000))),
        };
        let place = Some(Place {
            number: 7,
            settled: 4,
        });
        let message = told_to_proto(&told(NOW), place, NOW).unwrap();
        assert_eq!(told_from_proto(&message, THERE), (told(THERE), place));
        // Of what has passed nothing is told.
        let later = told_to_proto(&told(NOW), place, NOW.plus_ms(2_000)).unwrap();
        assert_eq!(later.requests, None);
        assert_eq!(told_to_proto(&told(NOW), place, NOW.plus_ms(3_000)), None);
    }

    #[test]
    fn a_window_that_ends_too_late_is_left_out() {
        let message = routing::ToldLimits {
            requests: Some(routing::ToldRequests {
                limit: 0,
                remaining: 0,
                resets_in_ms: MAX_AHEAD_MS + 1,
            }),
            tokens: Some(routing::ToldTokens {
                resets_in_ms: u64::MAX,
            }),
            place: None,
        };
        let nothing = Told {
            requests: None,
            tokens: None,
        };
        assert_eq!(told_from_proto(&message, NOW), (nothing, None));
    }
}
