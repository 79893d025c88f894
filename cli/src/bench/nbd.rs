//! A running array under load, through its NBD server.
//!
//! A load thread per CPU with a connection of its own, or a single one where the server does not keep connections consistent with each
//! other. Each keeps a number of requests outstanding over a socket that never blocks: it sends what the server takes, takes what it sends, and
//! waits only when neither moves. Data of reads land in the request's buffer.
//!
//! What the array's workers do meanwhile is asked from its control socket, which is found by the name that the server gives the export; its process's time
//! and memory then count, too. Where the array is on another host, figures are of the load alone, and what only the array knows is left out.
//!
//! Bounds: the queue depth, and the load's buffers as for an array.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::Instant;

use anyhow::{Context, bail};
use raid_core::units::Sectors;
use raid_engine::runtime::topology::Cpu;
use raid_engine::tunables::Settings;
use raid_export::nbd::client::{Client, Export, Stream};
use raid_export::nbd::proto::{Headers, RequestHead, SimpleReply, command, transmission_flag};
use raid_export::nbd::uri::Uri;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::args::{Args, Mode};
use super::load::{Places, WAIT};
use super::measure::{self, Phases, Subject, Tally};
use super::members::{LOOKED_AT, destroys};
use super::progress::Progress;
use super::report::{Row, size_text};
use super::server::{ArrayProcess, Look};
use crate::groups::groups;
use crate::usage::usage;

/// Requests sent with one system call, a head and data each: half of what the system takes.
const SEND_MAX: usize = 512;

/// Bytes taken at once while a reply's head is awaited: many heads, and little of any data.
const STAGE_BYTES: usize = 16 << 10;

/// Measures an export: a row per request size.
pub(super) fn bench(args: &Args, uri: &Uri) -> anyhow::Result<Vec<Row>> {
    if !args.group_thread_cnt.is_empty() || !args.set.is_empty() {
        return usage(
            "--group-thread-cnt and --set are about arrays that the bench starts: use `etherraid tune` for a running one",
        );
    }
    // Confines this process, too, before it starts any thread.
    let cpus = groups(args.cpus.as_ref(), 0, Settings::default().worker_group)?.cpus;
    let mut client = connect(uri)?;
    let export = client.export().clone();
    let space = Sectors(export.size / 512);
    if args.mode.writes() {
        check_writable(args, uri, &mut client)?;
    }
    let array = ArrayProcess::find(&export.name, &client.into_stream());
    let alone = export.flags & transmission_flag::CAN_MULTI_CONN == 0;
    let cpus = if alone { &cpus[..1] } else { &cpus[..] };
    let mut progress = Progress::new(args.runtime * args.bs.0.len() as u32);
    let mut rows = Vec::new();
    for size in &args.bs.0 {
        if size.0 > space.0 {
            return usage(format!("{}: the export has only {} bytes", size_text(size.bytes().0), export.size));
        }
        let what = || format!("{} of {} over NBD", args.mode.word(), size_text(size.bytes().0));
        rows.push(row(args, uri, cpus, space, *size, array.as_ref(), &mut progress).with_context(what)?);
    }
    Ok(rows)
}

fn connect(uri: &Uri) -> anyhow::Result<Client> {
    Client::open(uri).with_context(|| format!("{}: does the array run, and serve there?", uri.address.uri()))
}

/// Refuses an export that cannot be written to, and without `--overwrite` one that may hold something.
fn check_writable(args: &Args, uri: &Uri, client: &mut Client) -> anyhow::Result<()> {
    let Export { size, flags, .. } = *client.export();
    let at = uri.address.uri();
    if flags & transmission_flag::READ_ONLY != 0 {
        bail!("{at} is read-only");
    }
    if !args.overwrite {
        let start = client.read(0, size.min(LOOKED_AT.bytes().0) as usize);
        if start.with_context(|| format!("reading {at}"))?.iter().any(|byte| *byte != 0) {
            bail!(destroys(&at, "is not empty"));
        }
    }
    Ok(())
}

fn row(
    args: &Args,
    uri: &Uri,
    cpus: &[Cpu],
    space: Sectors,
    size: Sectors,
    array: Option<&ArrayProcess>,
    progress: &mut Progress,
) -> anyhow::Result<Row> {
    let bytes = size.bytes().0 as usize;
    let depth = args.depth(bytes);
    let (mut threads, mut handles) = (Vec::new(), Vec::new());
    for (index, cpu) in cpus.iter().enumerate() {
        let stream = connect(uri)?.into_stream();
        stream.set_nonblocking(true).context("the connection")?;
        handles.push(stream.try_clone().context("the connection")?);
        let places = Places::new(args.mode, space, size, index, cpus.len());
        let load = Load::new(stream, args.mode, size, places, depth);
        threads.push((*cpu, move |phases: &Phases, tally: Tally| load.run(phases, tally)));
    }
    let what = format!("{} {} over NBD", args.mode.word(), size_text(bytes as u64));
    let subject = Subject { runtime: args.runtime, what, bytes: bytes as u64, progress };
    let sample = || array.map_or_else(Look::default, ArrayProcess::look);
    let give_up = || {
        for stream in &handles {
            // One that has ended by itself needs no end.
            let _ = stream.shutdown();
        }
    };
    let mut measured = measure::run(threads, subject, sample, give_up)?;
    let (before, after) = measured.counters;
    measured.add_cpu(after.cpu.saturating_sub(before.cpu));
    let row = Row::new(args.mode, size, depth, &measured);
    let ours = measured.rss.saturating_sub((cpus.len() * depth * bytes) as u64);
    Ok(match array {
        None => Row { rss_bytes: ours, ..row },
        Some(_) => after.since(&before, Row { rss_bytes: after.rss, ..row }),
    })
}

/// What is being sent.
#[derive(Debug)]
struct Sending {
    id: usize,
    head: [u8; RequestHead::LEN],
}

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Head,
    /// Data of a read, from here on.
    Data {
        id: usize,
        at: usize,
    },
}

/// One load thread.
#[derive(Debug)]
struct Load {
    stream: Stream,
    mode: Mode,
    size: Sectors,
    places: Places,
    buffers: Vec<Vec<u8>>,
    began: Vec<Option<Instant>>,
    free: Vec<usize>,
    sending: VecDeque<Sending>,
    /// Bytes of the first that are sent.
    sent: usize,
    awaited: Awaited,
    /// What came and is not taken in yet.
    stage: Box<[u8]>,
    staged: std::ops::Range<usize>,
}

impl Load {
    fn new(stream: Stream, mode: Mode, size: Sectors, places: Places, depth: usize) -> Load {
        let bytes = size.bytes().0 as usize;
        Load {
            stream,
            mode,
            size,
            places,
            buffers: (0..depth).map(|id| vec![id as u8 | 1; bytes]).collect(),
            began: vec![None; depth],
            free: (0..depth).collect(),
            sending: VecDeque::with_capacity(depth),
            sent: 0,
            awaited: Awaited::Head,
            stage: vec![0; STAGE_BYTES].into(),
            staged: 0..0,
        }
    }

    fn run(mut self, phases: &Phases, mut tally: Tally) -> anyhow::Result<Tally> {
        loop {
            if tally.follow(phases, Instant::now()) {
                self.submit();
            } else if self.free.len() == self.buffers.len() {
                let leave = RequestHead { flags: 0, command: command::DISC, cookie: 0, offset: 0, len: 0 };
                // A server that is gone already is as good.
                let _ = self.stream.write(&leave.emit(Headers::Simple));
                return Ok(tally);
            }
            let sent = self.send().context("sending to the server")?;
            let came = self.receive(&mut tally).context("from the server")?;
            if !sent && !came {
                self.wait();
            }
        }
    }

    /// Queues all that is free.
    fn submit(&mut self) {
        if self.free.is_empty() {
            return;
        }
        let now = Instant::now();
        let command = if self.mode.writes() { command::WRITE } else { command::READ };
        while let Some(id) = self.free.pop() {
            self.began[id] = Some(now);
            let (offset, len) = (self.places.next().0 * 512, self.size.bytes().0);
            let head = RequestHead { flags: 0, command, cookie: id as u64, offset, len }.emit(Headers::Simple);
            self.sending.push_back(Sending { id, head: head.try_into().expect("a head of fixed length") });
        }
    }

    /// Sends what the server takes; false when that is nothing.
    fn send(&mut self) -> std::io::Result<bool> {
        let data = if self.mode.writes() { self.size.bytes().0 as usize } else { 0 };
        let mut moved = false;
        while !self.sending.is_empty() {
            let mut slices = Vec::with_capacity(2 * SEND_MAX);
            for Sending { id, head } in self.sending.iter().take(SEND_MAX) {
                slices.push(IoSlice::new(head));
                slices.push(IoSlice::new(&self.buffers[*id][..data]));
            }
            let mut rest = &mut slices[..];
            IoSlice::advance_slices(&mut rest, self.sent);
            match self.stream.write_vectored(rest) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            moved = true;
            let whole = RequestHead::LEN + data;
            self.sending.drain(..self.sent / whole);
            self.sent %= whole;
        }
        Ok(moved)
    }

    /// Takes what the server has sent; false when that is nothing.
    fn receive(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let mut moved = false;
        loop {
            self.take_staged(tally)?;
            let whole = self.size.bytes().0 as usize;
            let read = match self.awaited {
                Awaited::Data { id, at } => self.stream.read(&mut self.buffers[id][at..]),
                Awaited::Head => {
                    self.stage.copy_within(self.staged.clone(), 0);
                    self.staged = 0..self.staged.len();
                    self.stream.read(&mut self.stage[self.staged.end..])
                }
            };
            let bytes = match read {
                Ok(0) => bail!("the connection was closed"),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            moved = true;
            match &mut self.awaited {
                Awaited::Head => self.staged.end += bytes,
                Awaited::Data { id, at } => {
                    *at += bytes;
                    if *at == whole {
                        let id = *id;
                        self.awaited = Awaited::Head;
                        self.ended(id, true, Instant::now(), tally)?;
                    }
                }
            }
        }
    }

    /// Takes whole replies out of the stage, and the beginning of data.
    fn take_staged(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        let now = Instant::now();
        loop {
            match self.awaited {
                Awaited::Data { id, at } => {
                    let buffer = &mut self.buffers[id][at..];
                    let bytes = buffer.len().min(self.staged.len());
                    buffer[..bytes].copy_from_slice(&self.stage[self.staged.start..][..bytes]);
                    self.staged.start += bytes;
                    if bytes < buffer.len() {
                        self.awaited = Awaited::Data { id, at: at + bytes };
                        return Ok(());
                    }
                    self.awaited = Awaited::Head;
                    self.ended(id, true, now, tally)?;
                }
                Awaited::Head => {
                    let Some(head) = self.stage[self.staged.clone()].first_chunk() else { return Ok(()) };
                    let reply = SimpleReply::parse(head).context("no reply")?;
                    self.staged.start += SimpleReply::LEN;
                    let id = usize::try_from(reply.cookie).ok().filter(|id| *id < self.began.len());
                    let id = id.with_context(|| format!("a reply to no request: {:#x}", reply.cookie))?;
                    if !self.mode.writes() && reply.error == 0 {
                        self.awaited = Awaited::Data { id, at: 0 };
                    } else {
                        self.ended(id, reply.error == 0, now, tally)?;
                    }
                }
            }
        }
    }

    fn ended(&mut self, id: usize, ok: bool, now: Instant, tally: &mut Tally) -> anyhow::Result<()> {
        let began = self.began[id].take().with_context(|| format!("a second reply to request {id}"))?;
        tally.ended(ok, began, now);
        self.free.push(id);
        Ok(())
    }

    /// Waits until something can move.
    fn wait(&self) {
        let wanted = if self.sending.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(WAIT.subsec_nanos()) };
        // An interruption is as good as an event.
        let _ = poll(&mut [PollFd::new(&self.stream, wanted)], Some(&limit));
    }
}
