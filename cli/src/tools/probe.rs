//! Which AoE devices are there, and what they are: config queries and IDENTIFY.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use aoe_proto::wire::{
    Address, AoeError, AtaError, AtaRequest, Body, CCmd, Command, ConfigInfo, Header, Identify, IdentifyError, MacAddr,
    SECTOR, Status,
};

use super::raw::{Expect, Patience, Question, Raw};

/// A device at the end of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Shelf and slot.
    pub(super) address: Address,
    /// The interface it answers at.
    pub(super) port: usize,
    /// The address it answers from.
    pub(super) mac: MacAddr,
    /// Messages that it can queue.
    pub(super) buffers: u16,
    /// Firmware version.
    pub(super) firmware: u16,
    /// Sectors that fit a frame, at both ends.
    pub(super) sectors: u8,
    /// Sectors that the device takes in a frame.
    pub(super) device_sectors: u8,
    /// Config string.
    pub(super) string: Vec<u8>,
    /// Round trip of the config query, if it was sent once.
    pub(super) rtt: Option<Duration>,
}

impl Seen {
    /// Bytes of data in a frame.
    pub(super) fn payload(&self) -> usize {
        usize::from(self.sectors) * SECTOR
    }

    /// What it answered to a config query; what our end of the path carries is not known here.
    fn of(port: usize, address: Address, mac: MacAddr, info: &ConfigInfo<'_>) -> Seen {
        Seen {
            address,
            port,
            mac,
            buffers: info.buffer_count,
            firmware: info.firmware,
            sectors: info.sectors_max(),
            device_sectors: info.sectors_max(),
            string: info.string.to_vec(),
            rtt: None,
        }
    }
}

/// Why a device did not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No answer.
    Silent,
    /// An AoE error.
    Aoe(AoeError),
    /// An ATA error.
    Ata(Status, AtaError),
    /// IDENTIFY data that make no sense.
    Identify(IdentifyError),
    /// Another kind of answer than asked for.
    Nonsense,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Silent => f.write_str("no answer"),
            Fault::Aoe(error) => write!(f, "{error}"),
            Fault::Ata(status, error) => write!(f, "ATA status {:#04x}, error {:#04x}", status.0, error.0),
            Fault::Identify(error) => write!(f, "{error}"),
            Fault::Nonsense => f.write_str("a malformed answer"),
        }
    }
}

/// What came of a request to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told<T> {
    /// The answer.
    pub(super) what: Result<T, Fault>,
    /// Round trip, if it was sent once.
    pub(super) rtt: Option<Duration>,
    /// How often it was sent.
    pub(super) copies: u32,
}

/// A message to write: its header, where it goes, and how long it is then.
pub(super) type Emit<'a> = &'a dyn Fn(&Header, &mut [u8]) -> usize;

/// Asks one device, and reads its answer with `read`.
pub(super) fn ask<T>(
    raw: &mut Raw,
    to: &Seen,
    command: Command,
    emit: Emit<'_>,
    patience: Patience,
    read: impl Fn(Body<'_>) -> Result<T, Fault>,
) -> Told<T> {
    let question = Question { port: to.port, to: to.mac, address: to.address, command, emit, expect: Expect::One };
    let mut told = Told { what: Err(Fault::Silent), rtt: None, copies: 0 };
    raw.ask(&[question], patience, &mut |answer| {
        let what = answer.frame.header.error.map_or_else(|| read(answer.frame.body), |error| Err(Fault::Aoe(error)));
        told = Told { what, rtt: answer.rtt, copies: answer.copies };
        ControlFlow::Break(())
    });
    told
}

/// Asks who is there by broadcast on all interfaces: each device once for each path, in order. A wildcard address is asked for the whole time.
pub(super) fn discover(raw: &mut Raw, address: Address, patience: Duration) -> Vec<Seen> {
    look_for(raw, address, Expect::Many, patience)
}

/// The first path on which a device answers.
pub(super) fn find(raw: &mut Raw, address: Address, patience: Duration) -> Option<Seen> {
    look_for(raw, address, Expect::One, patience).pop()
}

fn look_for(raw: &mut Raw, address: Address, expect: Expect, patience: Duration) -> Vec<Seen> {
    let emit = |header: &_, buf: &mut [u8]| ConfigInfo::request(CCmd::READ, b"").emit(header, buf);
    let question = |port| {
        let (to, command) = (MacAddr::BROADCAST, Command::CONFIG);
        Question { port, to, address, command, emit: &emit, expect }
    };
    let questions: Vec<Question<'_>> = raw.ports().map(question).collect();
    let mut seen: Vec<Seen> = Vec::new();
    raw.ask(&questions, Patience::asking_again(patience), &mut |answer| {
        let Body::Config(info) = answer.frame.body else { return ControlFlow::Continue(()) };
        let header = answer.frame.header;
        let found = Seen::of(answer.port, header.address, header.src, &info);
        let known = |s: &Seen| (s.address, s.port, s.mac) == (found.address, found.port, found.mac);
        if !header.address.is_wildcard() && !seen.iter().any(known) {
            seen.push(Seen { rtt: answer.rtt, ..found });
        }
        if expect == Expect::One { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    for seen in &mut seen {
        seen.sectors = seen.sectors.min(raw.sectors_per_frame(seen.port));
    }
    seen.sort_by_key(|seen| (seen.address, seen.port, seen.mac));
    seen
}

/// What each device says it is, in the order given.
pub(super) fn identify(
    raw: &mut Raw,
    devices: &[Seen],
    patience: Patience,
) -> Vec<Result<(Identified, Option<Duration>), Fault>> {
    let emit = |header: &_, buf: &mut [u8]| AtaRequest::identify().emit(header, buf);
    let question = |seen: &Seen| Question {
        port: seen.port,
        to: seen.mac,
        address: seen.address,
        command: Command::ATA,
        emit: &emit,
        expect: Expect::One,
    };
    let questions: Vec<Question<'_>> = devices.iter().map(question).collect();
    let mut results: Vec<Result<_, Fault>> = devices.iter().map(|_| Err(Fault::Silent)).collect();
    raw.ask(&questions, patience, &mut |answer| {
        results[answer.question] =
            identified(answer.frame.body, answer.frame.header.error).map(|what| (what, answer.rtt));
        ControlFlow::Continue(())
    });
    results
}

/// IDENTIFY data, decoded and as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identified {
    /// Decoded.
    pub(super) identify: Identify,
    /// All 512 bytes.
    pub(super) data: Vec<u8>,
}

fn identified(body: Body<'_>, error: Option<AoeError>) -> Result<Identified, Fault> {
    if let Some(error) = error {
        return Err(Fault::Aoe(error));
    }
    let Body::AtaReply(reply, data) = body else { return Err(Fault::Nonsense) };
    if reply.status.is_error() {
        return Err(Fault::Ata(reply.status, reply.error));
    }
    let identify = Identify::parse(data).map_err(Fault::Identify)?;
    Ok(Identified { identify, data: data[..SECTOR].to_vec() })
}

/// A size as aoe-stat prints it: GB of 10^9 bytes with three decimals, cut off.
pub(super) fn gigabytes(sectors: u64) -> String {
    let thousandths = u128::from(sectors) * SECTOR as u128 / 1_000_000;
    format!("{}.{:03}GB", thousandths / 1000, thousandths % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aoe_proto::wire::{AFlags, AtaReply, LbaBytes};

    #[test]
    fn sizes_are_aoe_stats() {
        assert_eq!(gigabytes(0), "0.000GB");
        assert_eq!(gigabytes(131_072), "0.067GB");
        assert_eq!(gigabytes(21_474_836_480), "10995.116GB");
        assert_eq!(gigabytes((1 << 48) - 1), "144115188.075GB");
    }

    #[test]
    fn answers_to_identify() {
        let ok =
            AtaReply { flags: AFlags(0), error: AtaError(0), sectors: 0, status: Status::OK, lba: LbaBytes::default() };
        let mut data = [0u8; SECTOR];
        Identify::disk(77).emit(&mut data);
        let found = identified(Body::AtaReply(ok, &data), None).expect("valid");
        assert_eq!((found.identify.sectors, found.data.len()), (77, SECTOR));
        let fault = |body, error| identified(body, error).expect_err("a fault");
        assert_eq!(fault(Body::Error, Some(AoeError::RESERVED)), Fault::Aoe(AoeError::RESERVED));
        let failed = AtaReply { status: Status::FAILED, error: AtaError::ABRT, ..ok };
        assert_eq!(fault(Body::AtaReply(failed, &[]), None), Fault::Ata(Status::FAILED, AtaError::ABRT));
        assert_eq!(fault(Body::AtaReply(ok, &data[..511]), None), Fault::Identify(IdentifyError::Short));
        assert_eq!(fault(Body::Unknown(&[]), None), Fault::Nonsense);
    }
}
