//! The scripts. Their contracts are in their headers; a change of one is a new file with the next number, because
//! two versions of the fleet share a store.

use redis::Script;

/// All scripts, hashed once.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) write: Script,
    pub(crate) read: Script,
    pub(crate) check: Script,
    pub(crate) begin: Script,
    pub(crate) announce: Script,
    pub(crate) swap: Script,
    pub(crate) cell: Script,
    pub(crate) turn: Script,
    pub(crate) put_blob: Script,
    pub(crate) blobs: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            write: Script::new(include_str!("../scripts/write_v1.lua")),
            read: Script::new(include_str!("../scripts/read_v1.lua")),
            check: Script::new(include_str!("../scripts/check_v1.lua")),
            begin: Script::new(include_str!("../scripts/begin_v1.lua")),
            announce: Script::new(include_str!("../scripts/announce_v1.lua")),
            swap: Script::new(include_str!("../scripts/swap_v1.lua")),
            cell: Script::new(include_str!("../scripts/cell_v1.lua")),
            turn: Script::new(include_str!("../scripts/turn_v1.lua")),
            put_blob: Script::new(include_str!("../scripts/put_blob_v1.lua")),
            blobs: Script::new(include_str!("../scripts/blobs_v2.lua")),
        }
    }
}
