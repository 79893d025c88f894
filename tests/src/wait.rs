//! Bounded waiting for a state that only polling can see.
//!
//! Callers say what they wait for, so that a timeout names it. A state that a process prints is better waited for with
//! [`crate::proc::Proc::wait_for_line`], which does not poll.

use std::time::{Duration, Instant};

/// Pause between two looks at the state.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Calls `look` until it returns a value, and returns that; `Err(what)` after `limit`.
pub fn try_until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = look() {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            return Err(format!("not within {limit:?}: {what}"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// As [`try_until`], but a timeout fails the test.
pub fn until<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    match try_until(what, limit, look) {
        Ok(value) => value,
        Err(text) => panic!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_value_once_there() {
        let mut looks = 0;
        let value = until("three looks", Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value, 3);
    }

    #[test]
    fn a_timeout_names_what_was_waited_for() {
        let text = try_until("the moon", Duration::ZERO, || None::<()>).unwrap_err();
        assert!(text.contains("the moon"), "{text}");
    }
}
