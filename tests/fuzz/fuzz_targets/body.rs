//! Bodies: two bytes choose provider, class, status and whether the error stood in a 200 stream; the rest is the
//! body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::outcome::UpstreamError;

/// Statuses with rules of their own, and some without.
const STATUSES: [u16; 16] = [
    400, 401, 402, 403, 404, 408, 409, 410, 413, 418, 429, 432, 500, 502, 503, 529,
];

fuzz_target!(|data: &[u8]| {
    let [choice, status, body @ ..] = data else {
        return;
    };
    let error = UpstreamError {
        status: STATUSES[usize::from(*status) % STATUSES.len()],
        headers: Vec::new(),
        body: String::from_utf8_lossy(body).into_owned(),
        embedded: status & 0b1000_0000 != 0,
    };
    tidegate_fuzz::check(*choice, error);
});
