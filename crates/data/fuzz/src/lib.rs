//! Fuzzing of the decoders in `decoders.rs`; see `docs/reliability.md`.

pub mod decoder;
pub mod decoders;

use decoders::DECODERS;
use std::sync::Once;

/// Runs every decoder of a family on the bytes.
pub fn fuzz(family: &str, bytes: &[u8]) {
    static POOL: Once = Once::new();
    POOL.call_once(|| {
        // Decoders do their parallel work on this thread: waking others takes longer than the work.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
        pool.build_global().expect("the thread pool is already in use");
    });
    for decoder in DECODERS.iter().filter(|decoder| decoder.family == family) {
        // A new folder every time: the fuzzer never returns, so a shared one would not be removed.
        let folder = decoder::scratch().expect("cannot create a temporary folder");
        decoder.run(folder.path(), &(decoder.wrap)(bytes.to_vec()));
    }
}
