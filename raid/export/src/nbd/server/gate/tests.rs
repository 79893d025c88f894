//! Places: who gets one, who loses one.

use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;

const PLACES: Places = Places { served: 4, per_address: 2, negotiating: 3 };

struct Client {
    pass: Pass,
    theirs: UnixStream,
    /// As a connection's thread holds it.
    _ours: Arc<OwnedFd>,
}

impl Client {
    /// Whether it has lost its place.
    fn is_shut(&mut self) -> bool {
        self.theirs.set_nonblocking(true).unwrap();
        matches!(self.theirs.read(&mut [0]), Ok(0))
    }
}

fn address(last: u8) -> Option<IpAddr> {
    Some([10, 0, 0, last].into())
}

fn enter(gate: &Arc<Gate>, peer: Option<IpAddr>) -> Result<Client, Refusal> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ours = Arc::new(ours.into());
    Ok(Client { pass: gate.enter(peer, &ours)?, theirs, _ours: ours })
}

fn served(gate: &Arc<Gate>, peer: Option<IpAddr>) -> Result<Client, Refusal> {
    let client = enter(gate, peer)?;
    client.pass.admit()?;
    Ok(client)
}

#[test]
fn served_ones_are_bounded() {
    let gate = Gate::new(PLACES);
    let mut clients: Vec<Client> = (0..4).map(|n| served(&gate, address(n)).unwrap()).collect();
    assert_eq!(enter(&gate, address(9)).err(), Some(Refusal::Served(4)));
    clients.pop();
    assert!(served(&gate, address(9)).is_ok());
    assert_eq!(gate.passes(), 3, "dropped with its pass");
}

#[test]
fn one_address_does_not_take_all_places() {
    let gate = Gate::new(PLACES);
    let _clients: Vec<Client> = (0..2).map(|_| served(&gate, address(1)).unwrap()).collect();
    assert_eq!(enter(&gate, address(1)).err(), Some(Refusal::Address(2)));
    assert!(served(&gate, address(2)).is_ok());
    // A Unix socket is its owner's, with no address.
    let own: Vec<Client> = (0..2).map(|_| served(&gate, None).unwrap()).collect();
    assert_eq!(own.len(), 2);
}

#[test]
fn the_bounds_hold_at_the_end_of_negotiation_too() {
    let gate = Gate::new(PLACES);
    let clients: Vec<Client> = (0..3).map(|_| enter(&gate, address(1)).unwrap()).collect();
    let admitted: Vec<_> = clients.iter().map(|client| client.pass.admit()).collect();
    assert_eq!(admitted, [Ok(()), Ok(()), Err(Refusal::Address(2))]);
}

#[test]
fn silent_ones_make_room_for_newcomers() {
    let gate = Gate::new(PLACES);
    let mut kept = served(&gate, address(1)).unwrap();
    let mut honest = enter(&gate, address(2)).unwrap();
    let mut first = enter(&gate, address(3)).unwrap();
    let mut second = enter(&gate, address(3)).unwrap();
    // The flood puts out its own, although the honest one is older.
    let mut third = enter(&gate, address(3)).unwrap();
    assert!(first.is_shut() && !second.is_shut());
    assert_eq!(first.pass.admit(), Err(Refusal::Flood));
    assert!(!honest.is_shut());
    // So does a newcomer from elsewhere.
    let mut newcomer = enter(&gate, address(4)).unwrap();
    assert!(second.is_shut() && !third.is_shut() && !honest.is_shut());
    // With one place each, the oldest goes.
    let _another = enter(&gate, address(5)).unwrap();
    assert!(honest.is_shut() && !third.is_shut() && !newcomer.is_shut());
    assert!(!kept.is_shut());
    assert_eq!(newcomer.pass.admit(), Ok(()));
}

#[test]
fn those_on_their_way_out_do_not_pile_up() {
    let gate = Gate::new(PLACES);
    let clients: Vec<Client> = (0..10).map(|_| enter(&gate, None).unwrap()).collect();
    assert_eq!(enter(&gate, None).err(), Some(Refusal::Flood));
    assert_eq!(gate.passes(), 10);
    drop(clients);
    assert_eq!(gate.passes(), 0);
    assert!(served(&gate, None).is_ok());
}
