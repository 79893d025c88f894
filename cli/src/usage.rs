//! Errors of usage that the parser cannot see: exit status 2, as for those that it sees.

/// What is wrong with the command line, and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Fails with a usage error.
pub(crate) fn usage<T>(text: impl Into<String>) -> anyhow::Result<T> {
    Err(Usage(text.into()).into())
}
