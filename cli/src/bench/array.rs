//! An array under load: for each row it is assembled and started anew, loaded, and stopped.
//!
//! So no row profits from what an earlier one left in caches or pools. Threads of the load and of the engine share the CPUs that were named.

use std::sync::Arc;

use anyhow::Context;
use raid_core::md::assemble::Options;
use raid_core::units::{MemberCount, Sectors};
use raid_engine::assembly::assemble_array;
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::Totals;
use raid_engine::runtime::groups::Groups;
use raid_engine::runtime::running::Running;
use raid_engine::runtime::topology::Cpu;
use raid_engine::slab::{PAGE, Slab, Stores};
use raid_engine::tunables::Settings;

use super::args::Args;
use super::bare::{Bare, Job};
use super::load::{Load, Places};
use super::measure::{self, Measured, Subject};
use super::members::Members;
use super::progress::Progress;
use super::report::{Row, mean, size_text};
use crate::groups::groups;
use crate::usage::usage;

/// Pairs of a run of ours and one of the loop that is its limit, of which the median counts.
pub(super) const PAIRS: usize = 3;

/// The runs that decide which stores the bare loop uses are shorter than others by this.
const CHOICE: u32 = 4;

/// An array's members, and what is needed to start it.
struct Rig<'a> {
    args: &'a Args,
    /// With `--limit`.
    bare: Option<Arc<Bare>>,
    settings: Settings,
    slab: Arc<Slab>,
    access: crate::members::Members,
    members: Members,
}

/// Measures an array: a row per request size and worker count.
pub(super) fn bench(args: &Args, settings: Settings) -> anyhow::Result<Vec<Row>> {
    let counts = match args.group_thread_cnt.is_empty() {
        true => vec![settings.group_thread_cnt],
        false => args.group_thread_cnt.clone(),
    };
    // Confines this process, too, before it starts any thread.
    let groups = counts
        .iter()
        .map(|count| groups(args.cpus.as_ref(), *count, settings.worker_group))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let specs = args.specs()?;
    let slab = crate::members::slab()?;
    let links = args.interfaces.links(&settings.aoe, specs.len());
    let mut access = crate::members::Members::new(&slab, links)?;
    if args.limit && !specs.iter().all(|spec| matches!(spec, MemberSpec::Memory(_))) {
        return usage("--limit compares with a loop over memory: use memory members, such as --members mem:256M*5");
    }
    let members = Members::make(&mut access, &specs, args.chunk, args.overwrite)?;
    let bare = if args.limit { Some(Arc::new(bare(args, &slab, &members, &groups[0].cpus)?)) } else { None };
    let rows = (args.bs.0.len() * groups.len()) as u32;
    let each = if args.limit { args.runtime * 2 * PAIRS as u32 + args.runtime * 2 / CHOICE } else { args.runtime };
    let mut progress = Progress::new(each * rows);
    let mut rig = Rig { args, bare, settings, slab, access, members };
    let mut rows = Vec::new();
    for size in &args.bs.0 {
        let first = rows.len();
        for groups in &groups {
            let what = || format!("{} of {}", args.mode.word(), size.bytes());
            rows.push(rig.row(*size, groups, &mut progress).with_context(what)?);
        }
        super::report::set_ratios(&mut rows[first..]);
    }
    rig.members.clear(&mut rig.access.opener)?;
    Ok(rows)
}

/// The bare loop over as much memory as the members have.
fn bare(args: &Args, slab: &Arc<Slab>, members: &Members, cpus: &[Cpu]) -> anyhow::Result<Bare> {
    let count = u8::try_from(members.named.len()).context("too many members")?;
    let each = members.named.iter().map(|member| member.device.sectors()).min().context("no members")?;
    Bare::new(slab, MemberCount(count), each, args.chunk, cpus)
}

impl Rig<'_> {
    fn row(&mut self, size: Sectors, groups: &Groups, progress: &mut Progress) -> anyhow::Result<Row> {
        match self.bare.clone() {
            Some(bare) => self.pairs(&bare, size, groups, progress),
            None => self.run(size, groups, progress),
        }
    }

    /// Runs of ours and of the bare loop in turn; the row is that of the median ratio.
    fn pairs(&mut self, bare: &Bare, size: Sectors, groups: &Groups, progress: &mut Progress) -> anyhow::Result<Row> {
        if !bare.fits(size) {
            return usage(format!(
                "{}: a request is larger than a CPU's part of the members",
                size_text(size.bytes().0)
            ));
        }
        let (mode, runtime) = (self.args.mode, self.args.runtime);
        let job = Job { mode, size, buffers: self.depth(size), stores: Stores::Plain };
        let stores = bare.faster(job, runtime / CHOICE, progress)?;
        let mut rows = Vec::new();
        for _ in 0..PAIRS {
            let limit = bare.run(Job { stores, ..job }, runtime, progress)?;
            let mut row = self.run(size, groups, progress)?;
            row.set_limit(limit);
            rows.push(row);
        }
        let errors = rows.iter().map(|row| row.errors).sum();
        rows.sort_by(|a, b| a.limit_ratio.partial_cmp(&b.limit_ratio).expect("no ratio is NaN"));
        Ok(Row { errors, ..rows.swap_remove(PAIRS / 2) })
    }

    /// Requests that a load thread keeps outstanding.
    fn depth(&self, size: Sectors) -> usize {
        self.args.depth(class_bytes(size) as usize)
    }

    fn run(&mut self, size: Sectors, groups: &Groups, progress: &mut Progress) -> anyhow::Result<Row> {
        let array = self.start(groups)?;
        let (loads, depth) = self.loads(&array, size, groups)?;
        let threads = groups.cpus.iter().zip(loads);
        let threads = threads.map(|(cpu, load)| (*cpu, |phases: &_, tally| load.run(phases, tally))).collect();
        let bytes = size.bytes().0;
        let (mode, size_text) = (self.args.mode.word(), size_text(bytes));
        let what = format!("{mode} {size_text} with group_thread_cnt {}", groups.group_thread_cnt);
        let subject = Subject { runtime: self.args.runtime, what, bytes, progress };
        // Whoever does not answer by then will not.
        let give_up = || {
            array.stop(true);
        };
        let measured = measure::run(threads, subject, || array.totals(), give_up)?;
        array.stop(false);
        let bare = self.bare.as_ref().map_or(0, |bare| bare.bytes());
        let buffers = groups.cpus.len() as u64 * depth as u64 * class_bytes(size);
        Ok(self.make_row(size, groups, depth, &measured, self.members.memory() + bare + buffers))
    }

    fn start(&mut self, groups: &Groups) -> anyhow::Result<Running> {
        let tunables = self.settings.array.clone();
        let start = assemble_array(&mut self.access.opener, &self.members.named, &Options::default(), false, tunables)?;
        let devices = self.members.named.iter().enumerate();
        let devices: Vec<_> = devices.map(|(i, member)| (MemberHandle(i as u16), member.device.clone())).collect();
        let array = Running::start(start, &self.slab, groups, &self.settings, &devices);
        array.context("starting the array")
    }

    /// The load threads, and how many requests each keeps outstanding.
    fn loads(&self, array: &Running, size: Sectors, groups: &Groups) -> anyhow::Result<(Vec<Load>, usize)> {
        if size.0 > array.sectors().0 {
            return usage(format!("the array has only {} bytes", array.sectors().bytes()));
        }
        let depth = self.depth(size);
        let mode = self.args.mode;
        let mut loads = Vec::new();
        for index in 0..groups.cpus.len() {
            let client = array.client()?.context("too many load threads")?;
            let places = Places::new(mode, array.sectors(), size, index, groups.cpus.len());
            loads.push(Load { client, mode, size, places, depth });
        }
        Ok((loads, depth))
    }

    fn make_row(
        &self,
        size: Sectors,
        groups: &Groups,
        depth: usize,
        measured: &Measured<Totals>,
        not_ours: u64,
    ) -> Row {
        let (before, after) = measured.counters;
        let requests = after.counters.member_requests - before.counters.member_requests;
        let sectors = after.counters.member_sectors - before.counters.member_sectors;
        let answered = after.traffic.frames_answered - before.traffic.frames_answered;
        let data_bytes = after.traffic.data_bytes - before.traffic.data_bytes;
        let handoffs = after.handed.handoffs - before.handed.handoffs;
        let contended = after.handed.contended - before.handed.contended;
        let mut row = Row {
            group_thread_cnt: Some(groups.group_thread_cnt),
            member_request_sectors: mean(sectors, requests),
            frame_bytes_mean: mean(data_bytes, answered),
            retransmits: after.traffic.retransmits - before.traffic.retransmits,
            rss_bytes: measured.rss.saturating_sub(not_ours),
            ..Row::new(self.args.mode, size, depth, measured)
        };
        row.set_handed(handoffs, contended, measured.ops);
        row
    }
}

/// Memory of a request's buffer: the engine gives out powers of two.
fn class_bytes(size: Sectors) -> u64 {
    size.bytes().0.max(PAGE as u64).next_power_of_two()
}
