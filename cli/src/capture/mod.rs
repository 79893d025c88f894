//! `capture`: writes what interfaces see of AoE into a pcap file, until SIGINT or SIGTERM, or until there are enough frames.
//!
//! A thread reads the sockets, in both directions, and writes; the main thread waits for signals. Nothing is decoded. Bounds: the sockets' rings;
//! what they cannot hold is counted and told at the end.

mod pcap;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use aoe_net::LINK_CHECK;
use aoe_net::link::{Link, PacketConfig, PacketLink, Role};
use aoe_net::wake::{Waker, wait};

use crate::output::print;
use crate::signals::Signals;
use crate::usage::usage;

/// Frames that wait for the file, for each interface.
const RING: usize = 4096;

/// Write what interfaces see of AoE into a pcap file
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid capture -i eth1 aoe.pcap                # until Ctrl-C
  etherraid capture -i eth1 -i eth2 -c 1000000 aoe.pcap

The file is for tcpdump -r and wireshark. What an array or a shelf on this host sends goes past the queues where captures look, so this host \
                        sees what arrives, and what other programs send; the host at the other end sees the rest.")]
pub(crate) struct Args {
    /// Network interface to look at; more than one may be given
    #[arg(short = 'i', long = "interface", value_name = "IF", required = true)]
    interfaces: Vec<String>,

    /// End after so many frames
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// File to write; what it held is lost
    #[arg(value_name = "FILE.pcap")]
    file: PathBuf,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut capture = Capture::open(&args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on a signal ends the capture in order.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    let end = Arc::new(End { asked: AtomicBool::new(false), waker: Waker::new()? });
    let (to, mut ended) = tokio::sync::oneshot::channel();
    let asked = Arc::clone(&end);
    let work = move || {
        let done = capture.work(&asked);
        // The main thread waits for it.
        drop(to.send((capture, done)));
    };
    std::thread::Builder::new().name("capture".into()).spawn(work)?;
    print(&format!("ready: capturing AoE on {} to {}\n", args.interfaces.join(", "), args.file.display()))?;
    let (mut capture, done) = runtime
        .block_on(async {
            tokio::select! {
                _ = signals.next() => {
                    end.asked.store(true, Ordering::Release);
                    end.waker.wake();
                    (&mut ended).await
                }
                done = &mut ended => done,
            }
        })
        .map_err(|_| anyhow!("the capturing thread has died"))?;
    done?;
    print(&capture.summary(&args))?;
    Ok(ExitCode::SUCCESS)
}

/// How the capture is asked to end.
struct End {
    asked: AtomicBool,
    waker: Waker,
}

/// Sockets and file.
struct Capture {
    links: Vec<PacketLink>,
    file: BufWriter<File>,
    path: PathBuf,
    frames: u64,
    most: u64,
}

impl Capture {
    fn open(args: &Args) -> anyhow::Result<Capture> {
        let mut links = Vec::new();
        for (index, interface) in args.interfaces.iter().enumerate() {
            if args.interfaces[..index].contains(interface) {
                return usage(format!("{interface} is given twice"));
            }
            let config = PacketConfig::new(interface, Role::Everything);
            let config = PacketConfig { receive_ring: Some(RING), outgoing: true, allow_down: true, ..config };
            links.push(PacketLink::open(&config)?);
        }
        let file = File::create(&args.file).with_context(|| format!("creating {}", args.file.display()))?;
        let (file, path) = (BufWriter::with_capacity(1 << 20, file), args.file.clone());
        Ok(Capture { links, file, path, frames: 0, most: args.count.unwrap_or(u64::MAX) })
    }

    /// Captures until asked to end, or until there are enough frames. The file is whole whenever nothing more waits to be written.
    fn work(&mut self, end: &End) -> anyhow::Result<()> {
        self.write().with_context(|| format!("writing {}", self.path.display()))?;
        let mut check = Instant::now();
        while self.frames < self.most && !end.asked.load(Ordering::Acquire) {
            let fds: Vec<BorrowedFd<'_>> =
                self.links.iter().filter_map(|link| link.fd()).chain([end.waker.as_fd()]).collect();
            wait(&fds, Some(LINK_CHECK));
            if check.elapsed() >= LINK_CHECK {
                check = Instant::now();
                self.links.iter_mut().for_each(Link::refresh);
            }
            self.drain().with_context(|| format!("writing {}", self.path.display()))?;
        }
        // What arrived before the end was asked for.
        self.drain().with_context(|| format!("writing {}", self.path.display()))
    }

    fn write(&mut self) -> std::io::Result<()> {
        self.file.write_all(&pcap::file_header())?;
        self.file.flush()
    }

    /// Writes what has arrived, and of what arrives meanwhile no more than the sockets hold.
    fn drain(&mut self) -> std::io::Result<()> {
        let Capture { links, file, frames, most, .. } = self;
        let mut done = Ok(());
        for link in links {
            for _ in 0..link.receive_frames() {
                let count = link.receive_timed(&mut |frame, time| {
                    if done.is_ok() && *frames < *most {
                        let time = time.unwrap_or_else(now);
                        done =
                            file.write_all(&pcap::frame_header(time, frame.len())).and_then(|()| file.write_all(frame));
                        *frames += 1;
                    }
                });
                if count == 0 || done.is_err() || *frames == *most {
                    break;
                }
            }
        }
        done?;
        file.flush()
    }

    fn summary(&mut self, args: &Args) -> String {
        let dropped: u64 = self
            .links
            .iter_mut()
            .map(|link| {
                link.refresh();
                link.counters().receive_dropped
            })
            .sum();
        let lost = if dropped > 0 { format!(", {dropped} lost: the file was too slow") } else { String::new() };
        format!("{} frames in {}{lost}\n", self.frames, args.file.display())
    }
}

/// Now, since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
