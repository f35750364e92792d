//! What a watch shows and tries again, and what it reads when it begins anew.

mod fake;

use fake::Fake;

use super::*;

#[test]
fn what_an_operator_must_mend_is_not_tried_again() {
    for (status, passes) in [
        (Status::unavailable("x"), true),
        (Status::resource_exhausted("x"), true),
        (Status::cancelled("x"), true),
        (Status::unauthenticated("x"), false),
        (Status::permission_denied("x"), false),
        (Status::invalid_argument("x"), false),
    ] {
        let code = status.code();
        assert_eq!(may_pass(&status.into()), passes, "{code}");
    }
    assert!(!may_pass(&Failure::Closed));
}

#[test]
fn an_event_is_one_line_that_cannot_steer_a_terminal() {
    let event = Event {
        at_unix_ms: 0,
        kind: "configuration".to_owned(),
        description: "settings: a\nb".to_owned(),
        author: "admin ada".to_owned(),
        ..Event::default()
    };
    assert_eq!(
        line(&event),
        "1970-01-01T00:00:00Z  configuration  settings: a\u{fffd}b  (by admin ada)"
    );
    let event = Event {
        kind: "lock".to_owned(),
        provider: "p".to_owned(),
        connection: "c".to_owned(),
        description: "m".to_owned(),
        ..Event::default()
    };
    assert_eq!(line(&event), "1970-01-01T00:00:00Z  lock  p/c  m");
}

/// Where nothing passes the filter, a gap is not longer each time, and one that is too long ends nothing.
#[tokio::test]
async fn a_watch_for_what_is_rare_goes_on_from_where_it_was() {
    let fake = Fake::start().await;
    let mut client = fake.client();
    let arguments = WatchArguments {
        filter: EventArguments {
            kind: vec!["breaker".to_owned()],
            provider: None,
            connection: None,
        },
        count: Some(1),
    };
    // The watch ends when it has shown what the last connection tells.
    let ran = fake.serves(run(&mut client, arguments, Output::Json)).await;
    assert!(ran.is_ok(), "{ran:?}");
    // From a minute before the newest event of all that there was when it began before.
    let [first, second, third] = [0, 0, 1].map(|begun| fake::newest(begun) - 60_000);
    assert_eq!(fake.read_since(), [first, second, third]);
}
