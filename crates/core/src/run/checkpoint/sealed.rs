//! The files that checkpoints are made of: a payload behind a hash.

use super::super::disk;
use crate::error::Result;
use std::path::Path;

const MAGIC: &[u8; 8] = b"fedanch2";
/// What files of earlier versions start with.
const EARLIER: &[u8; 8] = b"fedanch1";
/// Writes a payload with its hash.
pub(super) fn write_sealed(path: &Path, payload: &[u8]) -> Result<()> {
    disk::write(path, &[MAGIC, blake3::hash(payload).as_bytes(), payload])
}

/// Whether a file was written by an earlier version, whose checkpoints this one cannot read.
pub(super) fn is_earlier(path: &Path) -> bool {
    fs_err::read(path).is_ok_and(|bytes| bytes.starts_with(EARLIER))
}

/// The payload of a sealed file; `None` if it is torn or foreign.
pub(super) fn read_sealed(path: &Path) -> Option<Vec<u8>> {
    unseal(fs_err::read(path).ok()?)
}

fn unseal(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let hash = bytes.strip_prefix(MAGIC)?.get(..32)?;
    let payload = bytes.get(MAGIC.len() + 32..)?;
    if blake3::hash(payload).as_bytes() != hash {
        return None;
    }
    Some(bytes.split_off(MAGIC.len() + 32))
}

#[cfg(test)]
#[path = "../../../../data/fuzz/src/damage.rs"]
mod damage;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::checkpoint::About;
    use fedanchor_data::{Purpose, Stream};
    use fedanchor_engine::tensors::Bundle;
    use tch::Tensor;

    /// As in `crates/core/tests/mutated.rs`, for what that cannot reach: sealed files, and what is behind
    /// the seal.
    #[test]
    fn damaged_bytes_are_no_checkpoint_and_no_panic() {
        let clients = [(1, 3), (2, 1)].into();
        let about = About { round: 3, clients, ..About::default() };
        let about = serde_json::to_string(&about).unwrap();
        let mut bundle = Bundle::default();
        let value = Tensor::from_slice(&[1.0f32, 2.0]).view([1, 2]);
        bundle.put("model/a.weight".to_owned(), &value).unwrap();
        let payload = bundle.encode(&about).unwrap();
        let sealed = [MAGIC, &blake3::hash(&payload).as_bytes()[..], &payload].concat();
        assert_eq!(unseal(sealed.clone()).as_ref(), Some(&payload));
        let stream = Stream::new(2026, Purpose::Shuffle, 1, 0);
        let count = std::env::var("FEDANCHOR_MUTATIONS").map_or(2000, |text| text.parse().unwrap());
        let mut readable = 0;
        for case in 0..count {
            let bytes = damage::damage(&mut stream.at(2 * case), std::slice::from_ref(&sealed));
            assert!(bytes == sealed || unseal(bytes).is_none(), "input {case}");
            let bytes =
                damage::damage(&mut stream.at(2 * case + 1), std::slice::from_ref(&payload));
            if let Ok((bundle, about)) = Bundle::decode(&bytes) {
                readable += 1;
                drop((bundle, serde_json::from_str::<About>(&about)));
            }
        }
        assert!(
            readable > 0 && readable < count,
            "{readable}: the damage is too much, or too little"
        );
    }
}
