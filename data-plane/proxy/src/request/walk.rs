//! Walks the outermost members of a JSON text that is known to be valid.

use std::ops::Range;

use super::BodyFault;

/// Where a member of the outermost object lies in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its name, quotes included.
    pub(super) name: Range<usize>,
    /// Its value, without the white space around it.
    pub(super) value: Range<usize>,
    /// What must be cut out to remove it: with the comma behind it, or else the one before it.
    pub(super) removed: Range<usize>,
}

/// Calls `visit` with each member of the outermost object, in order.
///
/// # Errors
/// [`BodyFault::NotAnObject`], [`BodyFault::TooDeep`], or the first error of `visit`.
pub(super) fn members(
    text: &str,
    max_depth: usize,
    mut visit: impl FnMut(Member) -> Result<(), BodyFault>,
) -> Result<(), BodyFault> {
    let bytes = text.as_bytes();
    let mut at = skip_space(bytes, 0);
    if bytes.get(at) != Some(&b'{') {
        return Err(BodyFault::NotAnObject);
    }
    at = at.saturating_add(1);
    let mut comma_before = None;
    loop {
        at = skip_space(bytes, at);
        if bytes.get(at) != Some(&b'"') {
            // The end of the object; the text is valid.
            return Ok(());
        }
        let name = at..end_of_string(bytes, at);
        // Over the colon.
        let start = skip_space(bytes, skip_space(bytes, name.end).saturating_add(1));
        let value = start..end_of_value(bytes, start, max_depth)?;
        at = skip_space(bytes, value.end);
        let comma_after = (bytes.get(at) == Some(&b',')).then_some(at);
        let removed = match (comma_after, comma_before) {
            (Some(comma), _) => name.start..comma.saturating_add(1),
            (None, Some(comma)) => comma..value.end,
            (None, None) => name.start..value.end,
        };
        visit(Member {
            name,
            value,
            removed,
        })?;
        if comma_after.is_none() {
            return Ok(());
        }
        comma_before = comma_after;
        at = at.saturating_add(1);
    }
}

pub(super) fn skip_space(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    let space = rest
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        .count();
    from.saturating_add(space)
}

/// Where the first `count` entries of the list end whose bracket opens at `from`; `None` when it has no more than that,
/// or is no list. The text is valid.
pub(super) fn end_of_entries(bytes: &[u8], from: usize, count: u32) -> Option<usize> {
    if bytes.get(from) != Some(&b'[') {
        return None;
    }
    let mut at = from.saturating_add(1);
    let mut end = at;
    for _ in 0..count {
        let start = skip_space(bytes, at);
        if bytes.get(start) == Some(&b']') {
            return None;
        }
        end = end_of_value(bytes, start, usize::MAX).ok()?;
        let comma = skip_space(bytes, end);
        if bytes.get(comma) != Some(&b',') {
            return None;
        }
        at = comma.saturating_add(1);
    }
    (bytes.get(skip_space(bytes, at)) != Some(&b']')).then_some(end)
}

/// `from` is the opening quote; gives the place behind the closing one.
fn end_of_string(bytes: &[u8], from: usize) -> usize {
    let mut at = from.saturating_add(1);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match memchr::memchr2(b'"', b'\\', rest) {
            None => return bytes.len(),
            Some(found) => {
                at = at.saturating_add(found);
                if bytes.get(at) == Some(&b'"') {
                    return at.saturating_add(1);
                }
                // Over the backslash and what it escapes; of \uXXXX the digits are plain.
                at = at.saturating_add(2);
            }
        }
    }
}

fn end_of_value(bytes: &[u8], from: usize, max_depth: usize) -> Result<usize, BodyFault> {
    match bytes.get(from) {
        Some(b'"') => Ok(end_of_string(bytes, from)),
        Some(b'{' | b'[') => end_of_nested(bytes, from, max_depth),
        _ => {
            let rest = bytes.get(from..).unwrap_or_default();
            let length = rest
                .iter()
                .take_while(|byte| !matches!(byte, b',' | b'}' | b' ' | b'\t' | b'\n' | b'\r'))
                .count();
            Ok(from.saturating_add(length))
        }
    }
}

/// The outermost object is the first level.
fn end_of_nested(bytes: &[u8], from: usize, max_depth: usize) -> Result<usize, BodyFault> {
    let mut depth: usize = 1;
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = end_of_string(bytes, at);
                continue;
            }
            b'{' | b'[' => {
                depth = depth.saturating_add(1);
                if depth > max_depth {
                    return Err(BodyFault::TooDeep);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 1 {
                    return Ok(at.saturating_add(1));
                }
            }
            _ => {}
        }
        at = at.saturating_add(1);
    }
    Ok(at)
}
