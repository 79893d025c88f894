//! Errors as users see them: the one line that an error with its causes makes.

use std::error::Error;

/// An error with its causes. Some errors tell their cause themselves: it is not told twice.
pub(crate) fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for cause in anyhow::Chain::new(error) {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_told_once() {
        let inner = || std::io::Error::other("no disk");
        let plain = Err::<(), _>(inner()).context("opening").context("array r5").expect_err("failed");
        assert_eq!(one_line(plain.as_ref()), "array r5: opening: no disk");
        let told = Err::<(), _>(inner()).context("e1.1: no disk: plug one in").expect_err("failed");
        assert_eq!(one_line(told.as_ref()), "e1.1: no disk: plug one in");
    }
}
