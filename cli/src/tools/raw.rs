//! Requests and replies on packet sockets, one for each interface: what tools send that are no initiator.
//!
//! Tags carry a worker number that arrays use only on machines with more than a hundred CPUs, and start at random, so that a running array and the
//! kernel's driver go on undisturbed. Bounds: [`IN_FLIGHT`] requests that one device each is to answer are out at a time; every wait ends.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use aoe_net::link::{BATCH, FrameRef, Link, PacketConfig, Role};
use aoe_proto::wire::{Address, Command, ETH_HEADER, Frame, Header, MacAddr, Tag, pad, sectors_per_frame};

use crate::interfaces::InterfaceArgs;
use crate::usage::usage;

/// The worker number in the tags of tools.
const WORKER: u8 = 253;
const ROLE: Role = Role::Initiator { worker: WORKER, discovers: false };
/// Bits of a tag below the worker number.
const SEQUENCE_BITS: u32 = 23;
/// Requests out at a time; more wait.
const IN_FLIGHT: usize = 64;
/// Longest time between a question and its repetition.
const AGAIN_MAX: Duration = Duration::from_millis(250);
/// How long an interface without carrier is waited for, and how often it is looked at.
const CARRIER_PATIENCE: Duration = Duration::from_millis(500);
const CARRIER_LOOK: Duration = Duration::from_millis(5);
/// How soon a link that is full is tried again.
const FULL_RETRY: Duration = Duration::from_millis(1);
/// Smallest MTU that a link has, for the bytes that are sure to fit.
const MTU_MIN: u32 = 548;

/// Whose reply is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// One device's.
    One,
    /// Any number of devices': until the time is over.
    Many,
}

/// A request.
pub(super) struct Question<'a> {
    /// The interface, by its place on the command line.
    pub(super) port: usize,
    /// Destination.
    pub(super) to: MacAddr,
    /// The device.
    pub(super) address: Address,
    /// AoE command.
    pub(super) command: Command,
    /// Writes the message behind this header, and says how long the frame is.
    pub(super) emit: &'a dyn Fn(&Header, &mut [u8]) -> usize,
    /// Whose reply.
    pub(super) expect: Expect,
}

/// How long to wait, and when to ask again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For everything.
    pub(super) total: Duration,
    /// A question without its answer is sent again this often; never without.
    pub(super) again: Option<Duration>,
}

impl Patience {
    /// Asks again at least four times within `total`: frames may be lost.
    pub(super) fn asking_again(total: Duration) -> Patience {
        Patience { total, again: Some((total / 5).min(AGAIN_MAX)) }
    }

    /// Asks once.
    pub(super) fn once(total: Duration) -> Patience {
        Patience { total, again: None }
    }
}

/// A reply.
pub(super) struct Answer<'a> {
    /// Which of the questions.
    pub(super) question: usize,
    /// The interface it came from.
    pub(super) port: usize,
    /// All of it.
    pub(super) frame: Frame<'a>,
    /// Round trip; unknown when the question was sent more than once.
    pub(super) rtt: Option<Duration>,
    /// How often the question was sent.
    pub(super) copies: u32,
}

/// A question on its way.
struct Flight {
    frame: Vec<u8>,
    sent: Option<Duration>,
    copies: u32,
    answered: bool,
}

/// The sockets.
pub(super) struct Raw {
    ports: Vec<Box<dyn Link>>,
    sequence: u32,
    start: Instant,
}

impl Raw {
    /// Opens a socket on each interface.
    pub(super) fn open(interfaces: &InterfaceArgs) -> anyhow::Result<Raw> {
        if interfaces.interfaces.is_empty() {
            return usage(format!("an interface is needed: name it with -i; there are {}", existing_interfaces()));
        }
        let ports =
            interfaces.open(WORKER, |name| PacketConfig { receive_ring: None, ..PacketConfig::new(name, ROLE) })?;
        let random = uuid::Uuid::new_v4().as_u64_pair().0 as u32;
        let mut raw = Raw { ports, sequence: random, start: Instant::now() };
        raw.wait_for_carrier();
        Ok(raw)
    }

    /// An interface that was set up just now has no carrier for a moment.
    fn wait_for_carrier(&mut self) {
        while self.ports.iter().any(|link| link.info().is_none()) && self.start.elapsed() < CARRIER_PATIENCE {
            std::thread::sleep(CARRIER_LOOK);
            self.ports.iter_mut().for_each(|link| link.refresh());
        }
    }

    /// How many interfaces there are.
    pub(super) fn ports(&self) -> std::ops::Range<usize> {
        0..self.ports.len()
    }

    /// An interface's name.
    pub(super) fn interface(&self, port: usize) -> &str {
        self.ports[port].name()
    }

    /// All interfaces' names, for messages; those without carrier are told as such.
    pub(super) fn interfaces(&self) -> String {
        let name = |link: &dyn Link| match link.info() {
            Some(_) => link.name().to_owned(),
            None => format!("{} (no carrier)", link.name()),
        };
        self.ports.iter().map(|link| name(link.as_ref())).collect::<Vec<_>>().join(", ")
    }

    /// Address of an interface, while it is up.
    pub(super) fn mac(&self, port: usize) -> Option<MacAddr> {
        self.ports[port].info().map(|info| info.mac)
    }

    /// Bytes of a frame that an interface carries.
    pub(super) fn frame_bytes(&self, port: usize) -> usize {
        self.ports[port].info().map_or(MTU_MIN, |info| info.mtu) as usize + ETH_HEADER
    }

    /// Sectors that a frame carries there.
    pub(super) fn sectors_per_frame(&self, port: usize) -> u8 {
        sectors_per_frame(self.ports[port].info().map_or(MTU_MIN, |info| info.mtu))
    }

    /// Sends questions and hands each reply to `each`, until all are answered, `each` says that it is enough, or the time is over. A reply may come
    /// more than once to a question that [`Expect::Many`] may answer.
    pub(super) fn ask(
        &mut self,
        questions: &[Question<'_>],
        patience: Patience,
        each: &mut dyn FnMut(Answer<'_>) -> ControlFlow<()>,
    ) {
        let first = self.sequence;
        self.sequence = self.sequence.wrapping_add(questions.len() as u32);
        let flight = |_: &Question<'_>| Flight { frame: Vec::new(), sent: None, copies: 0, answered: false };
        let mut flights: Vec<Flight> = questions.iter().map(flight).collect();
        let deadline = self.start.elapsed() + patience.total;
        loop {
            let next = self.send(questions, &mut flights, first, patience);
            if self.receive(questions, &mut flights, first, each).is_break() {
                return;
            }
            let waiting =
                |(question, flight): (&Question<'_>, &Flight)| question.expect == Expect::Many || !flight.answered;
            let now = self.start.elapsed();
            if now >= deadline || !questions.iter().zip(&flights).any(waiting) {
                return;
            }
            let until = next.unwrap_or(deadline).min(deadline);
            let fds: Vec<BorrowedFd<'_>> = self.ports.iter().filter_map(|link| link.fd()).collect();
            aoe_net::wake::wait(&fds, Some(until.saturating_sub(now)));
        }
    }

    /// Sends what is due; answers when something is due next.
    fn send(
        &mut self,
        questions: &[Question<'_>],
        flights: &mut [Flight],
        first: u32,
        patience: Patience,
    ) -> Option<Duration> {
        let is_out = |(question, flight): (&Question<'_>, &Flight)| {
            question.expect == Expect::One && flight.sent.is_some() && !flight.answered
        };
        let mut out = questions.iter().zip(flights.iter()).filter(|pair| is_out(*pair)).count();
        let mut next: Option<Duration> = None;
        for (index, (question, flight)) in questions.iter().zip(flights).enumerate() {
            if question.expect == Expect::One && (flight.answered || flight.sent.is_none() && out >= IN_FLIGHT) {
                continue;
            }
            let now = self.start.elapsed();
            let due = match (flight.sent, patience.again) {
                (None, _) => Some(now),
                (Some(sent), Some(again)) => Some(sent + again),
                (Some(_), None) => None,
            };
            let at = match due {
                Some(due) if due <= now => {
                    out += usize::from(flight.sent.is_none());
                    let sent = self.send_one(question, flight, tag(first, index));
                    if sent { patience.again.map(|again| now + again) } else { Some(now + FULL_RETRY) }
                }
                due => due,
            };
            next = [next, at].into_iter().flatten().min();
        }
        next
    }

    /// Sends a copy; false when the link is full or down.
    fn send_one(&mut self, question: &Question<'_>, flight: &mut Flight, tag: Tag) -> bool {
        let link = &mut self.ports[question.port];
        if link.info().is_none() {
            link.refresh();
        }
        let Some(info) = link.info() else { return false };
        if flight.frame.is_empty() {
            let header = Header::request(question.to, info.mac, question.address, question.command, tag);
            flight.frame = vec![0; info.mtu as usize + ETH_HEADER];
            let len = (question.emit)(&header, &mut flight.frame);
            let len = pad(&mut flight.frame, len);
            flight.frame.truncate(len);
        }
        let now = self.start.elapsed();
        if link.send(&[FrameRef::whole(&flight.frame)]) == 0 {
            return false;
        }
        flight.sent = Some(now);
        flight.copies += 1;
        true
    }

    fn receive(
        &mut self,
        questions: &[Question<'_>],
        flights: &mut [Flight],
        first: u32,
        each: &mut dyn FnMut(Answer<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let now = self.start.elapsed();
        let mut flow = ControlFlow::Continue(());
        for (port, link) in self.ports.iter_mut().enumerate() {
            let mac = link.info().map(|info| info.mac);
            let mut take = |bytes: &[u8]| {
                let Ok(frame) = Frame::parse(bytes) else { return };
                let Some(index) = index_of(first, frame.header.tag, questions.len()) else { return };
                let (question, flight) = (&questions[index], &mut flights[index]);
                let fits = frame.header.command == question.command && question.address.covers(frame.header.address);
                let repeated = question.expect == Expect::One && flight.answered;
                if flow.is_break() || repeated || !fits || port != question.port || Some(frame.header.dst) != mac {
                    return;
                }
                flight.answered = true;
                let rtt = flight.sent.filter(|_| flight.copies == 1).map(|sent| now.saturating_sub(sent));
                flow = each(Answer { question: index, port, frame, rtt, copies: flight.copies });
            };
            while link.receive(&mut take) == BATCH {}
        }
        flow
    }
}

fn tag(first: u32, index: usize) -> Tag {
    let sequence = first.wrapping_add(index as u32) & ((1 << SEQUENCE_BITS) - 1);
    Tag(1 << 31 | u32::from(WORKER) << SEQUENCE_BITS | sequence)
}

/// The question with this tag.
fn index_of(first: u32, found: Tag, count: usize) -> Option<usize> {
    let index = (found.0.wrapping_sub(first) & ((1 << SEQUENCE_BITS) - 1)) as usize;
    (index < count && tag(first, index) == found).then_some(index)
}

/// The names of this host's interfaces.
fn existing_interfaces() -> String {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_name_their_questions() {
        for first in [0, 1, (1 << SEQUENCE_BITS) - 2, u32::MAX - 1] {
            for index in [0, 1, 2, 63] {
                let tag = tag(first, index);
                assert_eq!(tag.0 >> SEQUENCE_BITS, 1 << 8 | u32::from(WORKER));
                assert_eq!(index_of(first, tag, 64), Some(index), "{first} {index}");
                assert_eq!(index_of(first, tag, index), None, "beyond the questions");
                assert_eq!(index_of(first, Tag(tag.0 & !(1 << 31)), 64), None, "the kernel's");
                assert_eq!(index_of(first, Tag(tag.0 ^ 1 << SEQUENCE_BITS), 64), None, "a worker's");
            }
        }
    }

    #[test]
    fn no_interface_is_a_usage_error_that_names_those_there_are() {
        let Err(error) = Raw::open(&InterfaceArgs::default()) else { panic!("opened without an interface") };
        assert!(error.is::<crate::usage::Usage>());
        assert!(error.to_string().contains("lo"), "{error}");
    }
}
