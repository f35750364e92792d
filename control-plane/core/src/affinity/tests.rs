use rstest::rstest;

use super::*;

const TTL_MS: u64 = 60_000;

fn at(ms: u64) -> Timestamp {
    Timestamp(1_786_563_000_000).plus_ms(ms)
}

fn connections(names: &[&str]) -> Vec<ConnectionId> {
    names
        .iter()
        .map(|name| ConnectionId::new(name).unwrap())
        .collect()
}

fn session(id: &str) -> SessionKey {
    SessionKey::of_headers(|_| Some(id.as_bytes())).unwrap()
}

fn key(with: Option<&str>, id: &str) -> PinKey {
    let with = with.map(|name| KeyId::new(name).unwrap());
    PinKey::new(
        &ProviderId::new("glm").unwrap(),
        with.as_ref(),
        &session(id),
    )
}

/// The pin of one session, in a store that has nothing else.
#[derive(Default)]
struct Store {
    pin: Option<Pin>,
}

impl Store {
    /// A request of the session; where it goes.
    fn request(&mut self, pool: &[&str], ttl_ms: u64, now: Timestamp) -> Option<String> {
        let pool = connections(pool);
        let chosen = select(
            &key(Some("k1"), "abc"),
            self.pin.as_ref(),
            &pool,
            ttl_ms,
            now,
        )?;
        if let Some(change) = chosen.change {
            assert!(self.apply(change));
        }
        Some(chosen.connection.as_str().to_owned())
    }

    /// Compare and set.
    fn apply(&mut self, change: PinChange) -> bool {
        let unchanged = self.pin == change.before;
        if unchanged {
            self.pin = change.after;
        }
        unchanged
    }

    fn expires_at(&self) -> Option<Timestamp> {
        self.pin.as_ref().map(|pin| pin.expires_at)
    }
}

#[test]
fn vector_sessions_26_a_pin_belongs_to_an_api_key_a_provider_and_a_session() {
    let session = session("abc");
    assert_eq!(session.as_str(), "header:abc");
    let hash = |named: &str| hex::encode(Sha256::digest(named));
    // The contract's own form, which two clients with the same session id share.
    assert_eq!(
        hash("glm:header:abc"),
        "dcb2b5e8fbb286a08a70492cb9c2c5202965df0451f02f9ed1238f8e2beedeb1"
    );
    let ours = format!("glm:{}", hash("k1:glm:header:abc"));
    assert_eq!(key(Some("k1"), "abc").as_str(), ours);
    assert_ne!(key(Some("k1"), "abc"), key(Some("k2"), "abc"));
    assert_ne!(key(Some("k1"), "abc"), key(None, "abc"));
    assert_ne!(key(Some("k1"), "abc"), key(Some("k1"), "abd"));
}

#[test]
fn a_key_is_read_back() {
    let key = key(Some("k1"), "abc");
    assert_eq!(PinKey::parse(key.as_str()), Some(key.clone()));
    let upper = key.as_str().to_uppercase();
    let short = key.as_str().get(..key.as_str().len() - 1).unwrap();
    for text in ["", "glm", "glm:", ":00", upper.as_str(), short] {
        assert_eq!(PinKey::parse(text), None, "{text}");
    }
    let pin = Pin::new(ConnectionId::new("c1").unwrap(), TTL_MS, at(0));
    let payload = encode(&key, &pin).unwrap();
    assert_eq!(decode(&key, PIN_SCHEMA, &payload).unwrap(), pin);
    assert!(decode(&key, PIN_SCHEMA + 1, &payload).is_err());
    assert!(decode(&key, PIN_SCHEMA, b"{}").is_err());
}

#[test]
fn what_another_rule_chose_becomes_the_pin() {
    let c1 = ConnectionId::new("c1").unwrap();
    let pin = Pin::new(c1.clone(), TTL_MS, at(0));
    let went = |stored: Option<&Pin>, ms| went_to(stored, &c1, TTL_MS, at(ms));
    let made = |at_ms| Some(Pin::new(c1.clone(), TTL_MS, at(at_ms)));
    assert_eq!(went(None, 5).unwrap().after, made(5));
    assert_eq!(
        went(Some(&pin), 5),
        None,
        "it need not be written again yet"
    );
    let touched = went(Some(&pin), 30_000).unwrap();
    assert_eq!(
        touched.after.map(|pin| (pin.created_at, pin.expires_at)),
        Some((at(0), at(90_000)))
    );
    assert_eq!(went(Some(&pin), TTL_MS).unwrap().after, made(TTL_MS));
    let elsewhere = Pin::new(ConnectionId::new("c2").unwrap(), TTL_MS, at(0));
    let moved = went(Some(&elsewhere), 5).unwrap();
    assert_eq!((moved.before, moved.after), (Some(elsewhere), made(5)));
    assert_eq!(went_to(None, &c1, 0, at(0)), None);
}

#[test]
fn vector_sessions_29_a_pin_slides_and_ends_at_its_very_expiry() {
    let mut store = Store::default();
    assert_eq!(store.request(&["c1", "c2"], 0, at(0)), None);
    assert_eq!(store.pin, None);

    let first = store.request(&["c1", "c2"], TTL_MS, at(0));
    assert_eq!(store.expires_at(), Some(at(60_000)));
    assert_eq!(store.request(&["c2", "c1"], TTL_MS, at(59_999)), first);
    assert_eq!(store.expires_at(), Some(at(119_999)));

    let created = |store: &Store| store.pin.as_ref().map(|pin| pin.created_at);
    let mut used = Store {
        pin: store.pin.clone(),
    };
    assert_eq!(used.request(&["c1", "c2"], TTL_MS, at(119_998)), first);
    assert_eq!(created(&used), Some(at(0)));

    store.request(&["c1", "c2"], TTL_MS, at(119_999));
    assert_eq!(created(&store), Some(at(119_999)));
}

#[test]
fn vector_sessions_30_a_session_stays_where_it_was_sent() {
    let mut store = Store::default();
    assert_eq!(store.request(&["c1"], TTL_MS, at(0)).as_deref(), Some("c1"));
    assert_eq!(store.request(&["c2"], TTL_MS, at(1)).as_deref(), Some("c2"));
    for ms in [2, 30_000, 80_000] {
        let stays = store.request(&["c1", "c2"], TTL_MS, at(ms));
        assert_eq!(stays.as_deref(), Some("c2"));
    }
}

#[test]
fn vector_sessions_30_a_pin_that_ends_soon_is_used_beyond_its_first_end() {
    let mut store = Store::default();
    assert_eq!(store.request(&["c2"], 1_000, at(0)).as_deref(), Some("c2"));
    for ms in [900, 1_000, 1_899, 2_500] {
        let stays = store.request(&["c1", "c2"], 1_000, at(ms));
        assert_eq!(stays.as_deref(), Some("c2"), "{ms}");
    }
}

#[test]
fn vector_sessions_31_two_first_requests_at_once_agree() {
    let key = key(Some("k1"), "abc");
    let (one, other) = (connections(&["c1", "c2"]), connections(&["c2", "c1"]));
    let one = select(&key, None, &one, TTL_MS, at(0)).unwrap();
    let other = select(&key, None, &other, TTL_MS, at(5)).unwrap();
    assert_eq!(one.connection, other.connection);

    // Also where they see different pools: the later one adopts the pin that stands there.
    let mut store = Store::default();
    let only = connections(&["c1"]);
    let late = connections(&["c2", "c1"]);
    let early = select(&key, None, &only, TTL_MS, at(0)).unwrap();
    let first = select(&key, None, &late[..1], TTL_MS, at(0)).unwrap();
    assert!(store.apply(early.change.unwrap()));
    assert!(!store.apply(first.change.unwrap()));
    let again = select(&key, store.pin.as_ref(), &late, TTL_MS, at(1)).unwrap();
    assert_eq!((again.connection.as_str(), again.change), ("c1", None));
}

#[test]
fn a_session_that_lost_its_pin_lands_where_it_was() {
    let names = ["c1", "c2", "c3", "c4", "c5"];
    let mut store = Store::default();
    let before = store.request(&names, TTL_MS, at(0)).unwrap();
    store.pin = None;
    assert_eq!(
        store.request(&names, TTL_MS, at(1)).as_deref(),
        Some(before.as_str())
    );
    // Another connection that goes changes nothing.
    store.pin = None;
    let fewer: Vec<&str> = names
        .into_iter()
        .filter(|name| *name == before || *name != "c5")
        .collect();
    assert_eq!(store.request(&fewer, TTL_MS, at(2)), Some(before));
}

#[test]
fn sessions_spread_over_the_pool() {
    let pool = connections(&["c1", "c2", "c3"]);
    let used: std::collections::BTreeSet<ConnectionId> = (0..50)
        .map(|number| key(Some("k1"), &format!("session-{number}")))
        .map(|key| {
            select(&key, None, &pool, TTL_MS, at(0))
                .unwrap()
                .connection
                .clone()
        })
        .collect();
    assert_eq!(used.len(), pool.len());
}

#[test]
fn nothing_eligible_leaves_the_pin_alone() {
    let mut store = Store::default();
    store.request(&["c1"], TTL_MS, at(0));
    let before = store.pin.clone();
    assert_eq!(store.request(&[], TTL_MS, at(1)), None);
    assert_eq!(store.pin, before);
}

#[rstest]
#[case::a_short_one_every_second(10_000, 999, false)]
#[case::a_short_one_after_a_second(10_000, 1_000, true)]
#[case::a_long_one_before_a_twentieth(200_000, 9_999, false)]
#[case::a_long_one_after_a_twentieth(200_000, 10_000, true)]
fn a_pin_is_not_written_with_every_use(
    #[case] ttl_ms: u64,
    #[case] ms: u64,
    #[case] written: bool,
) {
    let mut store = Store::default();
    store.request(&["c1"], ttl_ms, at(0));
    let before = store.pin.clone();
    store.request(&["c1"], ttl_ms, at(ms));
    assert_eq!(store.pin != before, written);
}

#[test]
fn a_lowered_setting_acts_at_the_next_use() {
    let mut store = Store::default();
    store.request(&["c1"], 1_000_000, at(0));
    store.request(&["c1"], TTL_MS, at(1));
    assert_eq!(store.expires_at(), Some(at(1 + TTL_MS)));
}

#[rstest]
#[case::failed_over("c1", AttemptEnd::FailedOver, true)]
#[case::timed_out("c1", AttemptEnd::TargetTimeout, true)]
#[case::failed_over_elsewhere("c2", AttemptEnd::FailedOver, false)]
#[case::timed_out_elsewhere("c2", AttemptEnd::TargetTimeout, false)]
#[case::client_gone("c1", AttemptEnd::Abandoned, false)]
fn what_breaks_a_pin(#[case] tried: &str, #[case] end: AttemptEnd, #[case] breaks: bool) {
    let mut store = Store::default();
    store.request(&["c1"], TTL_MS, at(0));
    let tried = ConnectionId::new(tried).unwrap();
    if let Some(change) = after_attempt(store.pin.as_ref(), &tried, end) {
        assert!(store.apply(change));
    }
    assert_eq!(store.pin.is_none(), breaks);
    assert_eq!(after_attempt(None, &tried, end), None);
}

#[test]
fn a_late_failure_leaves_a_newer_pin() {
    let mut store = Store::default();
    store.request(&["c1"], TTL_MS, at(0));
    let tried = ConnectionId::new("c1").unwrap();
    let late = after_attempt(store.pin.as_ref(), &tried, AttemptEnd::FailedOver).unwrap();
    store.request(&["c2"], TTL_MS, at(1));
    assert!(!store.apply(late));
    assert_eq!(
        store
            .pin
            .map(|pin| pin.connection.as_str().to_owned())
            .as_deref(),
        Some("c2")
    );
}

#[rstest]
#[case::the_setting(None, 5, 5)]
#[case::the_request(Some(7.9), 5, 7)]
#[case::zero(Some(0.0), 5, 5)]
#[case::negative(Some(-1.0), 5, 5)]
#[case::no_number(Some(f64::NAN), 5, 5)]
#[case::infinite(Some(f64::INFINITY), 5, 5)]
#[case::off(None, 0, 0)]
#[case::bounded(None, u64::MAX, MAX_AFFINITY_TTL_MS)]
#[case::a_bounded_request(Some(1e300), 5, MAX_AFFINITY_TTL_MS)]
fn how_long_a_session_is_kept_together(
    #[case] of_request: Option<f64>,
    #[case] setting: u64,
    #[case] ms: u64,
) {
    assert_eq!(ttl_ms(of_request, setting), ms);
}
