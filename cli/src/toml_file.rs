//! Files in TOML: what is wrong with one is told with the file's name and the line, as an error of usage.

use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::usage::Usage;

/// What is wrong with a file, and where.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// Bytes of the file.
    pub(crate) span: Option<Range<usize>>,
    /// What is wrong there.
    pub(crate) what: String,
}

impl Wrong {
    /// Something is wrong at a place.
    pub(crate) fn at(span: Range<usize>, what: impl Into<String>) -> Wrong {
        Wrong { span: Some(span), what: what.into() }
    }

    /// As it is told to the user.
    pub(crate) fn usage(self, path: &Path, text: &str) -> Usage {
        let line = self.span.map_or(String::new(), |span| format!(":{}", line_of(text, span.start)));
        Usage(format!("{}{line}: {}", path.display(), self.what))
    }
}

/// A file's text as a value, or its first error.
pub(crate) fn from_text<T: DeserializeOwned>(text: &str) -> Result<T, Wrong> {
    toml::from_str(text).map_err(|error| Wrong { span: error.span(), what: error.message().replace('\n', " ") })
}

/// Text that means something, as on the command line, or where in the file it means nothing.
pub(crate) fn parsed<T: FromStr<Err: Display>>(text: Spanned<String>) -> Result<T, Wrong> {
    text.get_ref().parse().map_err(|error: T::Err| Wrong::at(text.span(), error.to_string()))
}

/// Line number, from 1, of a byte offset.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}
