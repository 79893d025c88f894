//! `cfg`: reads, tests and sets the config strings of AoE devices.
//!
//! Requests go out by broadcast, as aoecfg sends them: a device is named by shelf and slot, and its MAC address need not be known.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::bail;
use aoe_proto::wire::{Address, AoeError, Body, CCmd, CONFIG_HEADER, CONFIG_STRING_MAX, Command, ConfigInfo, MacAddr};
use clap::ValueEnum;
use serde::Serialize;

use super::network::{Network, parse_device, printable};
use super::raw::{Answer, Expect, Patience, Question, Raw};
use super::{exit, probe};
use crate::output::{complain, print, print_json};
use crate::usage::usage;

/// Read, test or set the config strings of AoE devices
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid cfg -i eth1                           # the strings of all devices: shelf.slot, a tab, the string
  etherraid cfg -i eth1 9.0                       # one device's string
  etherraid cfg -i eth1 -c set -s host-a 9.0      # claim a device that nobody has claimed
  etherraid cfg -i eth1 -c fset -s '' 9.0         # clear its string
  etherraid cfg -i eth1 -c prefix -s host-        # devices whose strings begin so

A device that refuses shows *badcfg* and the like, as in aoecfg. The exit status is 1 when one refused, or none answered:
devices do not answer to a test that fails.")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// What to do
    #[arg(short, long, value_enum, default_value = "read")]
    command: What,

    /// The string to test for, or to set
    #[arg(short, long, value_name = "STRING")]
    string: Option<OsString>,

    /// Set the string of every device that answers, where no device is named
    #[arg(long, conflicts_with = "device")]
    all: bool,

    /// SHELF.SLOT [default: all devices]
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    device: Option<Address>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Read the string
    Read,
    /// Answer if the string is exactly this
    Test,
    /// Answer if the string begins with this
    Prefix,
    /// Set the string if there is none
    Set,
    /// Set the string whatever there is
    Fset,
}

impl What {
    fn ccmd(self) -> CCmd {
        match self {
            What::Read => CCmd::READ,
            What::Test => CCmd::TEST,
            What::Prefix => CCmd::TEST_PREFIX,
            What::Set => CCmd::SET,
            What::Fset => CCmd::FORCE_SET,
        }
    }

    fn changes(self) -> bool {
        matches!(self, What::Set | What::Fset)
    }
}

/// A device's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reply {
    address: Address,
    mac: MacAddr,
    port: usize,
    copies: u32,
    string: Result<Vec<u8>, AoeError>,
}

/// The same for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    device: String,
    interface: String,
    mac: String,
    config: Option<String>,
    error: Option<String>,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let string = string(&args)?;
    let mut raw = args.network.open()?;
    if CONFIG_HEADER + string.len() > raw.ports().map(|port| raw.frame_bytes(port)).min().unwrap_or(0) {
        bail!("{} bytes of string do not fit a frame of {}: see its MTU", string.len(), raw.interfaces());
    }
    let mut replies = ask(&mut raw, &args, &string);
    for reply in &mut replies {
        settle(&mut raw, &args, &string, reply);
    }
    replies.sort_by_key(|reply| (reply.address, reply.port, reply.mac));
    if replies.is_empty() && matches!(args.command, What::Test | What::Prefix) {
        complain("no device with such a string answered; see what there is without -c");
    } else if replies.is_empty() {
        bail!("{}", args.network.silence(&raw, args.device));
    }
    show(&raw, &args, &replies)?;
    Ok(exit(!replies.is_empty() && replies.iter().all(|reply| reply.string.is_ok())))
}

/// The string, if it makes sense with the command.
fn string(args: &Args) -> anyhow::Result<Vec<u8>> {
    let string = match (&args.string, args.command) {
        (None, What::Read) => Vec::new(),
        (Some(_), What::Read) => return usage("-s goes with -c test, prefix, set or fset"),
        (None, _) => return usage("name the string with -s; '' is the empty one"),
        (Some(string), _) => string.as_encoded_bytes().to_vec(),
    };
    if string.len() > CONFIG_STRING_MAX {
        return usage(format!("-s: a config string has at most {CONFIG_STRING_MAX} bytes, not {}", string.len()));
    }
    if args.command.changes() && args.device.is_none() && !args.all {
        return usage("name the device whose string is to be set, as SHELF.SLOT; --all sets those of all that answer");
    }
    Ok(string)
}

fn ask(raw: &mut Raw, args: &Args, string: &[u8]) -> Vec<Reply> {
    let emit = |header: &_, buf: &mut [u8]| ConfigInfo::request(args.command.ccmd(), string).emit(header, buf);
    let (address, expect) = args.device.map_or((Address::ALL, Expect::Many), |address| (address, Expect::One));
    let question = |port| {
        let (to, command) = (MacAddr::BROADCAST, Command::CONFIG);
        Question { port, to, address, command, emit: &emit, expect }
    };
    let questions: Vec<Question<'_>> = raw.ports().map(question).collect();
    let mut replies: Vec<Reply> = Vec::new();
    raw.ask(&questions, Patience::asking_again(args.network.timeout), &mut |answer| {
        if let Some(reply) = reply(&answer) {
            // The first answer tells what the request did; a later one may be to its repetition.
            let known = |r: &Reply| (r.address, r.port, r.mac) == (reply.address, reply.port, reply.mac);
            if !replies.iter().any(known) {
                replies.push(reply);
            }
            if expect == Expect::One {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    replies
}

fn reply(answer: &Answer<'_>) -> Option<Reply> {
    let header = answer.frame.header;
    let string = match (header.error, answer.frame.body) {
        (Some(error), _) => Err(error),
        (None, Body::Config(info)) => Ok(info.string.to_vec()),
        (None, _) => return None,
    };
    Some(Reply { address: header.address, mac: header.src, port: answer.port, copies: answer.copies, string })
}

/// A string that a first copy of the request has set makes a later copy fail: then what is there is what was wanted.
fn settle(raw: &mut Raw, args: &Args, string: &[u8], reply: &mut Reply) {
    if reply.copies > 1 && args.command == What::Set && reply.string == Err(AoeError::CONFIG_PRESENT) {
        let now = probe::find(raw, reply.address, args.network.timeout);
        if now.is_some_and(|seen| seen.string == string) {
            reply.string = Ok(string.to_vec());
        }
    }
}

/// aoecfg's word for an error.
fn word(error: AoeError) -> &'static str {
    match error {
        AoeError::COMMAND => "*badcmd*",
        AoeError::ARGUMENT => "*badarg*",
        AoeError::UNAVAILABLE => "*baddev*",
        AoeError::CONFIG_PRESENT => "*badcfg*",
        AoeError::VERSION => "*badvers*",
        AoeError::RESERVED => "*reserved*",
        _ => "*GOK*",
    }
}

fn show(raw: &Raw, args: &Args, replies: &[Reply]) -> anyhow::Result<()> {
    if args.json {
        let row = |reply: &Reply| Row {
            device: reply.address.to_string(),
            interface: raw.interface(reply.port).to_owned(),
            mac: reply.mac.to_string(),
            config: reply.string.as_ref().ok().map(|string| printable(string)),
            error: reply.string.as_ref().err().map(ToString::to_string),
        };
        return print_json(&replies.iter().map(row).collect::<Vec<_>>());
    }
    let mut lines = String::new();
    for reply in replies {
        let text = match &reply.string {
            Ok(string) => printable(string),
            Err(error) => {
                let what = if *error == AoeError::CONFIG_PRESENT { "; -c fset sets another" } else { "" };
                complain(format_args!("{}: {error}{what}", reply.address));
                word(*error).to_owned()
            }
        };
        match args.device {
            Some(_) => lines.push_str(&text),
            None => lines.push_str(&format!("{}.{}\t{text}", reply.address.shelf.0, reply.address.slot.0)),
        }
        lines.push('\n');
    }
    print(&lines)
}
