//! What every body must be, whatever it says.

/// How deep the arrays and objects of a body may be nested; the outermost object is the first level.
pub const MAX_DEPTH: usize = 128;

/// What is wrong with the shape of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeFault {
    /// It is an array, a text, a number or a word.
    #[error("the request body must be a JSON object")]
    NotAnObject,
    /// It is nested deeper than [`MAX_DEPTH`].
    #[error("the request body is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Checks the shape of a text that is known to be JSON.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check_shape(json: &str) -> Result<(), ShapeFault> {
    if !json.trim_start().starts_with('{') {
        return Err(ShapeFault::NotAnObject);
    }
    let mut depth: usize = 0;
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_text(&mut bytes),
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(ShapeFault::TooDeep);
        }
    }
    Ok(())
}

/// To the end of a text whose opening quote is behind.
fn skip_text(bytes: &mut impl Iterator<Item = u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn nested(levels: usize) -> String {
        format!("{{\"a\":{}1{}}}", "[".repeat(levels), "]".repeat(levels))
    }

    #[rstest]
    #[case::object(" \n{}".to_owned(), Ok(()))]
    #[case::array("[{}]".to_owned(), Err(ShapeFault::NotAnObject))]
    #[case::text("\"{}\"".to_owned(), Err(ShapeFault::NotAnObject))]
    #[case::at_the_limit(nested(MAX_DEPTH - 1), Ok(()))]
    #[case::beyond_it(nested(MAX_DEPTH), Err(ShapeFault::TooDeep))]
    #[case::brackets_in_a_text(format!("{{\"a\":\"\\\"{}\"}}", "[".repeat(MAX_DEPTH)), Ok(()))]
    #[case::many_in_a_row(format!("{{\"a\":[{}0]}}", "[],".repeat(MAX_DEPTH)), Ok(()))]
    fn the_shape_is_checked(#[case] json: String, #[case] expected: Result<(), ShapeFault>) {
        assert_eq!(check_shape(&json), expected);
    }
}
