//! What upstreams' headers told of their limits, until whoever counts has heard of it (decision 45).
//!
//! An account with plenty left is not in here, and its requests ask nobody. One that told that little is left is, by
//! model: its requests ask before they go and say what their answers tell, as long as the control plane says that it
//! counts them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::admission::{Place, Told, WATCH_MS};
use tidegate_core::ids::{ConnectionId, ModelId};
use tidegate_core::time::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::metrics::ClientMetrics;
use crate::port::Lesson;

/// Most models on connections that anything is learned of at once.
const MAX_LEARNED: usize = 4_096;
/// How often those that ended are forgotten.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct LearnedPaces {
    paces: Mutex<BTreeMap<(ConnectionId, ModelId), Pace>>,
    metrics: ClientMetrics,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Requests ask until then.
    until: Timestamp,
    /// What nobody who counts has heard yet.
    unheard: Option<Unheard>,
    /// What was told last, heard or not: all there is to go by when nobody counts.
    newest: Option<Unheard>,
}

/// What the newest answer told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unheard {
    pub(crate) told: Told,
    pub(crate) place: Option<Place>,
    /// When its request was sent.
    sent_at: Timestamp,
}

#[cfg(test)]
impl Unheard {
    pub(crate) fn of(told: Told, sent_at: Timestamp) -> Self {
        Self {
            told,
            place: None,
            sent_at,
        }
    }
}

impl LearnedPaces {
    pub(crate) fn new(metrics: ClientMetrics) -> Self {
        Self {
            paces: Mutex::default(),
            metrics,
        }
    }

    /// Takes what an answer told, if it holds back or is of a model whose requests are counted.
    pub(crate) fn learn(&self, lesson: &Lesson, now: Timestamp) {
        let key = (lesson.connection.clone(), lesson.model.clone());
        let holds_back = lesson.told.holds_back();
        let mut paces = self.paces.lock();
        let known = paces.get(&key).copied().filter(|pace| pace.until > now);
        if known.is_none() && !holds_back {
            return;
        }
        if known.is_none() && !self.has_room(&mut paces, now) {
            self.metrics.learned_dropped.inc();
            return;
        }
        let unheard = Unheard {
            told: lesson.told,
            place: lesson.place,
            sent_at: lesson.sent_at,
        };
        let before = known.and_then(|pace| pace.unheard);
        let is_newer = before.is_none_or(|before| before.sent_at <= unheard.sent_at);
        let watched = if holds_back {
            lesson.told.ends_at().plus_ms(WATCH_MS)
        } else {
            now
        };
        let pace = Pace {
            until: known.map_or(watched, |pace| pace.until.max(watched)),
            unheard: if is_newer { Some(unheard) } else { before },
            newest: match known.and_then(|pace| pace.newest) {
                Some(newest) if newest.sent_at > unheard.sent_at => Some(newest),
                _ => Some(unheard),
            },
        };
        if known.is_none() {
            let Lesson {
                connection, model, ..
            } = lesson;
            tracing::debug!(%connection, %model, told = ?lesson.told, "an upstream tells that little is left");
        }
        paces.insert(key, pace);
        self.count(&paces);
    }

    /// Whether requests to this model are to ask.
    pub(crate) fn is_learned(
        &self,
        connection: &ConnectionId,
        model: &ModelId,
        now: Timestamp,
    ) -> bool {
        let paces = self.paces.lock();
        // Hardly any account is in here.
        !paces.is_empty()
            && paces
                .get(&(connection.clone(), model.clone()))
                .is_some_and(|pace| pace.until > now)
    }

    /// What is to be told with a question about this model.
    pub(crate) fn unheard(&self, connection: &ConnectionId, model: &ModelId) -> Option<Unheard> {
        let paces = self.paces.lock();
        paces
            .get(&(connection.clone(), model.clone()))
            .and_then(|pace| pace.unheard)
    }

    /// What is known here of this model while nobody counts.
    pub(crate) fn newest(
        &self,
        connection: &ConnectionId,
        model: &ModelId,
        now: Timestamp,
    ) -> Option<Unheard> {
        let paces = self.paces.lock();
        paces
            .get(&(connection.clone(), model.clone()))
            .and_then(|pace| pace.newest)
            .filter(|newest| newest.told.ends_at() > now)
    }

    /// A question was answered with which this was told, by somebody who counts until then. One who does not, and should,
    /// could not: it is told again.
    pub(crate) fn heard(
        &self,
        connection: &ConnectionId,
        model: &ModelId,
        told: Option<Unheard>,
        until: Timestamp,
        now: Timestamp,
    ) {
        let key = (connection.clone(), model.clone());
        let mut paces = self.paces.lock();
        let Some(pace) = paces.get_mut(&key) else {
            if until > now && self.has_room(&mut paces, now) {
                let pace = Pace {
                    until,
                    unheard: None,
                    newest: None,
                };
                paces.insert(key, pace);
                self.count(&paces);
            }
            return;
        };
        if pace.unheard == told {
            let holds = |it: Unheard| it.told.holds_back() && it.told.ends_at() > now;
            if until <= now && told.is_some_and(holds) {
                return;
            }
            *pace = Pace {
                until,
                unheard: None,
                newest: pace.newest,
            };
        }
        if pace.until <= now {
            paces.remove(&key);
            self.count(&paces);
        }
    }

    /// This data plane counts alone, until then.
    pub(crate) fn counts_here(&self, connection: &ConnectionId, model: &ModelId, until: Timestamp) {
        let key = (connection.clone(), model.clone());
        if let Some(pace) = self.paces.lock().get_mut(&key) {
            pace.until = pace.until.max(until);
        }
    }

    /// Forgets what has ended, until told to stop.
    pub(crate) async fn tidy(&self, now: impl Fn() -> Timestamp, stop: &CancellationToken) {
        while stop.run_until_cancelled(sleep(TIDY_EVERY)).await.is_some() {
            let mut paces = self.paces.lock();
            forget_ended(&mut paces, now());
            self.count(&paces);
        }
    }

    fn has_room(
        &self,
        paces: &mut BTreeMap<(ConnectionId, ModelId), Pace>,
        now: Timestamp,
    ) -> bool {
        if paces.len() >= MAX_LEARNED {
            forget_ended(paces, now);
        }
        paces.len() < MAX_LEARNED
    }

    fn count(&self, paces: &BTreeMap<(ConnectionId, ModelId), Pace>) {
        let count = i64::try_from(paces.len()).unwrap_or(i64::MAX);
        self.metrics.learned_paces.set(count);
    }
}

fn forget_ended(paces: &mut BTreeMap<(ConnectionId, ModelId), Pace>, now: Timestamp) {
    paces.retain(|_, pace| pace.until > now);
}

#[cfg(test)]
mod tests {
    use tidegate_core::admission::{ToldRequests, ToldTokens};

    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp(1_000_000).plus_ms(ms)
    }

    fn lesson(connection: &str, remaining: u32, sent_at: u64) -> Lesson {
        Lesson {
            connection: ConnectionId::new(connection).unwrap(),
            model: ModelId::new("m").unwrap(),
            told: Told {
                requests: Some(ToldRequests {
                    limit: Some(100),
                    remaining,
                    resets_at: at(5_000),
                }),
                tokens: Some(ToldTokens::Left),
            },
            place: None,
            sent_at: at(sent_at),
        }
    }

    struct Scene(LearnedPaces, ConnectionId, ModelId);

    impl Scene {
        fn new() -> Self {
            let lesson = lesson("c", 0, 0);
            let paces = LearnedPaces::new(ClientMetrics::default());
            Self(paces, lesson.connection, lesson.model)
        }

        fn learn(&self, remaining: u32, sent_at: u64) {
            self.0.learn(&lesson("c", remaining, sent_at), at(sent_at));
        }

        fn is_learned(&self, ms: u64) -> bool {
            self.0.is_learned(&self.1, &self.2, at(ms))
        }

        fn unheard(&self) -> Option<Unheard> {
            self.0.unheard(&self.1, &self.2)
        }

        fn heard(&self, told: Option<Unheard>, until: u64, now: u64) {
            self.0.heard(&self.1, &self.2, told, at(until), at(now));
        }

        fn remaining(&self) -> Option<u32> {
            Some(self.unheard()?.told.requests?.remaining)
        }
    }

    #[test]
    fn an_account_with_plenty_left_is_not_kept() {
        let scene = Scene::new();
        scene.learn(11, 0);
        assert!(!scene.is_learned(0));
        assert_eq!(scene.unheard(), None);
        assert_eq!(scene.0.metrics.learned_paces.get(), 0);
    }

    #[test]
    fn one_that_told_is_told_until_it_was_heard_and_asks_as_long_as_it_is_counted() {
        let scene = Scene::new();
        scene.learn(10, 0);
        assert!(scene.is_learned(5_000 + WATCH_MS - 1) && !scene.is_learned(5_000 + WATCH_MS));
        let told = scene.unheard();
        assert!(told.is_some());
        scene.heard(told, 30_000, 10);
        assert_eq!(scene.unheard(), None);
        assert!(scene.is_learned(29_999) && !scene.is_learned(30_000));
        // From now on all answers are told, also those that say that there is plenty.
        scene.learn(90, 20);
        assert_eq!(scene.remaining(), Some(90));
        scene.heard(scene.unheard(), 0, 30);
        assert!(!scene.is_learned(30));
        assert_eq!(scene.0.metrics.learned_paces.get(), 0);
    }

    #[test]
    fn the_answer_of_the_request_that_was_sent_last_is_told() {
        let scene = Scene::new();
        scene.learn(10, 5);
        scene.learn(0, 4);
        assert_eq!(scene.remaining(), Some(10));
        scene.learn(3, 6);
        assert_eq!(scene.remaining(), Some(3));
    }

    #[test]
    fn what_came_after_the_question_is_still_to_be_told() {
        let scene = Scene::new();
        scene.learn(10, 0);
        let told = scene.unheard();
        scene.learn(0, 1);
        scene.heard(told, 0, 2);
        assert_eq!(scene.remaining(), Some(0));
        assert!(scene.is_learned(2));
    }

    #[test]
    fn what_nobody_counts_is_told_again_as_long_as_it_holds() {
        let scene = Scene::new();
        scene.learn(0, 0);
        let told = scene.unheard();
        scene.heard(told, 0, 10);
        assert_eq!(scene.unheard(), told);
        assert!(scene.is_learned(11));
        scene.heard(told, 0, 5_000);
        assert!(!scene.is_learned(5_000));
    }

    #[test]
    fn who_is_told_that_it_is_counted_asks_too() {
        let scene = Scene::new();
        scene.heard(None, 100, 0);
        assert!(scene.is_learned(99));
        scene.heard(None, 200, 1);
        assert!(scene.is_learned(199));
    }

    #[test]
    fn only_so_many_are_kept_and_those_that_ended_make_room() {
        let scene = Scene::new();
        for number in 0..=MAX_LEARNED {
            scene.0.learn(&lesson(&format!("c{number}"), 0, 0), at(0));
        }
        let limit = i64::try_from(MAX_LEARNED).unwrap();
        assert_eq!(scene.0.metrics.learned_paces.get(), limit);
        assert_eq!(scene.0.metrics.learned_dropped.get(), 1);
        scene.0.learn(&lesson("d", 0, 0), at(5_000 + WATCH_MS));
        assert_eq!(scene.0.metrics.learned_paces.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_ended_are_forgotten() {
        let scene = Scene::new();
        scene.learn(0, 0);
        let stop = CancellationToken::new();
        let tidy = scene.0.tidy(|| at(5_000 + WATCH_MS), &stop);
        let stopped = async {
            sleep(TIDY_EVERY + Duration::from_secs(1)).await;
            stop.cancel();
        };
        tokio::join!(tidy, stopped);
        assert_eq!(scene.0.metrics.learned_paces.get(), 0);
    }
}
