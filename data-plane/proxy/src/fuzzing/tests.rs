//! The same on a fixed number of inputs: transcripts with random damage, and any bytes.

use std::fs;
use std::panic::catch_unwind;

use proptest::prelude::*;

use super::transcripts::ALL;
use super::*;

/// Inputs of each kind. A few seconds without optimisation.
const INPUTS: u64 = 60_000;
/// Most bytes of an input.
const MAX_INPUT: usize = 250;

/// What damage puts in.
const WORDS: [&[u8]; 20] = [
    b"\n",
    b"\r\n",
    b"\r",
    b"\n\n",
    b"\r\n\r\n",
    b"data: ",
    b"data:",
    b"event: ",
    b": ",
    b"[DONE]",
    b"\xef\xbb\xbf",
    b"\xc3",
    b"\xff",
    b"\\u4f60",
    b"\\ud83d",
    b"\"",
    b"{",
    b"}",
    b"null",
    b"data: [DONE]\n\n",
];

/// A piece of a transcript with random damage, behind the bytes that choose dialect and cuts.
fn damaged(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let (dialect, text) = ALL[random.below(ALL.len())];
    let start = random.below(text.len());
    // Most begin at an event, so that there is something to understand.
    let start = if random.below(4) == 0 {
        start
    } else {
        let ends = text.as_bytes()[..start].windows(2);
        ends.rev()
            .position(|end| end == b"\n\n")
            .map_or(0, |back| start - back)
    };
    let length = random.below(MAX_INPUT);
    let mut stream: Vec<u8> = text.bytes().skip(start).take(length).collect();
    for _ in 0..random.below(4) {
        let at = random.below(stream.len() + 1);
        match random.below(4) {
            0 => drop(stream.splice(at..at, WORDS[random.below(WORDS.len())].iter().copied())),
            1 => stream.truncate(at),
            2 => drop(stream.drain(at..(at + random.below(9)).min(stream.len()))),
            _ => {
                if let Some(byte) = stream.get_mut(at) {
                    *byte = random.next_u64().to_le_bytes()[0];
                }
            }
        }
    }
    let choice = random.next_u64().to_le_bytes();
    let dialect = match dialect {
        Dialect::Chat => 0,
        Dialect::Responses => 1,
        Dialect::Messages => 2,
    };
    let head = [dialect, choice[0], choice[1]];
    [&head, stream.as_slice()].concat()
}

fn feed(body: fn(&[u8])) {
    for seed in 0..INPUTS {
        let input = damaged(seed);
        if catch_unwind(|| body(&input)).is_err() {
            panic!("seed {seed}: {:?}", input.escape_ascii().to_string());
        }
    }
}

/// The targets are there and call what is here, and their seeds pass. Nothing else looks at them before somebody fuzzes:
/// they are a workspace of their own, which needs nightly.
#[test]
fn targets_call_what_is_here_and_their_seeds_pass() {
    const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz");
    let manifest = fs::read_to_string(format!("{FUZZ}/Cargo.toml")).unwrap();
    let targets = [
        ("scan", "scan", scan as fn(&[u8])),
        ("passage", "pass_on", pass_on),
    ];
    for (name, function, holds) in targets {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        let target = fs::read_to_string(format!("{FUZZ}/fuzz_targets/{name}.rs")).unwrap();
        let call =
            format!("fuzz_target!(|data: &[u8]| tidegate_proxy::fuzzing::{function}(data));");
        assert!(target.contains(&call), "{target}");
        let seeds: Vec<_> = fs::read_dir(format!("{FUZZ}/seeds/{name}"))
            .unwrap()
            .collect();
        assert!(!seeds.is_empty(), "{name}");
        for seed in seeds {
            holds(&fs::read(seed.unwrap().path()).unwrap());
        }
    }
}

#[test]
fn damaged_streams_are_scanned_as_by_the_reference() {
    feed(scan);
}

#[test]
fn damaged_streams_pass_the_same_however_they_are_cut() {
    feed(pass_on);
}

#[test]
fn transcripts_are_understood() {
    let learned = ALL.map(|(dialect, text)| passed(dialect, &[text.as_bytes()]));
    let ends = learned.each_ref().map(|passed| passed.end);
    assert_eq!(ends, [End::Closed; 5]);
    let useful = learned.each_ref().map(|passed| passed.useful_bytes);
    let texts = [
        "Grüß 你好 😀\n",
        "",
        "High Low water",
        "Flut um drei; übermorgenno",
        "Ebbe, 你好",
    ];
    assert_eq!(useful, texts.map(|text| text.len() as u64));
    let tokens = learned
        .each_ref()
        .map(|passed| (passed.tokens.input, passed.tokens.output));
    assert_eq!(
        tokens,
        [(9, 12), (30, 17), (0, 0), (40, 20), (30, 33)]
            .map(|(input, output)| (input != 0).then_some((input, output)).unzip())
    );
    assert_eq!(learned[0].turn, "Grüß 你好 😀\n");
    assert_eq!(learned[3].sequence, Some(10));
    let errors = learned.each_ref().map(|passed| passed.error.is_some());
    assert_eq!(errors, [false, false, true, false, false]);
}

/// A transcript in one of the shapes that upstreams send.
fn shaped() -> impl Strategy<Value = (Dialect, Vec<u8>)> {
    let shapes = (0..ALL.len(), 0..7_usize, any::<prop::sample::Index>());
    shapes.prop_map(|(number, shape, place)| {
        let (dialect, text) = ALL[number];
        let bytes = match shape {
            0 => text.as_bytes().to_vec(),
            1 => text.replace('\n', "\r\n").into_bytes(),
            2 => text.replace('\n', "\r").into_bytes(),
            3 => format!("\u{feff}{}", text.replace("\n\n", "\n\n: heartbeat\n\n")).into_bytes(),
            4 => text.replace(",\"", "\ndata: ,\"").into_bytes(),
            5 => {
                let filler = "x".repeat(300 * 1024);
                let long = format!("data: {{\"filler\":\"{filler}\"}}\n\n");
                let place = place.index(text.matches("\n\n").count());
                let (before, after) =
                    text.split_at(text.match_indices("\n\n").nth(place).unwrap().0 + 2);
                [before, &long, after].concat().into_bytes()
            }
            _ => {
                let mut bytes = text.as_bytes().to_vec();
                let at = place.index(bytes.len());
                bytes.splice(at..at, *b"\xf0\x9f");
                bytes
            }
        };
        (dialect, bytes)
    })
}

fn chunks<'a>(bytes: &'a [u8], places: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places
        .iter()
        .map(|place| place.index(bytes.len() + 1))
        .collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

proptest! {
    #[test]
    fn any_split_of_a_transcript_gives_the_same_events_and_bytes(
        (dialect, bytes) in shaped(),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        compare(dialect, &bytes, &chunks(&bytes, &places));
    }

    #[test]
    fn any_bytes_pass_within_bounds(
        dialect in prop::sample::select(vec![Dialect::Chat, Dialect::Responses, Dialect::Messages]),
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        compare(dialect, &bytes, &chunks(&bytes, &places));
    }

    #[test]
    fn any_bytes_are_scanned_as_by_the_reference(
        bytes in prop::collection::vec(prop_oneof![4 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(b'\r'), 1 => Just(b':')], 0..600),
    ) {
        scan(&bytes);
    }
}

#[test]
fn a_stream_without_any_end_is_held_within_bounds() {
    for start in ["data: ", "event: ", ": ", ""] {
        let piece = Bytes::from(vec![b'x'; 60_000]);
        let mut passage = Passage::new(Dialect::Chat).keeping(Turn::default());
        passage.take(Bytes::copy_from_slice(start.as_bytes()));
        let mut passed = 0;
        for _ in 0..50 {
            passage.take(piece.clone());
            assert!(passage.held_bytes() <= MAX_EVENT_BYTES + piece.len() + start.len());
            while let Some(bytes) = passage.next() {
                passed += bytes.len();
            }
        }
        assert!(passed > 40 * piece.len());
        assert_eq!(passage.is_ready(), start == "data: ", "{start:?}");
    }
}
