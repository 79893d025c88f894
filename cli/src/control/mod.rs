//! The control socket of a running array: JSON over HTTP on a Unix socket with mode 0600, so that curl works too.
//!
//! ```text
//! GET  /detail                 how it stands
//! GET  /counters               what the workers have done
//! GET  /paths                  AoE members and the paths to them
//! GET  /tunables               the table of tunables, with their values
//! POST /tune   {"set": [S, ..]}  sets tunables, each S a KEY=VALUE; all of them or none
//! POST /add    {"member": M}   opens M in the running process and takes it in
//! POST /fail   {"member": M}
//! POST /remove {"member": M}
//! POST /stop                   answered when the array has ended: {"exit": 0}
//! ```
//!
//! ```sh
//! curl --unix-socket /run/etherraid/r5.sock http://localhost/detail
//! curl --unix-socket /run/etherraid/r5.sock --json '{"set": ["sync_speed_max=50000"]}' http://localhost/tune
//! ```
//!
//! A request that fails is answered with a status of 400 or above and `{"error": "..."}`.

pub(crate) mod client;
pub(crate) mod messages;
pub(crate) mod server;
