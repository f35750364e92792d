//! Lists in pages. A page begins behind the key of the last item of the page before, so that it needs nothing kept here, and
//! any replica can answer for it. Its token names the list and the filters it belongs to.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most items of a page, and how many there are when no size is given.
pub(crate) const MAX_PAGE: u32 = 1_000;
/// Longest token that is read, in bytes; ours are well below.
const MAX_TOKEN_BYTES: usize = 4_096;

/// Why there is no such page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PageError {
    #[error("must be at most {MAX_PAGE}")]
    Size,
    #[error("is not a token of this list with these filters")]
    Token,
}

impl PageError {
    /// The member of the request that it is about.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Size => "page_size",
            Self::Token => "page_token",
        }
    }
}

/// Which page of which list.
#[derive(Debug)]
pub(crate) struct Page<K> {
    list: String,
    size: usize,
    after: Option<K>,
}

impl<K: Ord + Serialize + DeserializeOwned> Page<K> {
    /// Reads what was asked for. `list` is the name of the list with all of its filters.
    pub(crate) fn read(list: String, size: u32, token: &str) -> Result<Self, PageError> {
        let size = match size {
            0 => MAX_PAGE,
            size if size <= MAX_PAGE => size,
            _ => return Err(PageError::Size),
        };
        let after = if token.is_empty() {
            None
        } else {
            Some(read_token(&list, token).ok_or(PageError::Token)?)
        };
        Ok(Self {
            list,
            size: usize::try_from(size).unwrap_or(usize::MAX),
            after,
        })
    }

    /// The first page, as large as pages are.
    pub(crate) fn first(list: &str) -> Self {
        Self {
            list: list.to_owned(),
            size: usize::try_from(MAX_PAGE).unwrap_or(usize::MAX),
            after: None,
        }
    }

    /// All items, for who counts them.
    pub(crate) fn whole(list: &str) -> Self {
        Self {
            size: usize::MAX,
            ..Self::first(list)
        }
    }

    /// How many items there may be.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The key of the last item of the page before.
    pub(crate) fn after(&self) -> Option<&K> {
        self.after.as_ref()
    }

    /// The page of all items, which come in the order of their keys, and the token of the next one.
    pub(crate) fn of<T>(&self, items: impl Iterator<Item = (K, T)>) -> (Vec<T>, String) {
        let behind = |key: &K| self.after.as_ref().is_some_and(|after| key <= after);
        let mut items = items.skip_while(|(key, _)| behind(key));
        let mut page = Vec::new();
        let mut last = None;
        for (key, item) in items.by_ref().take(self.size) {
            page.push(item);
            last = Some(key);
        }
        let next = match (items.next(), last) {
            (Some(_), Some(last)) => self.token(&last),
            _ => String::new(),
        };
        (page, next)
    }

    /// The token of the page behind this key. A key that cannot be written ends the list.
    pub(crate) fn token(&self, last: &K) -> String {
        serde_json::to_vec(&(&self.list, last))
            .map(|token| BASE64_URL_SAFE_NO_PAD.encode(token))
            .unwrap_or_default()
    }
}

fn read_token<K: DeserializeOwned>(list: &str, token: &str) -> Option<K> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let token = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
    let (of, key): (String, K) = serde_json::from_slice(&token).ok()?;
    (of == list).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(size: u32, token: &str) -> Result<Page<u32>, PageError> {
        Page::read("numbers of all".to_owned(), size, token)
    }

    fn numbers(count: u32) -> impl Iterator<Item = (u32, u32)> {
        (0..count).map(|number| (number, number * 10))
    }

    #[test]
    fn pages_meet_without_a_gap_and_the_last_one_says_so() {
        for size in 1..=6 {
            let mut all = Vec::new();
            let mut token = String::new();
            let mut pages = 0;
            loop {
                let (items, next) = page(size, &token).unwrap().of(numbers(5));
                assert!(items.len() <= usize::try_from(size).unwrap());
                all.extend(items);
                pages += 1;
                token = next;
                if token.is_empty() {
                    break;
                }
            }
            assert_eq!(all, [0, 10, 20, 30, 40]);
            assert_eq!(pages, 5_u32.div_ceil(size));
        }
    }

    #[test]
    fn a_page_goes_on_where_its_last_item_was_though_that_is_gone() {
        let (_, token) = page(2, "").unwrap().of(numbers(5));
        let left = numbers(5).filter(|(number, _)| *number != 1);
        let (items, _) = page(2, &token).unwrap().of(left);
        assert_eq!(items, [20, 30]);
    }

    #[test]
    fn sizes_are_bounded() {
        let (items, next) = page(0, "").unwrap().of(numbers(MAX_PAGE + 1));
        assert_eq!((items.len(), next.is_empty()), (1_000, false));
        assert_eq!(page(MAX_PAGE, "").unwrap().size(), 1_000);
        assert_eq!(page(MAX_PAGE + 1, "").unwrap_err(), PageError::Size);
    }

    #[test]
    fn what_is_no_token_of_the_list_is_refused() {
        let (_, good) = page(1, "").unwrap().of(numbers(2));
        assert!(page(1, &good).is_ok());
        let of_another = Page::<u32>::read("numbers of alpha".to_owned(), 1, &good);
        assert_eq!(of_another.unwrap_err(), PageError::Token);
        let long = "A".repeat(MAX_TOKEN_BYTES + 1);
        for bad in ["x", "AAAA", good.get(1..).unwrap(), long.as_str()] {
            assert_eq!(page(1, bad).unwrap_err(), PageError::Token, "{bad}");
        }
    }
}
