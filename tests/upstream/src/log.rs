//! What the upstream was asked.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;

use crate::selector::{Selector, Subject};

/// So much of a request's body is kept, in bytes.
pub(crate) const KEPT_BODY: usize = 64 * 1024;
/// Different (model, credential, path) that are counted apart; requests of further ones count for [`Selector::any`] only.
const MOST_SUBJECTS: usize = 4096;
/// How often [`RequestLog::wait_for`] looks.
const EVERY: Duration = Duration::from_millis(5);

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All that was to be sent has been handed to the connection.
    Answered,
    /// The upstream broke off on purpose ([`crate::Mode::Reset`], [`crate::Mode::CutAfter`]), or said [`crate::Mode::Raw`].
    Broken,
    /// The client left, or the upstream was stopped.
    Aborted,
}

/// One request as it came in.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// Its place in the order of arrival, from 1.
    pub number: u64,
    /// When it had been read, since the upstream's start.
    pub at: Duration,
    /// The method.
    pub method: Method,
    /// The path without query.
    pub path: String,
    /// The query, if there was one.
    pub query: Option<String>,
    /// All headers.
    pub headers: HeaderMap,
    /// The first 64 KiB of the body.
    pub body: Bytes,
    /// Length of the whole body in bytes.
    pub body_length: usize,
    /// The body's member `model`.
    pub model: Option<String>,
    /// Bearer token or `x-api-key`.
    pub credential: Option<String>,
    /// How it ended; `None` while it runs.
    pub ending: Option<Ending>,
    /// When, since the upstream's start.
    pub ended_at: Option<Duration>,
}

impl RecordedRequest {
    /// A header's value, if it is there and is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON, if it is JSON and was kept whole.
    #[must_use]
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    fn subject(&self) -> Subject {
        Subject {
            model: self.model.clone(),
            credential: self.credential.clone(),
            path: self.path.clone(),
        }
    }
}

/// All counts, and the newest requests.
#[derive(Debug)]
pub struct RequestLog {
    started: Instant,
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    total: u64,
    counts: HashMap<Subject, u64>,
    newest: VecDeque<RecordedRequest>,
}

impl RequestLog {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            started: Instant::now(),
            capacity,
            inner: Mutex::default(),
        }
    }

    /// The moment that all times of requests count from.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// How many requests have come in that `selector` matches. Exact, also for those no longer kept, for up to 4096
    /// different subjects.
    #[must_use]
    pub fn count(&self, selector: &Selector) -> u64 {
        let inner = self.inner.lock();
        let matching = inner
            .counts
            .iter()
            .filter(|(subject, _)| selector.matches(subject));
        matching.map(|(_, count)| count).sum()
    }

    /// The newest requests that `selector` matches, in the order of arrival.
    #[must_use]
    pub fn requests(&self, selector: &Selector) -> Vec<RecordedRequest> {
        let inner = self.inner.lock();
        let matching = inner
            .newest
            .iter()
            .filter(|request| selector.matches(&request.subject()));
        matching.cloned().collect()
    }

    /// The newest request that `selector` matches.
    #[must_use]
    pub fn last(&self, selector: &Selector) -> Option<RecordedRequest> {
        let inner = self.inner.lock();
        inner
            .newest
            .iter()
            .rev()
            .find(|request| selector.matches(&request.subject()))
            .cloned()
    }

    /// The most requests that `selector` matches and that were under way at the same time, of those kept.
    #[must_use]
    pub fn most_at_once(&self, selector: &Selector) -> usize {
        let requests = self.requests(selector);
        let under_way = |at: Duration| {
            let running = requests
                .iter()
                .filter(|other| other.at <= at && other.ended_at.is_none_or(|end| end > at));
            running.count()
        };
        requests
            .iter()
            .map(|request| under_way(request.at))
            .max()
            .unwrap_or_default()
    }

    /// Forgets everything, counts as well.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.counts.clear();
        inner.newest.clear();
    }

    /// Waits until [`Self::count`] is at least `count`; false when `limit` passes first.
    #[must_use = "the limit may have passed"]
    pub async fn wait_for(&self, selector: &Selector, count: u64, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.count(selector) < count {
            if Instant::now() >= end {
                return false;
            }
            sleep(EVERY).await;
        }
        true
    }

    /// Waits until the newest request that `selector` matches has ended; `None` when `limit` passes first.
    pub async fn wait_for_ending(&self, selector: &Selector, limit: Duration) -> Option<Ending> {
        let end = Instant::now() + limit;
        loop {
            let ending = self.last(selector).and_then(|request| request.ending);
            if ending.is_some() || Instant::now() >= end {
                return ending;
            }
            sleep(EVERY).await;
        }
    }

    /// Counts and keeps a request (its `number` and `at` are set here) and gives its number.
    pub(crate) fn record(&self, mut request: RecordedRequest) -> u64 {
        let mut inner = self.inner.lock();
        inner.total += 1;
        request.number = inner.total;
        request.at = self.started.elapsed();
        let mut subject = request.subject();
        if inner.counts.len() >= MOST_SUBJECTS && !inner.counts.contains_key(&subject) {
            subject = Subject {
                model: None,
                credential: None,
                path: String::new(),
            };
        }
        *inner.counts.entry(subject).or_default() += 1;
        let number = request.number;
        if self.capacity > 0 {
            while inner.newest.len() >= self.capacity {
                inner.newest.pop_front();
            }
            inner.newest.push_back(request);
        }
        number
    }

    pub(crate) fn end(&self, number: u64, ending: Ending) {
        let at = self.started.elapsed();
        let mut inner = self.inner.lock();
        let found = inner
            .newest
            .iter_mut()
            .rev()
            .find(|request| request.number == number);
        if let Some(request) = found {
            request.ending.get_or_insert(ending);
            request.ended_at.get_or_insert(at);
        }
    }
}
