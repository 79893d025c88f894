//! What a device must remember over restarts: config string, mask list, reservation.
//!
//! The shelf changes it, the shell saves it before the reply leaves (see [`Outcome::Save`](super::Outcome::Save)) and
//! hands it back at the next start. Bounds: 1024 bytes of string, [`MASK_MAX`] and [`RESERVE_MAX`] addresses, which is
//! what still fits into a reply at MTU 1500.
//!
//! The saved form is a few lines of text, so that it can be read and repaired by hand:
//!
//! ```text
//! etherraid shelf state 1
//! config 68656c6c6f
//! mask 02:00:00:00:00:01
//! reserve 02:00:00:00:00:01
//! end
//! ```

use core::fmt::Write;

use crate::wire::{CONFIG_STRING_MAX, MacAddr};

/// Most addresses on a mask list.
pub const MASK_MAX: usize = 180;
/// Most addresses that can hold a reservation.
pub const RESERVE_MAX: usize = 240;

const FIRST_LINE: &str = "etherraid shelf state 1";
const LAST_LINE: &str = "end";

/// Why a text is not a saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The first line is not the one of this format and version.
    #[error("the first line is not \"etherraid shelf state 1\"")]
    Format,
    /// The last line is missing: the text was cut off.
    #[error("the state is cut off: it does not end with \"end\"")]
    CutOff,
    /// A line that makes no sense, counted from 1.
    #[error("line {0} of the state makes no sense")]
    Line(usize),
    /// More than there may be.
    #[error("the state exceeds 1024 bytes of config string, 180 mask addresses or 240 reservation addresses")]
    Bound,
}

/// A device's state that outlives the process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceState {
    /// The config string: opaque bytes.
    pub config: Vec<u8>,
    /// Who is listened to; empty means everyone.
    pub mask: Vec<MacAddr>,
    /// Who holds the reservation; empty means that there is none.
    pub reserve: Vec<MacAddr>,
}

impl DeviceState {
    /// Whether the bounds are kept.
    pub fn is_bounded(&self) -> bool {
        self.config.len() <= CONFIG_STRING_MAX && self.mask.len() <= MASK_MAX && self.reserve.len() <= RESERVE_MAX
    }

    /// Whether frames from `mac` are to be looked at.
    pub fn listens_to(&self, mac: MacAddr) -> bool {
        self.mask.is_empty() || self.mask.contains(&mac)
    }

    /// Whether somebody else than `mac` holds the reservation.
    pub fn reserved_against(&self, mac: MacAddr) -> bool {
        !self.reserve.is_empty() && !self.reserve.contains(&mac)
    }

    /// The form to save.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        if !self.config.is_empty() {
            text.push_str("config ");
            for byte in &self.config {
                write!(text, "{byte:02x}").expect("writing to a String can't fail");
            }
            text.push('\n');
        }
        for (word, macs) in [("mask", &self.mask), ("reserve", &self.reserve)] {
            for mac in macs {
                writeln!(text, "{word} {mac}").expect("writing to a String can't fail");
            }
        }
        text.push_str(LAST_LINE);
        text.push('\n');
        text
    }

    /// Reads what [`DeviceState::to_text`] wrote.
    pub fn from_text(text: &str) -> Result<DeviceState, StateError> {
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(FIRST_LINE) {
            return Err(StateError::Format);
        }
        let mut state = DeviceState::default();
        for (index, line) in lines {
            if line == LAST_LINE {
                return if state.is_bounded() { Ok(state) } else { Err(StateError::Bound) };
            }
            state.take_line(line).ok_or(StateError::Line(index + 1))?;
        }
        Err(StateError::CutOff)
    }

    fn take_line(&mut self, line: &str) -> Option<()> {
        let (word, value) = line.split_once(' ')?;
        match word {
            "config" if self.config.is_empty() => self.config = bytes_from_hex(value)?,
            "mask" => self.mask.push(value.parse().ok()?),
            "reserve" => self.reserve.push(value.parse().ok()?),
            _ => return None,
        }
        Some(())
    }
}

fn bytes_from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}
