//! Fuzzing of the decoders: see `decoders.rs` for what is decoded, `docs/reliability.md` for how.

pub mod decoder;
pub mod decoders;

use decoders::DECODERS;
use std::sync::Once;

/// Gives the bytes to every decoder of a family.
pub fn fuzz(family: &str, bytes: &[u8]) {
    static POOL: Once = Once::new();
    POOL.call_once(|| {
        // Decoders do their parallel work on this thread: waking others takes longer than the work.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
        pool.build_global().expect("nothing has used threads yet");
    });
    for decoder in DECODERS.iter().filter(|decoder| decoder.family == family) {
        // A new folder every time: the fuzzer never returns, so nobody would remove an old one.
        let folder = decoder::scratch().expect("temporary folders can be made");
        decoder.run(folder.path(), &(decoder.wrap)(bytes.to_vec()));
    }
}
