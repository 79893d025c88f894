//! What a sector may hold, and the seeded generator that everything here draws from.

use raid_core::units::SECTOR_SIZE;

/// splitmix64.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `n`, which is not zero.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub(super) fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}

fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

const WORDS: usize = SECTOR_SIZE as usize / 8;
const STEP: u64 = 0x0123_4567_89ab_cdef;

/// The content of a sector is named by a token.
pub(super) type Token = u64;

/// The token that a request leaves in a sector.
pub(super) fn token(request: u64, sector: u64) -> Token {
    mix(mix(request) ^ sector)
}

/// Fills whole sectors that start at array sector `at` with what `request` writes there.
pub(super) fn fill(bytes: &mut [u8], request: u64, at: u64) {
    for (i, sector) in bytes.chunks_exact_mut(SECTOR_SIZE as usize).enumerate() {
        let token = token(request, at + i as u64);
        for (n, word) in sector.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(token ^ (n as u64).wrapping_mul(STEP)).to_le_bytes());
        }
    }
}

/// The token of a sector's content; `None` when it is a mixture.
pub(super) fn read_token(sector: &[u8]) -> Option<Token> {
    let word = |n: usize| u64::from_le_bytes(sector[n * 8..][..8].try_into().expect("eight"));
    let token = word(0);
    (1..WORDS).all(|n| word(n) == token ^ (n as u64).wrapping_mul(STEP)).then_some(token)
}

/// A value that a sector has, had, or may have.
#[derive(Clone, Copy, Debug)]
struct Value {
    token: Token,
    started: u64,
    /// When its write ended; `None` while it is in flight.
    ended: Option<u64>,
    /// Since when it can no longer be read.
    gone: Option<u64>,
    /// Its write ended with an error: it may be there or not.
    failed: bool,
}

/// The values that each sector of the array may have. A sector is a register: a write that began after another had ended
/// replaces it; of those that were in flight together any may be last.
#[derive(Debug)]
pub(super) struct Model {
    first: u64,
    sectors: Vec<Vec<Value>>,
    clock: u64,
}

impl Model {
    /// `count` sectors from `first` on, holding what request `0` wrote.
    pub(super) fn new(first: u64, count: u64) -> Model {
        let value = |sector| Value { token: token(0, sector), started: 0, ended: Some(0), gone: None, failed: false };
        Model { first, sectors: (first..first + count).map(|s| vec![value(s)]).collect(), clock: 1 }
    }

    /// The next moment.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn at(&mut self, sector: u64) -> &mut Vec<Value> {
        &mut self.sectors[(sector - self.first) as usize]
    }

    pub(super) fn write_begins(&mut self, request: u64, at: u64, count: u64) {
        let started = self.tick();
        for sector in at..at + count {
            self.at(sector).push(Value {
                token: token(request, sector),
                started,
                ended: None,
                gone: None,
                failed: false,
            });
        }
    }

    pub(super) fn write_ends(&mut self, request: u64, at: u64, count: u64, ok: bool) {
        let now = self.tick();
        for sector in at..at + count {
            let values = self.at(sector);
            let own = token(request, sector);
            let mine = values.iter_mut().find(|v| v.token == own).expect("the write began");
            mine.ended = Some(now);
            mine.failed = !ok;
            let started = mine.started;
            if ok {
                for v in values.iter_mut().filter(|v| v.ended.is_some_and(|e| e < started)) {
                    v.gone.get_or_insert(now);
                }
            }
        }
    }

    /// A read that began at `started` and has just ended returned `bytes`.
    pub(super) fn check_read(&mut self, at: u64, bytes: &[u8], started: u64, what: &str) {
        let now = self.tick();
        for (i, content) in bytes.chunks_exact(SECTOR_SIZE as usize).enumerate() {
            let sector = at + i as u64;
            let values = self.at(sector);
            let token = read_token(content);
            let allowed = |v: &Value| v.gone.is_none_or(|g| g >= started);
            let hit = values.iter().position(|v| Some(v.token) == token && allowed(v));
            assert!(
                hit.is_some(),
                "{what}: array sector {sector} reads {token:x?}, allowed {:x?}",
                values.iter().filter(|v| allowed(v)).collect::<Vec<_>>()
            );
            // With no write in flight the sector has one value: later reads must agree.
            let quiet = |v: &Value| v.ended.is_some_and(|e| e < started) && !v.failed;
            if values.iter().filter(|v| v.gone.is_none()).all(quiet) {
                for v in values.iter_mut().filter(|v| Some(v.token) != token) {
                    v.gone.get_or_insert(now);
                }
            }
        }
    }

    /// Whether `request`'s value is the only one the sector can have.
    pub(super) fn is_settled(&mut self, sector: u64, request: u64) -> bool {
        let own = token(request, sector);
        self.at(sector).iter().all(|v| v.gone.is_some() || v.token == own)
    }
}
