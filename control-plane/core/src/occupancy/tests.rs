use super::*;

fn at(ms: u64) -> Timestamp {
    Timestamp(1_000_000).plus_ms(ms)
}

fn connection(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn session(id: &str) -> SessionKey {
    SessionKey::of_headers(|_| Some(id.as_bytes())).unwrap()
}

#[test]
fn a_session_occupies_an_account_until_its_last_request_ends() {
    let mut occupancy = Occupancy::default();
    let (c1, one, two) = (connection("c1"), session("one"), session("two"));
    let first = occupancy.reserve(&c1, &one, at(0)).unwrap();
    let second = occupancy.reserve(&c1, &one, at(1)).unwrap();
    assert_eq!(occupancy.others(&c1, Some(&two), at(2)), 1);
    assert_eq!(occupancy.others(&c1, Some(&one), at(2)), 0);
    assert_eq!(occupancy.others(&c1, None, at(2)), 1);
    occupancy.release(first);
    assert_eq!(occupancy.others(&c1, Some(&two), at(2)), 1);
    occupancy.release(second);
    assert_eq!(occupancy.others(&c1, Some(&two), at(2)), 0);
    assert_eq!((occupancy.len(), occupancy.accounts.len()), (0, 0));
}

#[test]
fn a_session_whose_end_got_lost_goes_by_time_and_each_request_gives_it_more() {
    let mut occupancy = Occupancy::default();
    let (c1, one) = (connection("c1"), session("one"));
    occupancy.reserve(&c1, &one, at(0));
    occupancy.reserve(&c1, &one, at(5));
    let end = 5 + OCCUPANCY_TTL_MS;
    assert_eq!(occupancy.others(&c1, None, at(end - 1)), 1);
    assert_eq!(occupancy.others(&c1, None, at(end)), 0);
}

#[test]
fn a_request_that_ends_late_does_not_end_what_came_after_its_time() {
    let mut occupancy = Occupancy::default();
    let (c1, one) = (connection("c1"), session("one"));
    let late = occupancy.reserve(&c1, &one, at(0)).unwrap();
    occupancy.reserve(&c1, &one, at(OCCUPANCY_TTL_MS)).unwrap();
    occupancy.release(late);
    assert_eq!(occupancy.others(&c1, None, at(OCCUPANCY_TTL_MS)), 1);
    assert_eq!(occupancy.len(), 1);
}

#[test]
fn as_many_are_known_as_may_be() {
    let mut occupancy = Occupancy::default();
    let c1 = connection("c1");
    for number in 0..MAX_OCCUPANTS {
        let session = session(&number.to_string());
        assert!(occupancy.reserve(&c1, &session, at(0)).is_some());
    }
    let further = session("further");
    assert!(occupancy.reserve(&c1, &further, at(1)).is_none());
    assert!(occupancy.reserve(&c1, &session("7"), at(1)).is_some());
    // What is over makes room.
    assert!(
        occupancy
            .reserve(&c1, &further, at(OCCUPANCY_TTL_MS))
            .is_some()
    );
    assert_eq!(occupancy.len(), 2);
}

/// An occupancy with so many sessions on c0, c1 and so on.
fn with_sessions(counts: &[usize]) -> Occupancy {
    let mut occupancy = Occupancy::default();
    for (index, count) in counts.iter().enumerate() {
        for number in 0..*count {
            let session = session(&format!("{index}-{number}"));
            occupancy.reserve(&connection(&format!("c{index}")), &session, at(0));
        }
    }
    occupancy
}

#[test]
fn the_most_occupied_are_told_first_and_ones_own_session_is_no_other() {
    let mut occupancy = with_sessions(&[2, 0, 1, 5]);
    let own = session("own");
    occupancy.reserve(&connection("c4"), &own, at(0));
    occupancy.reserve(&connection("c2"), &own, at(0));
    let mut told = |session: Option<&SessionKey>, limit: usize| {
        let told = occupancy.of_others(session, at(1), limit).into_iter();
        told.map(|(connection, others)| (connection.as_str().to_owned(), others))
            .collect::<Vec<_>>()
    };
    let entry = |name: &str, others: u32| (name.to_owned(), others);
    assert_eq!(
        told(Some(&own), 9),
        [entry("c3", 5), entry("c0", 2), entry("c2", 1)]
    );
    assert_eq!(told(Some(&own), 2), [entry("c3", 5), entry("c0", 2)]);
    assert_eq!(told(None, 9).len(), 4);
    assert_eq!((occupancy.len(), occupancy.is_empty()), (10, false));
    assert!(Occupancy::default().is_empty());
}

#[rstest::rstest]
#[case::the_more_available(&[2, 1], &[1, 1], "c1")]
#[case::equals_stay(&[1, 1], &[1, 1], "c0")]
#[case::one_step_behind(&[1, 0], &[1, 2], "c1")]
#[case::two_steps_behind(&[1, 0], &[1, 3], "c0")]
#[case::the_nearer_of_equals(&[1, 0, 0], &[1, 2, 1], "c2")]
#[case::a_preferred_one(&[1, 0], &[1, 0], "c1")]
fn a_selected_account_is_swapped_for_a_more_available_one(
    #[case] sessions: &[usize],
    #[case] priorities: &[u32],
    #[case] expected: &str,
) {
    let mut occupancy = with_sessions(sessions);
    let names: Vec<ConnectionId> = (0..sessions.len())
        .map(|index| connection(&format!("c{index}")))
        .collect();
    let peers: Vec<Peer<'_>> = names
        .iter()
        .zip(priorities)
        .map(|(connection, priority)| Peer {
            connection,
            priority: *priority,
        })
        .collect();
    let swapped = occupancy.swap(peers[0], &peers, None, at(1));
    assert_eq!(swapped.connection.as_str(), expected);
}

/// Every session is known by one end, however often it comes, ends or goes by time.
#[test]
fn what_is_known_of_ends_and_of_accounts_agrees() {
    let mut occupancy = Occupancy::default();
    let mut held = Vec::new();
    for step in 0..2_000_u64 {
        let account = connection(&format!("c{}", step % 7));
        let now = at(step.saturating_mul(1_000));
        held.extend(occupancy.reserve(&account, &session(&(step % 97).to_string()), now));
        if step % 3 == 0 && held.len() > 50 {
            occupancy.release(held.remove(0));
        }
        let sessions = occupancy
            .accounts
            .values()
            .map(BTreeMap::len)
            .sum::<usize>();
        assert_eq!(occupancy.len(), sessions);
        let told = occupancy.of_others(None, now, usize::MAX);
        let told: u32 = told.iter().map(|(_, others)| *others).sum();
        assert_eq!(u32::try_from(sessions).unwrap(), told);
    }
    assert!(occupancy.len() > 97);
    occupancy.prune(at(10_000_000));
    assert!(occupancy.is_empty() && occupancy.accounts.is_empty());
}
