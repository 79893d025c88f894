//! Commands 1 to 3: config string, mask list, reservation, and what of them is saved.

use super::*;
use crate::testing::emitted;

/// What came of a message.
#[derive(Debug, PartialEq, Eq)]
enum Got<T> {
    Silence,
    /// An AoE error.
    Error(u8),
    /// A reply; the state is as it was.
    Answer(T),
    /// A reply; the state is to be saved.
    Saved(T),
}

impl Bench {
    fn control<T>(&mut self, frame: &[u8], decode: impl Fn(Body<'_>) -> T) -> Got<T> {
        let before = self.shelf.state(E7_0).unwrap().clone();
        let outcome = self.handle(frame);
        let changed = *self.shelf.state(E7_0).unwrap() != before;
        let (len, save) = match outcome {
            Outcome::Drop => return Got::Silence,
            Outcome::Reply(len) => (len, false),
            Outcome::Save { address, len } => {
                assert_eq!(address, E7_0);
                (len, true)
            }
            Outcome::Many => panic!("not a wildcard"),
        };
        assert_eq!(save, changed, "saved exactly when it changed");
        let reply = self.checked_reply(frame, len);
        let frame = Frame::parse(&reply).unwrap();
        match frame.header.error {
            Some(error) => Got::Error(error.0),
            None if save => Got::Saved(decode(frame.body)),
            None => Got::Answer(decode(frame.body)),
        }
    }

    fn config(&mut self, ccmd: u8, string: &[u8]) -> Got<Vec<u8>> {
        let header = self.header(Command::CONFIG);
        let frame = emitted(|buf| ConfigInfo::request(CCmd(ccmd), string).emit(&header, buf));
        self.control(&frame, |body| {
            let Body::Config(config) = body else { panic!("{body:?}") };
            assert_eq!((config.buffer_count, config.firmware, config.sectors), (16, 1, 2));
            assert_eq!((config.version, config.ccmd), (1, CCmd(ccmd)));
            config.string.to_vec()
        })
    }

    fn mask(&mut self, mcmd: MCmd, edits: &[(u8, MacAddr)]) -> Got<(MError, u8, Vec<MacAddr>)> {
        let header = self.header(Command::MASK);
        let directives = edits.iter().map(|&(dcmd, mac)| Directive { dcmd: DCmd(dcmd), mac });
        let frame = emitted(|buf| MaskList::emit(&header, mcmd, directives, buf));
        self.control(&frame, |body| {
            let Body::Mask(mask) = body else { panic!("{body:?}") };
            assert_eq!(mask.mcmd, mcmd);
            assert!(mask.directives.iter().all(|directive| directive.dcmd == DCmd::NONE));
            (mask.merror, mask.count, mask.directives.iter().map(|directive| directive.mac).collect())
        })
    }

    fn reserve(&mut self, rcmd: RCmd, macs: &[MacAddr]) -> Got<Vec<MacAddr>> {
        let header = self.header(Command::RESERVE);
        let frame = emitted(|buf| Reserve::emit(&header, rcmd, macs.iter().copied(), buf));
        self.control(&frame, |body| {
            let Body::Reserve(reserve) = body else { panic!("{body:?}") };
            assert_eq!(reserve.rcmd, rcmd);
            reserve.macs.iter().collect()
        })
    }
}

fn mac(number: u16) -> MacAddr {
    let [high, low] = number.to_be_bytes();
    MacAddr([0x02, 0, 0, 1, high, low])
}

#[test]
fn config_string() {
    let text = |text: &str| text.as_bytes().to_vec();
    let mut bench = Bench::new();
    // Command, string, what comes back.
    let table = [
        (0, "", Got::Answer(text(""))),
        (1, "", Got::Answer(text(""))),
        (1, "x", Got::Silence),
        (2, "", Got::Answer(text(""))),
        (2, "x", Got::Silence),
        (3, "", Got::Answer(text(""))),
        (3, "host-a", Got::Saved(text("host-a"))),
        (3, "host-a", Got::Answer(text("host-a"))),
        (3, "host-b", Got::Error(4)),
        (3, "", Got::Error(4)),
        (0, "whatever", Got::Answer(text("host-a"))),
        (1, "host-a", Got::Answer(text("host-a"))),
        (1, "host", Got::Silence),
        (1, "host-a2", Got::Silence),
        (1, "", Got::Silence),
        (2, "host", Got::Answer(text("host-a"))),
        (2, "", Got::Answer(text("host-a"))),
        (2, "host-a2", Got::Silence),
        (4, "host-b", Got::Saved(text("host-b"))),
        (4, "host-b", Got::Answer(text("host-b"))),
        (5, "", Got::Error(2)),
        (15, "", Got::Error(2)),
        (4, "", Got::Saved(text(""))),
    ];
    for (index, (ccmd, string, want)) in table.into_iter().enumerate() {
        assert_eq!(bench.config(ccmd, string.as_bytes()), want, "step {index}");
    }
    let long = pattern(2, 0);
    assert_eq!(bench.config(4, &long), Got::Saved(long.clone()));
    assert_eq!(bench.config(0, b""), Got::Answer(long));
}

#[test]
fn mask_list() {
    let (add, delete) = (1, 2);
    let done = |macs: &[MacAddr]| (MError::NONE, macs.len() as u8, macs.to_vec());
    let mut bench = Bench::new();
    assert_eq!(bench.mask(MCmd::READ, &[]), Got::Answer(done(&[])));
    assert_eq!(bench.mask(MCmd::READ, &[(add, OTHER)]), Got::Answer(done(&[])));
    assert_eq!(bench.mask(MCmd::EDIT, &[(add, HOST), (add, mac(1))]), Got::Saved(done(&[HOST, mac(1)])));
    // Adding what is there and deleting what is not are successes, and so is nothing at all.
    let nothing = [(add, HOST), (delete, mac(9)), (0, mac(8))];
    assert_eq!(bench.mask(MCmd::EDIT, &nothing), Got::Answer(done(&[HOST, mac(1)])));
    // A bad directive stops the edit; what was done before it stays.
    let broken = [(delete, mac(1)), (3, HOST), (add, mac(2))];
    assert_eq!(bench.mask(MCmd::EDIT, &broken), Got::Saved((MError::BAD_DIRECTIVE, 1, vec![])));
    assert_eq!(bench.mask(MCmd::READ, &[]), Got::Answer(done(&[HOST])));
    assert_eq!(bench.mask(MCmd::EDIT, &broken[1..]), Got::Answer((MError::BAD_DIRECTIVE, 0, vec![])));
    assert_eq!(bench.mask(MCmd(2), &[]), Got::Error(2));

    // Those who are not on the list get no answer, whatever they ask.
    bench.source = OTHER;
    assert_eq!(bench.config(0, b""), Got::Silence);
    assert_eq!(bench.mask(MCmd::READ, &[]), Got::Silence);
    assert_eq!(bench.reserve(RCmd::READ, &[]), Got::Silence);
    let frame = bench.ata_frame(&AtaRequest::identify(), &[]);
    assert_eq!(bench.send(&frame), None);
    assert_eq!(bench.counters().masked, 4);

    // One can lock oneself out.
    bench.source = HOST;
    let locked = bench.mask(MCmd::EDIT, &[(add, OTHER), (delete, HOST)]);
    assert_eq!(locked, Got::Saved(done(&[OTHER])));
    assert_eq!(bench.mask(MCmd::READ, &[]), Got::Silence);
}

#[test]
fn a_full_mask_list() {
    let mut bench = Bench::new();
    let edits: Vec<_> = (0..MASK_MAX as u16 - 1).map(|number| (1, mac(number))).chain([(1, HOST)]).collect();
    let list: Vec<_> = edits.iter().map(|(_, mac)| *mac).collect();
    assert_eq!(bench.mask(MCmd::EDIT, &edits), Got::Saved((MError::NONE, 180, list.clone())));
    assert_eq!(bench.mask(MCmd::EDIT, &[(0, HOST), (1, OTHER)]), Got::Answer((MError::LIST_FULL, 1, vec![])));
    assert_eq!(bench.mask(MCmd::EDIT, &[(1, mac(0))]), Got::Answer((MError::NONE, 180, list)));
    assert!(matches!(bench.mask(MCmd::EDIT, &[(2, mac(0)), (1, OTHER)]), Got::Saved((MError::NONE, 180, _))));
    // As many directives as a message can hold.
    let many: Vec<_> = (0..255).map(|number| (2, mac(number))).collect();
    assert_eq!(bench.mask(MCmd::EDIT, &many), Got::Saved((MError::NONE, 2, vec![HOST, OTHER])));
}

#[test]
fn reservation() {
    let mut bench = Bench::new();
    let both = [HOST, mac(1)];
    assert_eq!(bench.reserve(RCmd::READ, &[mac(3)]), Got::Answer(vec![]));
    assert_eq!(bench.reserve(RCmd::SET, &[]), Got::Answer(vec![]));
    assert_eq!(bench.reserve(RCmd::SET, &both), Got::Saved(both.to_vec()));
    assert_eq!(bench.reserve(RCmd::SET, &both), Got::Answer(both.to_vec()));
    assert_eq!(bench.reserve(RCmd(3), &[]), Got::Error(2));

    bench.source = OTHER;
    assert_eq!(bench.reserve(RCmd::SET, &[OTHER]), Got::Error(6));
    assert_eq!(bench.reserve(RCmd::SET, &[]), Got::Error(6));
    assert_eq!(bench.reserve(RCmd::READ, &[]), Got::Answer(both.to_vec()));
    assert_eq!(bench.config(0, b""), Got::Answer(vec![]));
    assert_eq!(bench.mask(MCmd::READ, &[]), Got::Answer((MError::NONE, 0, vec![])));

    // Every address of the holder may change it, also to somebody else.
    bench.source = mac(1);
    assert_eq!(bench.reserve(RCmd::SET, &[mac(1)]), Got::Saved(vec![mac(1)]));
    bench.source = HOST;
    assert_eq!(bench.reserve(RCmd::SET, &[HOST]), Got::Error(6));
    assert_eq!(bench.reserve(RCmd::FORCE_SET, &[HOST]), Got::Saved(vec![HOST]));
    assert_eq!(bench.reserve(RCmd::SET, &[]), Got::Saved(vec![]));
    bench.source = OTHER;
    assert_eq!(bench.reserve(RCmd::SET, &[OTHER]), Got::Saved(vec![OTHER]));
}

#[test]
fn a_reservation_is_bounded() {
    let mut bench = Bench::new();
    let most: Vec<_> = (0..RESERVE_MAX as u16).map(mac).collect();
    let more: Vec<_> = (0..=RESERVE_MAX as u16).map(mac).collect();
    assert_eq!(bench.reserve(RCmd::FORCE_SET, &more), Got::Error(2));
    assert_eq!(bench.reserve(RCmd::READ, &[]), Got::Answer(vec![]));
    assert_eq!(bench.reserve(RCmd::FORCE_SET, &most), Got::Saved(most));
}

#[test]
fn what_can_not_be_answered_at_a_small_mtu_changes_nothing() {
    let mut bench = Bench::new();
    bench.shelf.set_port(PORT, Some(PortInfo { mac: TARGET, mtu: MTU_MIN })).unwrap();
    let header = bench.header(Command::CONFIG);
    let frame = emitted(|buf| ConfigInfo::request(CCmd::SET, &[7; 1024]).emit(&header, buf));
    let len = bench.send(&frame).map(|reply| (reply[14], reply[15]));
    assert_eq!(len, Some((0x1C, 2)));
    let many: Vec<_> = (0..100).map(mac).collect();
    assert_eq!(bench.reserve(RCmd::SET, &many), Got::Error(2));
    let edits: Vec<_> = many.iter().map(|mac| (1, *mac)).collect();
    assert_eq!(bench.mask(MCmd::EDIT, &edits), Got::Error(2));
    assert_eq!(bench.shelf.state(E7_0), Some(&DeviceState::default()));
}

#[test]
fn a_change_that_can_not_be_saved_is_taken_back() {
    let mut bench = Bench::new();
    bench.config(3, b"first");
    let kept = bench.shelf.state(E7_0).unwrap().clone();
    let (config, mask, reserve) =
        (bench.header(Command::CONFIG), bench.header(Command::MASK), bench.header(Command::RESERVE));
    let add = Directive { dcmd: DCmd::ADD, mac: HOST };
    let frames = [
        emitted(|buf| ConfigInfo::request(CCmd::FORCE_SET, b"second").emit(&config, buf)),
        emitted(|buf| MaskList::emit(&mask, MCmd::EDIT, [add].into_iter(), buf)),
        emitted(|buf| Reserve::emit(&reserve, RCmd::SET, [HOST].into_iter(), buf)),
    ];
    for frame in frames {
        let Outcome::Save { address, .. } = bench.handle(&frame) else { panic!() };
        assert_ne!(bench.shelf.state(E7_0), Some(&kept));
        let len = bench.shelf.save_failed(address, &mut bench.reply);
        let reply = bench.checked_reply(&frame, len);
        assert_eq!(Frame::parse(&reply).unwrap().header.error, Some(AoeError::UNAVAILABLE));
        assert_eq!(bench.shelf.state(E7_0), Some(&kept));
    }
}

#[test]
fn saved_state_is_text_and_comes_back() {
    let state = DeviceState { config: vec![0, 0x0A, 0xFF, b'x'], mask: vec![HOST, OTHER], reserve: vec![mac(7)] };
    let text = state.to_text();
    assert_eq!(
        text,
        "etherraid shelf state 1\nconfig 000aff78\nmask 02:00:00:00:00:01\nmask 02:00:00:00:00:02\n\
         reserve 02:00:00:01:00:07\nend\n"
    );
    assert_eq!(DeviceState::from_text(&text), Ok(state));
    let empty = DeviceState::default();
    assert_eq!(DeviceState::from_text(&empty.to_text()), Ok(empty));

    // Cut off anywhere, it is not taken for a shorter state.
    for len in 0..text.len() - 1 {
        assert!(DeviceState::from_text(&text[..len]).is_err(), "{len}");
    }
    let line = |line: &str| DeviceState::from_text(&format!("etherraid shelf state 1\n{line}\nend\n"));
    for bad in ["", "config", "config 0", "config 0g", "config 00\nconfig 00", "mask 02", "mask", "color red", " end"] {
        assert!(matches!(line(bad), Err(StateError::Line(2 | 3))), "{bad}");
    }
    assert_eq!(line(&format!("config {}", "00".repeat(1025))), Err(StateError::Bound));
    assert_eq!(line(&vec!["mask 02:00:00:00:00:01"; 181].join("\n")), Err(StateError::Bound));
    assert_eq!(line(&vec!["reserve 02:00:00:00:00:01"; 241].join("\n")), Err(StateError::Bound));
    assert_eq!(DeviceState::from_text("etherraid shelf state 2\nend\n"), Err(StateError::Format));
}

#[test]
fn saved_state_counts_after_a_restart() {
    let mut bench = Bench::new();
    bench.config(3, b"owner");
    bench.reserve(RCmd::SET, &[HOST]);
    let state = bench.shelf.state(E7_0).unwrap().clone();
    let store = bench.shelf.remove_device(E7_0).unwrap();
    assert_eq!(bench.shelf.addresses().count(), 0);
    let config = DeviceConfig::new(E7_0, 16, "S1");
    bench.shelf.add_device(config, state, store).unwrap();
    assert_eq!(bench.config(0, b""), Got::Answer(b"owner".to_vec()));
    bench.source = OTHER;
    assert_eq!(bench.reserve(RCmd::SET, &[OTHER]), Got::Error(6));
}
