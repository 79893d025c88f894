//! Logs go to standard error, which leaves standard output to results.
//!
//! A line that goes to the journal has neither time nor colour, for the journal has its own, but the priority before it (sd-daemon(3)),
//! so that `journalctl -p warning` works.

use std::fmt;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Logs at `default`, or with `-v` more.
pub(crate) fn to_stderr(verbose: u8, default: LevelFilter) {
    let level = match verbose {
        0 => default,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // A line that cannot be written is lost: by default that is told with eprintln, which panics when standard error is closed.
    let format =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).log_internal_errors(false);
    if is_journal() {
        format.event_format(Journal { targets: verbose > 0 }).init();
    } else {
        format.with_target(verbose > 0).with_ansi(std::io::stderr().is_terminal()).init();
    }
}

/// Whether standard error leads to the journal: it says which file that is.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let metadata = std::fs::metadata("/proc/self/fd/2");
    match (stream, metadata) {
        (Some(stream), Ok(metadata)) => stream == format!("{}:{}", metadata.dev(), metadata.ino()),
        _ => false,
    }
}

/// Lines for the journal.
struct Journal {
    targets: bool,
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        write!(writer, "<{}>", priority(*metadata.level()))?;
        if self.targets {
            write!(writer, "{}: ", metadata.target())?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// As syslog(3) counts: 3 is an error, 7 debugging.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}
