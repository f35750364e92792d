use super::*;

fn permits() -> Permits {
    Permits::new(Kind::Permits, PlaneIncarnation(7), ClientMetrics::default())
}

fn pool(connection: &str) -> PoolName {
    PoolName {
        provider: ProviderId::new("p").unwrap(),
        connection: ConnectionId::new(connection).unwrap(),
    }
}

fn held(connection: &str, numbers: &[u64]) -> HeldPermits {
    HeldPermits {
        provider: "p".to_owned(),
        connection: connection.to_owned(),
        numbers: numbers.to_vec(),
    }
}

#[test]
fn the_message_names_what_is_held_and_what_asked() {
    let permits = permits();
    assert_eq!(permits.message(), None);
    let numbers: Vec<u64> = (0..4).map(|_| permits.next_number()).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    // Nothing was granted yet, so there is nothing to renew or free.
    assert_eq!(permits.message(), None);
    permits.hold(1, pool("a"));
    permits.hold(3, pool("b"));
    permits.answered(1);
    permits.answered(3);
    permits.answered(4);
    let message = permits.message().unwrap();
    assert_eq!((message.plane, message.newest), (7, 4));
    assert_eq!(message.asked, [2]);
    assert_eq!(message.held, [held("a", &[1]), held("b", &[3])]);
    permits.release(1);
    permits.release(3);
    let last = permits.message().unwrap();
    assert_eq!((last.newest, last.held.len()), (4, 0));
    assert_eq!(permits.message(), None);
    assert_eq!(permits.metrics.permits_held.get(), 0);
}

#[test]
fn an_attempt_that_nobody_is_asked_about_is_not_told_of() {
    let permits = permits();
    let asked = permits.next_number();
    assert_eq!(permits.next_unasked_number(), asked + 1);
    permits.hold(asked, pool("a"));
    let message = permits.message().unwrap();
    assert_eq!((message.newest, message.asked), (2, vec![asked]));
}

#[test]
fn what_is_given_back_is_named_until_it_was_heard() {
    let permits = permits();
    permits.hold(1, pool("a"));
    permits.hold(2, pool("a"));
    permits.hold(3, pool("b"));
    assert_eq!(permits.unheard(), []);
    permits.release(1);
    assert_eq!(permits.take_released().unwrap().released, [held("a", &[1])]);
    permits.release(3);
    assert_eq!(permits.unheard(), [held("a", &[1]), held("b", &[3])]);
    permits.hold(1, pool("a"));
    assert_eq!(permits.unheard(), [held("b", &[3])]);
}

#[test]
fn what_nobody_heard_is_given_back_again_with_what_came_since() {
    let permits = permits();
    permits.hold(1, pool("a"));
    permits.hold(2, pool("b"));
    permits.release(1);
    assert!(permits.take_released().is_some());
    permits.release(2);
    permits.was_unheard();
    let both = [held("a", &[1]), held("b", &[2])];
    assert_eq!(permits.unheard(), both);
    assert_eq!(permits.take_released().unwrap().released, both);
    // Whoever looks for more does not make it forgotten.
    assert_eq!(permits.take_released(), None);
    assert_eq!(permits.unheard(), both);
    assert_eq!(permits.metrics.permit_releases_failed.get(), 1);
}

#[test]
fn only_so_many_are_kept_that_nobody_hears_of() {
    let permits = permits();
    for number in 1..=MAX_RELEASED as u64 {
        permits.release_unused(number, pool("a"));
    }
    assert!(permits.take_released().is_some());
    let later = MAX_RELEASED as u64 + 1..=(MAX_RELEASED + MAX_NUMBERS) as u64;
    for number in later {
        permits.release_unused(number, pool("a"));
    }
    permits.was_unheard();
    assert_eq!(permits.state.lock().released.len(), MAX_NUMBERS);
    let dropped = permits.metrics.permit_releases_dropped.get();
    assert_eq!(dropped, MAX_RELEASED as u64);
}

#[test]
fn a_question_names_only_so_many_of_the_newest() {
    let permits = permits();
    for number in 1..=300 {
        permits.hold(number, pool("a"));
        permits.release(number);
    }
    let named = permits.unheard();
    assert_eq!(
        named.iter().map(|it| it.numbers.len()).sum::<usize>(),
        MAX_NAMED
    );
    assert!(
        named
            .iter()
            .all(|it| it.numbers.contains(&300) && !it.numbers.contains(&44))
    );
}

#[test]
fn probes_are_named_until_there_is_a_verdict() {
    let permits = permits();
    let provider = ProviderId::new("p").unwrap();
    permits.probes(1, &provider);
    let named = HeldProbe {
        provider: "p".to_owned(),
        number: 1,
    };
    assert_eq!(permits.message().unwrap().probes, [named]);
    permits.probe_is_over(1);
    assert_eq!(permits.message(), None);
}

#[test]
fn only_so_many_probes_are_kept_in_mind() {
    let permits = permits();
    let provider = ProviderId::new("p").unwrap();
    for number in 0..2_000 {
        permits.probes(number, &provider);
    }
    assert_eq!(permits.message().unwrap().probes.len(), MAX_PROBES);
}

#[test]
fn what_ended_is_given_back_once_and_together() {
    let permits = permits();
    for number in [1, 2] {
        permits.hold(number, pool("a"));
    }
    permits.hold(3, pool("b"));
    for number in [1, 2, 3, 3, 9] {
        permits.release(number);
    }
    let released = permits.take_released().unwrap();
    assert_eq!(released.released, [held("a", &[1, 2]), held("b", &[3])]);
    assert_eq!(permits.take_released(), None);
}

#[test]
fn an_attempt_that_goes_elsewhere_gives_the_first_permit_back() {
    let permits = permits();
    permits.hold(1, pool("a"));
    permits.hold(1, pool("b"));
    permits.hold(1, pool("b"));
    // In use, so no word of a lost grant takes it away.
    permits.release_unused(1, pool("b"));
    let released = permits.take_released().unwrap();
    assert_eq!(released.released, [held("a", &[1])]);
    permits.release_unused(2, pool("b"));
    let released = permits.take_released().unwrap();
    assert_eq!(released.released, [held("b", &[2])]);
    assert_eq!(permits.metrics.permits_held.get(), 1);
}

#[test]
fn a_permit_of_a_late_answer_is_kept_until_the_attempt_is_decided_on() {
    let permits = permits();
    permits.deciding(1);
    permits.release_late(1, pool("a"));
    permits.release_late(1, pool("b"));
    assert_eq!(permits.take_released(), None);
    permits.hold(1, pool("a"));
    assert!(permits.decided(1).is_empty());
    let released = permits.take_released().unwrap();
    assert_eq!(released.released, [held("b", &[1])]);
    permits.release_late(1, pool("a"));
    assert_eq!(permits.take_released(), None, "it is in use");
    permits.release_late(1, pool("c"));
    let released = permits.take_released().unwrap();
    assert_eq!(released.released, [held("c", &[1])]);
}

#[test]
fn a_permit_that_is_held_again_is_not_given_back() {
    let permits = permits();
    permits.release_unused(1, pool("a"));
    permits.hold(1, pool("a"));
    assert_eq!(permits.take_released(), None);
}

#[test]
fn a_probe_of_a_late_answer_is_given_back_unless_it_is_in_use() {
    let permits = permits();
    let [p, q] = ["p", "q"].map(|id| ProviderId::new(id).unwrap());
    permits.deciding(1);
    assert!(!permits.gives_back_late_probe(1, &p));
    assert!(!permits.gives_back_late_probe(1, &q));
    permits.probes(1, &p);
    assert_eq!(permits.decided(1), std::slice::from_ref(&q));
    assert!(!permits.gives_back_late_probe(1, &p), "it is in use");
    assert!(permits.gives_back_late_probe(1, &q));
    permits.probe_is_over(1);
    assert!(permits.gives_back_late_probe(1, &p));
}

#[test]
fn a_share_counts_everything_that_is_held_here() {
    let permits = permits();
    permits.hold(1, pool("a"));
    assert!(permits.take_share(2, &pool("a"), 2));
    assert!(permits.take_share(2, &pool("a"), 2));
    assert!(!permits.take_share(3, &pool("a"), 2));
    assert!(permits.take_share(3, &pool("b"), 1));
    permits.release(1);
    assert!(permits.take_share(4, &pool("a"), 2));
}

#[test]
fn a_renewal_that_failed_is_tried_again_no_later_than_the_next_is_due() {
    for (every_ms, failed, pause_ms) in [
        (10_000, false, 10_000),
        (10_000, true, 1_000),
        (300, false, 300),
        (300, true, 300),
    ] {
        let every = Duration::from_millis(every_ms);
        assert_eq!(pause(every, failed), Duration::from_millis(pause_ms));
    }
}
