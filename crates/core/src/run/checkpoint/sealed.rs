//! The files that checkpoints are made of: a payload after its hash.

use crate::disk;
use crate::error::Result;
use std::path::Path;

const MAGIC: &[u8; 8] = b"fedanch2";
/// What files of earlier versions start with.
const EARLIER: &[u8; 8] = b"fedanch1";

pub(super) fn write_sealed(path: &Path, payload: &[u8]) -> Result<()> {
    disk::write(path, &[MAGIC, blake3::hash(payload).as_bytes(), payload])
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    /// As it was written: its payload.
    Whole(Vec<u8>),
    /// Written by an earlier version, whose checkpoints this one cannot read.
    Earlier,
    /// Torn, changed, foreign, or not there.
    Damaged,
}

/// Reads a sealed file. That it cannot be read is an error, and says nothing about what is in it.
pub(super) fn read_sealed(path: &Path) -> Result<Sealed> {
    Ok(disk::read_if_exists(path)?.map_or(Sealed::Damaged, unseal))
}

fn unseal(mut bytes: Vec<u8>) -> Sealed {
    if bytes.starts_with(EARLIER) {
        return Sealed::Earlier;
    }
    let hash = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(32));
    match hash.is_some_and(|(hash, payload)| blake3::hash(payload).as_bytes() == hash) {
        true => Sealed::Whole(bytes.split_off(MAGIC.len() + 32)),
        false => Sealed::Damaged,
    }
}

#[cfg(test)]
#[path = "../../../../data/fuzz/src/damage.rs"]
mod damage;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::checkpoint::CheckpointMeta;
    use fedanchor_data::{Purpose, Stream};
    use fedanchor_engine::tensors::Bundle;
    use tch::Tensor;

    /// As in `crates/core/tests/mutated.rs`, for what that cannot reach: sealed files, and what is behind
    /// the seal.
    #[test]
    fn damaged_bytes_are_no_checkpoint_and_no_panic() {
        let clients = [(1, 3), (2, 1)].into();
        let meta = CheckpointMeta { round: 3, clients, ..CheckpointMeta::default() };
        let meta = serde_json::to_string(&meta).unwrap();
        let mut bundle = Bundle::default();
        let value = Tensor::from_slice(&[1.0f32, 2.0]).view([1, 2]);
        bundle.put("model/a.weight".to_owned(), &value).unwrap();
        let payload = bundle.encode(&meta).unwrap();
        let sealed = [MAGIC, &blake3::hash(&payload).as_bytes()[..], &payload].concat();
        assert_eq!(unseal(sealed.clone()), Sealed::Whole(payload.clone()));
        let stream = Stream::new(2026, Purpose::Shuffle, 1, 0);
        let count = std::env::var("FEDANCHOR_MUTATIONS").map_or(2000, |text| text.parse().unwrap());
        let mut readable = 0;
        for case in 0..count {
            let bytes = damage::damage(&mut stream.at(2 * case), std::slice::from_ref(&sealed));
            let whole = bytes == sealed;
            assert_eq!(matches!(unseal(bytes), Sealed::Whole(_)), whole, "input {case}");
            let bytes =
                damage::damage(&mut stream.at(2 * case + 1), std::slice::from_ref(&payload));
            if let Ok((bundle, meta)) = Bundle::decode(&bytes) {
                readable += 1;
                drop((bundle, serde_json::from_str::<CheckpointMeta>(&meta)));
            }
        }
        assert!(
            readable > 0 && readable < count,
            "{readable}: the damage is too much, or too little"
        );
    }
}
