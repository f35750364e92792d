use redis::Value;
use tidegate_core::ids::{PlaneIncarnation, Shard};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Version};
use tidegate_store::hot::{
    HotStoreError, MarkMove, RefusalReason, ReportMark, ShardWrite, WriteOutcome, WriteValue,
};

use super::{StreamEntry, announced, begun, check, image, position, streams, write_outcome};

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn array(values: Vec<Value>) -> Value {
    Value::Array(values)
}

fn write() -> ShardWrite {
    let value = |key: &str| WriteValue {
        key: key.to_owned(),
        expected: None,
        schema: 1,
        payload: vec![],
        expires_at: Timestamp(1),
    };
    ShardWrite {
        shard: Shard::new(0).unwrap(),
        incarnation: Incarnation(5),
        not_after: Timestamp(9),
        values: vec![value("p:a"), value("p:b")],
        marks: vec![MarkMove {
            plane: PlaneIncarnation(4),
            first: 1,
            last: 2,
        }],
    }
}

#[test]
fn a_refusal_is_read_with_what_stands() {
    let answer = array(vec![
        text("refused"),
        text("conflict"),
        text("5"),
        text("77"),
        array(vec![Value::Nil, text("2 5 8 99\nx")]),
        array(vec![text("3")]),
    ]);
    let WriteOutcome::Refused(refusal) = write_outcome(answer, &write()).unwrap() else {
        panic!("not a refusal");
    };
    assert_eq!(refusal.reason, RefusalReason::Conflict);
    assert_eq!(refusal.incarnation, Some(Incarnation(5)));
    assert_eq!(refusal.now, Timestamp(77));
    let [None, Some(entry)] = refusal.values.as_slice() else {
        panic!("{:?}", refusal.values);
    };
    assert_eq!(
        (entry.key.as_str(), entry.version),
        ("p:b", Version::new(5, 8))
    );
    let mark = ReportMark {
        plane: PlaneIncarnation(4),
        number: 3,
    };
    assert_eq!(refusal.marks, [mark]);
}

#[test]
fn answers_outside_the_contract_are_errors() {
    let short = array(vec![
        text("refused"),
        text("conflict"),
        text("5"),
        text("77"),
        array(vec![Value::Nil]),
        array(vec![Value::Nil]),
    ]);
    for answer in [
        Value::Nil,
        Value::Okay,
        array(vec![]),
        array(vec![text("written")]),
        array(vec![text("written"), text("-1"), text("7")]),
        array(vec![text("perhaps")]),
        array(vec![text("refused"), text("mood")]),
        short,
    ] {
        let shown = format!("{answer:?}");
        let error = write_outcome(answer, &write()).unwrap_err();
        assert!(
            matches!(error, HotStoreError::Protocol(_)),
            "{shown}: {error}"
        );
    }
    assert!(check(array(vec![text("x")])).is_err());
    assert!(image(array(vec![text("5"), text("1"), text("2"), text("3")])).is_err());
    let foreign = array(vec![text("zzz"), text("1")]);
    assert!(
        image(array(vec![
            text("5"),
            text("1"),
            text("2"),
            text("3"),
            foreign
        ]))
        .is_err()
    );
    assert!(begun(Value::Nil).is_err());
    assert!(announced(array(vec![text("replica")])).is_err());
    assert!(streams(Value::Int(1)).is_err());
    assert!(position(array(vec![text("5"), text("1")])).is_err());
}

#[test]
fn an_incarnation_of_another_server_is_found_but_does_not_stand() {
    let state = check(array(vec![text("5"), text("0"), text("2"), text("3")])).unwrap();
    assert_eq!(
        (state.incarnation, state.found),
        (None, Some(Incarnation(5)))
    );
    let state = check(array(vec![text(""), text("0"), text("0"), text("3")])).unwrap();
    assert_eq!((state.incarnation, state.found), (None, None));
}

#[test]
fn stream_entries_are_read_in_order_also_unknown_ones() {
    let entry = |id: &str, fields: Vec<Value>| array(vec![text(id), array(fields)]);
    let answer = array(vec![array(vec![
        text("tidegate:1:{s00}:stream"),
        array(vec![
            entry("5-0", vec![text("begin"), text("5")]),
            entry(
                "5-1",
                vec![
                    text("v:p:a"),
                    text("1 5 1 9\nx"),
                    text("r:0000000000000004"),
                    text("2"),
                ],
            ),
            entry("5-2", vec![text("w:new"), text("1")]),
        ]),
    ])]);
    let read = streams(answer).unwrap();
    let [(key, entries)] = read.as_slice() else {
        panic!("{read:?}");
    };
    assert_eq!(key, "tidegate:1:{s00}:stream");
    let [
        StreamEntry::Begin(Incarnation(5)),
        StreamEntry::Change(change),
        StreamEntry::Unknown(version),
    ] = entries.as_slice()
    else {
        panic!("{entries:?}");
    };
    assert_eq!((change.entries.len(), change.marks.len()), (1, 1));
    assert_eq!(*version, Version::new(5, 2));
    assert_eq!(streams(Value::Nil).unwrap(), []);
}

#[test]
fn a_shard_without_meta_stands_nowhere() {
    assert_eq!(
        position(array(vec![Value::Nil, text("7")])).unwrap(),
        Version::default()
    );
    assert_eq!(
        position(array(vec![text("5 abc"), text("7")])).unwrap(),
        Version::new(5, 7)
    );
    assert_eq!(
        position(array(vec![text("5 abc"), Value::Nil])).unwrap(),
        Version::new(5, 0)
    );
}
