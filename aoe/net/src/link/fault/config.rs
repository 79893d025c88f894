//! What a fault-injecting link does to frames, and its one-line text form for command lines.
//!
//! Read by [`super::FaultLink`]. Pure.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// Faults of one direction. All but the delays are probabilities, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame vanishes.
    pub loss: f64,
    /// The frame is delivered twice.
    pub duplicate: f64,
    /// The second copy comes up to this much later.
    pub duplicate_delay: Duration,
    /// The frame is held back, so that later ones overtake it.
    pub reorder: f64,
    /// For up to this long.
    pub reorder_delay: Duration,
    /// One bit of the frame is flipped. Real Ethernet loses such frames by its check sequence; AoE has none, so data can't be
    /// expected to stay intact under this fault.
    pub corrupt: f64,
}

impl Faults {
    /// Whether frames pass unharmed.
    pub fn is_none(&self) -> bool {
        self.loss <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0 && self.corrupt <= 0.0
    }
}

/// Faults of both directions of a link.
///
/// As text: `loss=0.02,dup=0.01,dup_delay_ms=20,reorder=0.01,reorder_delay_ms=5,corrupt=0,dir=both,seed=7`; each part may be
/// left out. `dir` is `both`, `send` or `receive`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Faults of frames that are sent.
    pub send: Faults,
    /// Faults of frames that are received.
    pub receive: Faults,
    /// Random choices follow from it.
    pub seed: u64,
}

impl FaultConfig {
    /// The same faults in both directions.
    pub fn both(faults: Faults, seed: u64) -> FaultConfig {
        FaultConfig { send: faults, receive: faults, seed }
    }
}

/// Why a text is not a [`FaultConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultParseError {
    part: String,
}

impl fmt::Display for FaultParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bad fault '{}': expected loss=, dup=, reorder=, corrupt= with 0 to 1, dup_delay_ms=, reorder_delay_ms= with whole \
             numbers up to 60000, dir=both|send|receive, seed=N, separated by commas",
            self.part
        )
    }
}

impl core::error::Error for FaultParseError {}

const DUPLICATE_DELAY_DEFAULT: Duration = Duration::from_millis(10);
const REORDER_DELAY_DEFAULT: Duration = Duration::from_millis(1);
const DELAY_MAX_MS: u64 = 60_000;

fn probability(text: &str) -> Option<f64> {
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p))
}

fn delay(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|&ms| ms <= DELAY_MAX_MS).map(Duration::from_millis)
}

impl FromStr for FaultConfig {
    type Err = FaultParseError;

    fn from_str(text: &str) -> Result<FaultConfig, FaultParseError> {
        let mut faults = Faults {
            duplicate_delay: DUPLICATE_DELAY_DEFAULT,
            reorder_delay: REORDER_DELAY_DEFAULT,
            ..Faults::default()
        };
        let (mut send, mut receive, mut seed) = (true, true, 0);
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let set = |field: &mut f64| probability(value).map(|p| *field = p);
            let set_delay = |field: &mut Duration| delay(value).map(|d| *field = d);
            let done = match key {
                "loss" => set(&mut faults.loss),
                "dup" => set(&mut faults.duplicate),
                "reorder" => set(&mut faults.reorder),
                "corrupt" => set(&mut faults.corrupt),
                "dup_delay_ms" => set_delay(&mut faults.duplicate_delay),
                "reorder_delay_ms" => set_delay(&mut faults.reorder_delay),
                "seed" => value.parse().ok().map(|value| seed = value),
                "dir" => match value {
                    "both" => Some((true, true)),
                    "send" => Some((true, false)),
                    "receive" => Some((false, true)),
                    _ => None,
                }
                .map(|directions| (send, receive) = directions),
                _ => None,
            };
            done.ok_or_else(|| FaultParseError { part: part.to_owned() })?;
        }
        let of = |on: bool| if on { faults } else { Faults::default() };
        Ok(FaultConfig { send: of(send), receive: of(receive), seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_parse() {
        let parse = |text: &str| text.parse::<FaultConfig>().unwrap();
        let config = parse("loss=0.02,dup=0.01,dup_delay_ms=20,reorder=0.03,reorder_delay_ms=4,corrupt=1,seed=9");
        let faults = Faults {
            loss: 0.02,
            duplicate: 0.01,
            duplicate_delay: Duration::from_millis(20),
            reorder: 0.03,
            reorder_delay: Duration::from_millis(4),
            corrupt: 1.0,
        };
        assert_eq!(config, FaultConfig::both(faults, 9));
        assert!(parse("").send.is_none());
        let sent = parse("loss=1,dir=send");
        assert!((sent.send.loss, sent.receive.is_none()) == (1.0, true));
        let received = parse("dir=receive,loss=1");
        assert!((received.receive.loss, received.send.is_none()) == (1.0, true));
        assert_eq!(parse("dup=0.5").send.duplicate_delay, DUPLICATE_DELAY_DEFAULT);
    }

    #[test]
    fn texts_that_do_not() {
        for text in [
            "loss",
            "loss=",
            "loss=2",
            "loss=-0.1",
            "loss=NaN",
            "dup=x",
            "dup_delay_ms=1.5",
            "dup_delay_ms=60001",
            "seed=-1",
            "dir=up",
            "nonsense=1",
            "loss=0.1;dup=1",
        ] {
            let error = text.parse::<FaultConfig>().expect_err(text);
            assert!(error.to_string().contains("bad fault"), "{error}");
        }
    }
}
