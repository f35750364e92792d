//! Waits stated in headers and in a short body: one line a header (`name: value`), then a blank line and the body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::outcome::UpstreamError;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let headers = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let choice = data.last().copied().unwrap_or_default();
    let error = UpstreamError {
        status: 429,
        headers,
        body: body.to_owned(),
        embedded: false,
    };
    tidegate_fuzz::check(choice, error);
});
