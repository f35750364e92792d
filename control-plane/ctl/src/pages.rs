//! Lists come in pages; here they are read to their end.

use crate::failure::Failure;

/// Most pages of one list: a million items, and an end for a control plane that never ends.
const MAX_PAGES: u32 = 1_000;

/// Reads a list of the administration API to its end: `read_all!(client, list_lockouts, lockouts, ListLockoutsRequest { … })`
/// names the method, the member of its answers that holds the items, and the request but for its page.
macro_rules! read_all {
    ($client:expr, $method:ident, $items:ident, $request:ident { $($member:ident: $value:expr),* $(,)? }) => {
        $crate::pages::all_pages(async |page_token| {
            let (service, request) = $client.call($request {
                page_token,
                $($member: $value,)*
                ..$request::default()
            });
            let answer = service.$method(request).await?.into_inner();
            Ok((answer.$items, answer.next_page_token))
        })
        .await
    };
}
pub(crate) use read_all;

/// All items of all pages. `ask` gets the token of a page and answers with its items and the token of the next one.
pub(crate) async fn all_pages<T>(
    mut ask: impl AsyncFnMut(String) -> Result<(Vec<T>, String), Failure>,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    let mut token = String::new();
    for _ in 0..MAX_PAGES {
        let (items, next) = ask(token).await?;
        all.extend(items);
        if next.is_empty() {
            return Ok(all);
        }
        token = next;
    }
    Err(Failure::Output("the list does not end".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_are_read_to_the_end_and_a_list_without_one_is_given_up() {
        let mut asked = Vec::new();
        let all = all_pages(async |token: String| {
            asked.push(token.clone());
            Ok(match token.as_str() {
                "" => (vec![1, 2], "two".to_owned()),
                _ => (vec![3], String::new()),
            })
        });
        assert_eq!(all.await.unwrap(), [1, 2, 3]);
        assert_eq!(asked, ["", "two"]);
        let endless = all_pages(async |_| Ok((vec![1], "more".to_owned())));
        assert!(endless.await.is_err());
    }
}
