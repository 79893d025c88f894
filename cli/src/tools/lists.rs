//! Lists of stations that devices keep: what `mask` and `reserve` share.

use std::process::ExitCode;

use aoe_proto::wire::{Address, MacAddr};
use serde::Serialize;

use super::exit;
use super::identify::devices;
use super::network::Network;
use super::probe::Seen;
use super::raw::Raw;
use crate::output::{complain, print, print_json};

/// How lists are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// What stands for an empty one.
    pub(super) none: &'static str,
    /// As JSON.
    pub(super) json: bool,
}

/// A device's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    device: String,
    macs: Vec<String>,
}

impl Row {
    fn line(&self, none: &str) -> String {
        format!("{}\t{}\n", self.device, if self.macs.is_empty() { none.to_owned() } else { self.macs.join(" ") })
    }
}

/// Shows the lists of the device that is named, or of all, as `list` reads or changes them. It answers with the reason why a device's can't be
/// seen, which is told and does not stop the others, or fails.
pub(super) fn show_lists(
    network: &Network,
    device: Option<Address>,
    shown: Shown,
    mut list: impl FnMut(&mut Raw, &Seen) -> anyhow::Result<Result<Vec<MacAddr>, String>>,
) -> anyhow::Result<ExitCode> {
    let mut raw = network.open()?;
    let seen = devices(&mut raw, network, device)?;
    let (mut rows, mut all) = (Vec::new(), true);
    for seen in &seen {
        let device = seen.address.to_string();
        match list(&mut raw, seen)? {
            Ok(macs) => rows.push(Row { device, macs: macs.iter().map(ToString::to_string).collect() }),
            Err(why) => {
                all = false;
                complain(format_args!("{device}: {why}"));
            }
        }
    }
    match shown.json {
        true => print_json(&rows)?,
        false => print(&rows.iter().map(|row| row.line(shown.none)).collect::<String>())?,
    }
    Ok(exit(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let row = |macs: &[&str]| Row { device: "e9.0".into(), macs: macs.iter().map(ToString::to_string).collect() };
        assert_eq!(row(&[]).line("any"), "e9.0\tany\n");
        assert_eq!(row(&["a", "b"]).line("any"), "e9.0\ta b\n");
    }
}
