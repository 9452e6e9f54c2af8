//! Fuzzing of the decoders: see `decoders.rs` for what is decoded, `docs/reliability.md` for how.

pub mod decoders;

use decoders::DECODERS;
use std::sync::LazyLock;
use tempfile::TempDir;

/// Gives the bytes to every decoder of a family, each in a folder of its own.
pub fn fuzz(family: &str, bytes: &[u8]) {
    static FOLDERS: LazyLock<Vec<TempDir>> = LazyLock::new(|| {
        // Decoders do their parallel work on this thread: waking others takes longer than the work.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
        pool.build_global().expect("nothing has used threads yet");
        let folders = DECODERS.iter().map(|_| decoders::scratch());
        folders.collect::<Result<_, _>>().expect("temporary folders can be made")
    });
    for (decoder, folder) in DECODERS.iter().zip(FOLDERS.iter()) {
        if decoder.family == family {
            decoder.run(folder.path(), &(decoder.wrap)(bytes.to_vec()));
        }
    }
}
