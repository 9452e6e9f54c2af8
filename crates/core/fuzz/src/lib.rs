//! What the fuzz targets share: a target is the name of a family.

#[path = "../../../data/fuzz/src/decoder.rs"]
pub mod decoder;
pub mod decoders;

/// Gives the bytes to every decoder of a family.
pub fn fuzz(family: &str, bytes: &[u8]) {
    let folder = std::env::temp_dir(); // none of them writes
    for decoder in decoders::DECODERS.iter().filter(|decoder| decoder.family == family) {
        decoder.run(&folder, &(decoder.wrap)(bytes.to_vec()));
    }
}
