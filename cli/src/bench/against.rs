//! `--against FILE.json`: what has changed since an earlier run.
//!
//! The file is a list of rows as `--json` prints them, of this version or another: only what names a row and its rate is read. A row is
//! compared with the one that has the same mode, size, thread count and queue depth; the last such row counts.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::report::Row;

/// A row of an earlier run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Earlier {
    mode: String,
    bs: u64,
    group_thread_cnt: Option<usize>,
    qd: usize,
    mb_per_s: f64,
}

/// An earlier run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Against(Vec<Earlier>);

impl Against {
    /// Reads the file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Against> {
        let text = std::fs::read_to_string(path).with_context(|| format!("--against {}", path.display()))?;
        Against::parse(&text)
            .with_context(|| format!("--against {}: a list of rows as --json prints them", path.display()))
    }

    fn parse(text: &str) -> serde_json::Result<Against> {
        Ok(Against(serde_json::from_str(text)?))
    }

    /// Notes in each row what it was before.
    pub(super) fn compare(&self, rows: &mut [Row]) {
        for row in rows {
            let same = |before: &&Earlier| {
                (before.mode.as_str(), before.bs, before.qd, before.group_thread_cnt)
                    == (row.mode, row.bs, row.qd, row.group_thread_cnt)
            };
            if let Some(before) = self.0.iter().rev().find(same) {
                row.set_before(before.mb_per_s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_text_is_refused() {
        for bad in ["", "{}", "[1]", r#"[{"mode": "read", "bs": 4096}]"#] {
            assert!(Against::parse(bad).is_err(), "{bad}");
        }
        let row = r#"[{"mode": "read", "bs": 4096, "group_thread_cnt": null, "qd": 1, "mb_per_s": 2.5, "more": []}]"#;
        assert_eq!(Against::parse(row).expect("a list").0.len(), 1);
    }
}
