//! Where requests of a session go (`sessions-and-streams.md` §2, decision 43).

use std::collections::BTreeSet;

use rstest::rstest;

use super::*;
use crate::affinity::{AttemptEnd, Pin, PinChange, after_attempt};
use crate::config::Strategy;
use crate::cooldown::Cooldown;
use crate::lease::{Generation, LeaseName, OwnerHash};
use crate::session_key::SessionKey;

const TTL_MS: u64 = 60_000;
const ACCOUNTS: [&str; 4] = ["p/a", "p/b", "p/c", "p/d"];

fn session(id: &str) -> SessionKey {
    SessionKey::of_headers(|_| Some(id.as_bytes())).unwrap()
}

fn connection(id: &str) -> ConnectionId {
    ConnectionId::new(id).unwrap()
}

fn key(provider: &str, id: &str) -> PinKey {
    PinKey::new(&ProviderId::new(provider).unwrap(), None, &session(id))
}

/// Four accounts of a provider behind the combo `c`, and a request of the session `s`.
fn world(ttl_ms: u64) -> World {
    world_of(&ACCOUNTS, &["p/m"], Strategy::Priority, ttl_ms)
}

fn world_of(connections: &[&str], steps: &[&str], strategy: Strategy, ttl_ms: u64) -> World {
    let settings = json!({"sessionAffinityTtlMs": ttl_ms});
    let mut world = World::combo(connections, steps, json!({}), settings);
    let mut document = Document::clone(&world.config.document);
    for combo in &mut document.combos {
        combo.strategy = strategy;
    }
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    world.facts.session_key = Some(session("s"));
    world
}

impl World {
    fn of_session(mut self, id: &str) -> Self {
        self.facts.session_key = Some(session(id));
        self
    }

    /// The session is pinned here.
    fn pin(&mut self, id: &str) {
        let pin = Pin {
            connection: connection(id),
            created_at: START,
            expires_at: self.now.plus_ms(TTL_MS),
        };
        self.store(Some(pin));
    }

    fn store(&mut self, pin: Option<Pin>) {
        self.view.pins.insert(key("p", "s"), PinReading::Read(pin));
    }

    /// Sends the request; returns where to, after what becomes of the pin was stored.
    fn send(&mut self) -> String {
        let dispatch = self.dispatch();
        if let Some(write) = &dispatch.pin {
            assert_eq!(write.key, key("p", "s"));
            let PinReading::Read(stored) = self.view.pin(&write.key) else {
                panic!("nothing is left to be read");
            };
            assert_eq!(stored, write.change.before);
            self.store(write.change.after.clone());
        }
        dispatch.connection.to_string()
    }

    fn pinned(&self) -> Option<String> {
        match self.view.pin(&key("p", "s")) {
            PinReading::Read(pin) => pin.map(|pin| pin.connection.to_string()),
            PinReading::Unread => None,
        }
    }

    /// The account cools down for a second.
    fn cool(&mut self, id: &str) {
        let state = ConnectionState {
            cooldown: Cooldown {
                until: Some(self.now.plus_ms(1_000)),
                ..Cooldown::default()
            },
            ..ConnectionState::default()
        };
        self.connection_state(id, state);
    }
}

#[test]
fn vector_sessions_29_without_a_time_pins_are_ignored() {
    let mut off = world(0);
    off.pin("c");
    assert_eq!(off.send(), "a");
    assert_eq!(off.dispatch().pin, None);
    assert_eq!(off.pinned().as_deref(), Some("c"));
    let mut on = world(TTL_MS);
    on.pin("c");
    assert_eq!(on.send(), "c");
}

#[test]
fn a_session_is_placed_by_its_key_and_pinned_there() {
    let places: BTreeSet<String> = (0..40)
        .map(|number| world(TTL_MS).of_session(&format!("s{number}")).dispatch())
        .map(|dispatch| {
            let write = dispatch.pin.unwrap();
            let pin = write.change.after.unwrap();
            assert_eq!(write.change.before, None);
            assert_eq!(pin.connection, dispatch.connection);
            assert_eq!(pin.expires_at, START.plus_ms(TTL_MS));
            dispatch.connection.to_string()
        })
        .collect();
    assert_eq!(places.len(), ACCOUNTS.len(), "sessions spread over all");
    // Without a session the strategy of the provider has its say.
    let mut none = world(TTL_MS);
    none.facts.session_key = None;
    assert_eq!(
        (none.dispatch().connection, none.dispatch().pin),
        (connection("a"), None)
    );
}

#[test]
fn a_lost_pin_leads_to_the_same_account() {
    let mut world = world(TTL_MS);
    let before = world.send();
    world.store(None);
    assert_eq!(world.send(), before);
}

#[test]
fn vector_sessions_30_a_pin_on_a_cooling_account_moves_and_stays() {
    let mut world = world(TTL_MS);
    world.pin("a");
    world.cool("a");
    let moved = world.send();
    assert_ne!(moved, "a");
    assert_eq!(world.pinned().as_ref(), Some(&moved));
    world.now = world.now.plus_ms(5_000);
    assert_eq!(world.send(), moved, "the first account has recovered");
}

#[test]
fn vector_sessions_31_a_pin_that_was_not_read_is_asked_for() {
    let mut world = world(TTL_MS);
    world.view.pins.insert(key("p", "s"), PinReading::Unread);
    let Decision::ReadPin(wanted) = world.decide() else {
        panic!("decided without the pin");
    };
    assert_eq!(wanted, key("p", "s"));
    let other = Pin {
        connection: connection("d"),
        created_at: START,
        expires_at: START.plus_ms(TTL_MS),
    };
    world.store(Some(other));
    assert_eq!(world.send(), "d", "who was later adopts what stands there");
}

#[test]
fn vector_sessions_32_the_earlier_name_of_the_setting_keeps_sessions_of_any_provider() {
    let mut world = World::of(
        json!({
            "providers": [{"id": "glm", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "connections": [{"id": "a", "provider": "glm"}, {"id": "b", "provider": "glm"}],
            "settings": {"codexSessionAffinityTtlMs": 1_800_000},
        }),
        "glm/m",
    );
    world.facts.session_key = Some(session("abc"));
    let write = world.dispatch().pin.unwrap();
    assert_eq!(write.key, key("glm", "abc"));
    let after = write.change.after.unwrap();
    assert_eq!(after.expires_at, START.plus_ms(1_800_000));
}

/// What makes an account ineligible breaks its pins at the next selection (§2.4).
#[rstest]
#[case::cooling(|world: &mut World| world.cool("c"))]
#[case::terminal(|world: &mut World| {
    world.connection_state("c", ConnectionState {
        terminal: Some(crate::cooldown::Terminal {
            kind: crate::classify::TerminalKind::Banned,
            since: START,
            credential_version: 1,
            switched_off: false,
        }),
        ..ConnectionState::default()
    });
})]
#[case::excluded(|world: &mut World| { world.without_credential.insert(connection("c")); })]
#[case::deleted(|world: &mut World| {
    let mut document = Document::clone(&world.config.document);
    document.connections.retain(|it| it.id.as_str() != "c");
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
})]
fn what_excludes_an_account_replaces_its_pin(#[case] exclude: fn(&mut World)) {
    let mut world = world(TTL_MS);
    world.pin("c");
    assert_eq!(world.send(), "c");
    exclude(&mut world);
    let moved = world.send();
    assert_ne!(moved, "c");
    assert_eq!(world.pinned(), Some(moved));
}

#[test]
fn a_pin_whose_time_is_over_counts_no_longer() {
    let mut world = world(TTL_MS);
    let own = world.send();
    let other = ["a", "b"].into_iter().find(|it| *it != own);
    world.pin(other.unwrap());
    world.now = world.now.plus_ms(TTL_MS);
    assert_eq!(world.send(), own);
}

#[test]
fn a_full_account_keeps_its_sessions() {
    let mut world = world(TTL_MS);
    world.pin("c");
    world.view.full.insert(connection("c"));
    assert_ne!(world.send(), "c");
    assert_eq!(world.pinned().as_deref(), Some("c"));
    world.view.full.clear();
    assert_eq!(world.send(), "c");
}

#[test]
fn nothing_that_may_be_used_leaves_the_pin_alone() {
    let mut world = world(TTL_MS);
    world.pin("c");
    for account in ["a", "b", "c", "d"] {
        world.without_credential.insert(connection(account));
    }
    world.reject();
    assert_eq!(world.pinned().as_deref(), Some("c"));
}

/// Who waited for a place goes where it got it; the pin is made or kept up as without a wait.
#[rstest]
#[case::no_pin(None, |_: &mut World| {}, Some("b"))]
#[case::pinned_there(Some("b"), |world: &mut World| world.now = START.plus_ms(TTL_MS / 2), Some("b"))]
#[case::pinned_where_all_places_are_taken(Some("c"), |world: &mut World| {
    world.view.full.insert(connection("c"));
}, None)]
#[case::pinned_where_a_place_is_free_by_now(Some("c"), |_: &mut World| {}, None)]
#[case::pinned_where_it_may_not_go(Some("c"), |world: &mut World| world.cool("c"), Some("b"))]
fn a_request_that_waited_keeps_its_session_together(
    #[case] pinned: Option<&str>,
    #[case] change: fn(&mut World),
    #[case] written: Option<&str>,
    #[values(Strategy::Priority, Strategy::RoundRobin, Strategy::Headroom)] strategy: Strategy,
) {
    let mut world = world_of(&ACCOUNTS, &["p/m"], strategy, TTL_MS);
    world.store(None);
    if let Some(pinned) = pinned {
        world.pin(pinned);
    }
    change(&mut world);
    world.facts.granted = Some(connection("b"));
    let dispatch = world.dispatch();
    assert_eq!(dispatch.connection.as_str(), "b");
    assert_eq!(dispatch.excluded, []);
    let write = dispatch.pin.and_then(|write| write.change.after);
    let to = write.map(|pin| pin.connection.to_string());
    assert_eq!(to.as_deref(), written);
}

/// What names an account goes before pins, and leaves them alone.
#[rstest]
#[case::an_operator(|world: &mut World| world.facts.forced_connection = Some(connection("b")))]
#[case::an_operator_after_a_wait(|world: &mut World| {
    world.facts.forced_connection = Some(connection("b"));
    world.facts.granted = Some(connection("b"));
})]
#[case::a_step_after_a_wait(|world: &mut World| {
    let settings = json!({"sessionAffinityTtlMs": TTL_MS});
    world.config = World::combo(&ACCOUNTS, &["p/b/m"], json!({}), settings).config;
    world.facts.granted = Some(connection("b"));
})]
#[case::a_step(|world: &mut World| {
    let settings = json!({"sessionAffinityTtlMs": TTL_MS});
    world.config = World::combo(&ACCOUNTS, &["p/b/m"], json!({}), settings).config;
})]
#[case::a_key(|world: &mut World| {
    let key = json!({"id": "k", "sha256": "0".repeat(64), "allowedConnections": ["b"],
        "scopes": ["lease:exclusive"]});
    world.facts.key = Some(Arc::new(serde_json::from_value(key).unwrap()));
})]
#[case::a_lease(|world: &mut World| {
    world.facts.lease = Some(LeaseName {
        owner: OwnerHash::from_bytes([1; 32]),
        generation: Generation::try_from(1).unwrap(),
    });
    world.facts.forced_connection = Some(connection("b"));
})]
fn what_names_an_account_goes_before_pins(#[case] name: fn(&mut World)) {
    let mut world = world(TTL_MS);
    world.pin("c");
    name(&mut world);
    let dispatch = world.dispatch();
    assert_eq!((dispatch.connection.as_str(), dispatch.pin), ("b", None));
}

/// The strategies of accounts, and those that score them, come after a pin (§2.3).
#[rstest]
fn a_pin_goes_before_the_strategy(
    #[values(
        Strategy::Priority,
        Strategy::RoundRobin,
        Strategy::Random,
        Strategy::StrictRandom,
        Strategy::P2c,
        Strategy::LeastUsed,
        Strategy::Headroom,
        Strategy::ResetAware,
        Strategy::ResetWindow,
        Strategy::CacheOptimized,
        Strategy::QuotaShare
    )]
    strategy: Strategy,
    #[values("b", "d")] pinned: &str,
) {
    let mut world = world_of(&ACCOUNTS, &["p/m"], strategy, TTL_MS);
    world.counters = Counters::of(&world.config, None, 0);
    world.pin(pinned);
    for random in 0..8 {
        world.random = random;
        world.now = world.now.plus_ms(5_000);
        assert_eq!(world.send(), pinned);
    }
}

#[test]
fn what_a_scoring_strategy_chose_becomes_the_pin() {
    let mut world = world_of(&ACCOUNTS, &["p/m"], Strategy::Headroom, TTL_MS);
    let chosen = world.send();
    assert_eq!(world.pinned().as_ref(), Some(&chosen));
    world.cool(&chosen);
    let moved = world.send();
    assert_ne!(moved, chosen);
    assert_eq!(world.pinned(), Some(moved));
}

#[test]
fn the_order_of_the_models_stays() {
    let connections = ["p/a", "p/b", "q/x", "q/y"];
    let steps = ["q/m", "p/m"];
    let mut world = world_of(&connections, &steps, Strategy::Priority, TTL_MS);
    world.pin("b");
    let journey = world.run(|_, _| Reply::Failure(server_error()));
    let first = journey.attempts.first();
    assert!(first.is_some_and(|it| it.starts_with('q')), "{journey:?}");
    let at_p = journey.attempts.iter().find(|it| it.starts_with('p'));
    assert_eq!(at_p.map(String::as_str), Some("p/b/m"));
}

#[test]
fn a_failed_over_request_goes_to_the_rest_of_the_pool_and_is_pinned_there() {
    let mut world = world(TTL_MS).without_cooling();
    world.pin("c");
    let first = world.dispatch();
    assert_eq!(first.connection.as_str(), "c");
    let quota = UpstreamError {
        status: 429,
        ..UpstreamError::default()
    };
    world.fail(&first, &Outcome::Response(quota));
    let moved = world.send();
    assert_ne!(moved, "c");
    assert_eq!(world.pinned(), Some(moved));
}

fn server_error() -> Outcome {
    Outcome::Response(UpstreamError {
        status: 500,
        ..UpstreamError::default()
    })
}

fn response(status: u16) -> Outcome {
    Outcome::Response(UpstreamError {
        status,
        ..UpstreamError::default()
    })
}

/// The table of §2.4 about attempts: what an end of an attempt on the pinned account does to the pin.
#[rstest]
#[case::limited(response(429), true)]
#[case::server_error(response(500), true)]
#[case::unauthorized(response(401), true)]
#[case::unreachable(Outcome::Transport(crate::outcome::TransportFault::Connect), true)]
#[case::never_ready(Outcome::Stream(crate::outcome::StreamFault::ReadinessTimeout), true)]
#[case::target_timeout(Outcome::Local(crate::outcome::LocalFault::TargetExpired), true)]
#[case::execution_limit(Outcome::Local(crate::outcome::LocalFault::ExecutionExpired), false)]
#[case::client_fault(response(400), false)]
#[case::client_gone(Outcome::ClientAbort, false)]
#[case::no_permit(Outcome::Local(crate::outcome::LocalFault::PermitRefused), false)]
#[case::lease(Outcome::Local(crate::outcome::LocalFault::LeaseConflict), false)]
#[case::served(Outcome::Success, false)]
fn which_ends_break_a_pin(#[case] outcome: Outcome, #[case] breaks: bool) {
    let world = world(TTL_MS);
    let dispatch = world.dispatch();
    let policy = &world.config.provider(&dispatch.provider).unwrap().policy;
    let context = ClassifyContext::of(&dispatch.provider, policy, &dispatch.model, START);
    let end = AttemptEnd::of(&outcome, &classify(&outcome, &context));
    let pin = Pin {
        connection: dispatch.connection.clone(),
        created_at: START,
        expires_at: START.plus_ms(1),
    };
    let change = after_attempt(Some(&pin), &dispatch.connection, end);
    let removed = PinChange {
        before: Some(pin.clone()),
        after: None,
    };
    assert_eq!(change, breaks.then_some(removed));
    assert_eq!(after_attempt(Some(&pin), &connection("other"), end), None);
}

#[test]
fn an_explanation_shows_the_pin() {
    let mut world = world(TTL_MS);
    world.pin("c");
    let explanation = world.with_input(explain);
    let pinned: Vec<(&str, bool)> = explanation
        .targets
        .iter()
        .filter(|target| target.pinned)
        .filter_map(|target| Some((target.connection.as_ref()?.as_str(), target.chosen)))
        .collect();
    assert_eq!(pinned, [("c", true)]);
}
