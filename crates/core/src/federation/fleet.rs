//! The interface between the coordinator and its clients, wherever they are.

use crate::error::Result;
use crate::messages::{Answer, Broadcast};
use fedanchor_engine::tensors::{Bundle, Params};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// The clients behind a transport.
pub trait Fleet {
    /// The clients that can take part now. [`Error::Stopped`](crate::Error::Stopped) if the run is to stop
    /// before there are enough.
    fn members(&mut self) -> Result<Vec<Member>>;

    /// The clients that a resumed run has met: its first round is to have them again, where they are real.
    fn expect(&mut self, _clients: &[ClientKey]) {}

    /// Has these clients train, and hands over what arrives until all have answered or the deadline has
    /// passed. Answers may come in any order; an error of `take` ends the round, and so does
    /// [`Error::Stopped`](crate::Error::Stopped), which leaves no trace of it.
    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()>;

    /// Further notes on its clients for the next record.
    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The states of its clients, for a checkpoint: those that trained in this round. Nothing, where
    /// clients keep their own states. `like` is a model of the network.
    fn save_states(&self, _round: u32, _like: &Params) -> Result<ClientStates> {
        Ok(ClientStates::default())
    }

    /// Restores the states from the checkpoints of a run.
    fn restore_states(&mut self, _states: &ClientStates, _like: &Params) -> Result<()> {
        Ok(())
    }
}

/// The states of clients, for a fleet that keeps them on behalf of its clients.
#[derive(Debug, Default)]
pub struct ClientStates {
    /// The round in which each client that keeps a state last trained.
    pub trained_in: BTreeMap<u32, u32>,
    /// States by client.
    pub bundles: Vec<(u32, Bundle)>,
}

/// How the transport knows a client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKey {
    /// The fleet numbers its clients itself, from 0.
    Number(u32),
    /// An identifier of 64 bits.
    Id(u64),
    /// A name.
    Name(String),
}

impl std::fmt::Display for ClientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Id(id) => write!(f, "{id:#x}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A client that can take part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its key.
    pub key: ClientKey,
    /// The samples it reported when it last joined.
    pub samples: usize,
}

/// The task of a round's clients.
pub struct RoundTask<'a> {
    /// The message to train on.
    pub broadcast: &'a Broadcast,
    /// Who they are: number and key, by rising number.
    pub clients: &'a [(u32, ClientKey)],
    /// When answers stop counting.
    pub deadline: Option<Instant>,
    /// How many answers that count are enough: a fleet need not wait for more.
    pub enough: usize,
    /// Whether the encoded answer of a client would count. It costs as much as taking it.
    pub counts: &'a dyn Fn(u32, &[u8]) -> bool,
}

/// Something that arrived.
#[derive(Debug)]
pub struct Delivery {
    /// Who sent it, according to the transport.
    pub from: ClientKey,
    /// Its content.
    pub arrival: Arrival,
    /// When it arrived: a fleet may have kept it until its turn.
    pub arrived: Instant,
}

impl Delivery {
    /// A delivery that arrives now.
    pub fn now(from: ClientKey, arrival: Arrival) -> Self {
        Self { from, arrival, arrived: Instant::now() }
    }
}

/// The content of a delivery.
#[derive(Debug)]
pub enum Arrival {
    /// An answer of a client in this process. Its tensors may be overwritten once it was taken.
    Answer(Answer),
    /// The bytes of an answer.
    Encoded(Vec<u8>),
    /// The answer came after the deadline.
    Late,
    /// The client will not answer.
    Absent,
    /// The same, and why.
    Lost(String),
}
