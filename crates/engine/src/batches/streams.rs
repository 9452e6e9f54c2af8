//! The random streams of one round.

use fedanchor_data::{Purpose, Stream};

/// Names the streams of one run and round; what is left to name is the purpose and the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundStreams {
    /// The seed of the run.
    pub seed: u64,
    /// The round, from 1; 0 is pre-training.
    pub round: u32,
}

impl RoundStreams {
    /// The stream for a purpose and a client.
    pub fn of(&self, purpose: Purpose, client: u32) -> Stream {
        Stream::new(self.seed, purpose, self.round, client)
    }
}
