//! Whole answers: an upstream's own words for the client.

use http::header::RETRY_AFTER;
use http::{Response, StatusCode};

use crate::observe::Answered;
use crate::reply::ReplyBody;

pub(super) fn whole(answer: Answered) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

/// An upstream's own words about a failure, under the status that says what it means. That need not be the one that the
/// upstream sent: an error inside a 200, or a restated one, which may come with a wait (`routing.md` §6).
pub(super) fn handed_on(
    words: Answered,
    status: StatusCode,
    retry_after_secs: Option<u64>,
) -> Response<ReplyBody> {
    let mut response = whole(words);
    *response.status_mut() = status;
    if let Some(seconds) = retry_after_secs {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;
    use crate::sse::Tokens;

    /// `agentrouter` says 403 where a quota is used up.
    #[test]
    fn a_restated_failure_is_handed_on_as_what_it_means() {
        let words = Answered {
            status: StatusCode::FORBIDDEN,
            headers: HeaderMap::new(),
            body: Bytes::from_static(b"words"),
            tokens: Tokens::default(),
        };
        let response = handed_on(words, StatusCode::TOO_MANY_REQUESTS, Some(60));
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "60");
    }
}
