//! Deliveries in canonical order, by client number: sums do not depend on which client was faster.

use super::fleet::{Arrival, ClientKey, Delivery};
use crate::error::Result;
use std::cmp::Ordering;

/// Brings the deliveries of a round into canonical order.
pub(super) struct InOrder {
    /// All clients, and what has arrived from each before its turn.
    clients: Vec<(u32, ClientKey, Vec<Arrival>)>,
    /// Whose turn it is.
    turn: usize,
}

pub(super) type Take<'a> = dyn FnMut(u32, Arrival) -> Result<()> + 'a;

impl InOrder {
    pub(super) fn new(clients: &[(u32, ClientKey)]) -> Self {
        let clients = clients.iter().map(|(number, key)| (*number, key.clone(), Vec::new()));
        Self { clients: clients.collect(), turn: 0 }
    }

    pub(super) fn push(&mut self, delivery: Delivery, take: &mut Take) -> Result<()> {
        let Delivery { from, arrival, .. } = delivery;
        let Some(at) = self.clients.iter().position(|(_, key, _)| *key == from) else {
            tracing::warn!(%from, "a message from a client that was not drawn, ignored");
            return Ok(());
        };
        let (number, _, early) = &mut self.clients[at];
        match at.cmp(&self.turn) {
            Ordering::Less => take(*number, arrival)?, // a further answer
            Ordering::Equal => {
                take(*number, arrival)?;
                self.turn += 1;
                // Those who came before their turn and have it now.
                while let Some((number, _, early)) = self.clients.get_mut(self.turn)
                    && !early.is_empty()
                {
                    early.drain(..).try_for_each(|arrival| take(*number, arrival))?;
                    self.turn += 1;
                }
            }
            // More than an answer and one that contradicts it tells nothing new.
            Ordering::Greater if early.len() >= 2 => {
                tracing::debug!(%from, "a further message, ignored");
            }
            // An answer of this process has views that do not last.
            Ordering::Greater => early.push(match arrival {
                Arrival::Answer(answer) => Arrival::Answer(answer.into_owned()?),
                other => other,
            }),
        }
        Ok(())
    }

    /// The round is over: whatever still waits, in order.
    pub(super) fn finish(self, take: &mut Take) -> Result<()> {
        for (number, _, early) in self.clients.into_iter().skip(self.turn) {
            if early.is_empty() {
                take(number, Arrival::Absent)?;
            }
            early.into_iter().try_for_each(|arrival| take(number, arrival))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the place of an answer that did not come.
    const ABSENT: u8 = 255;

    /// Whatever the order of arrival, answers are taken by rising number, and clients without one are absent.
    #[test]
    fn answers_are_taken_in_canonical_order() {
        let clients: Vec<(u32, ClientKey)> = [2, 5, 7, 9]
            .into_iter()
            .map(|number| (number, ClientKey::Id(100 - u64::from(number))))
            .collect();
        let arrive = |order: &[u32]| {
            let mut taken = Vec::new();
            let mut queue = InOrder::new(&clients);
            let mut take = |client: u32, arrival: Arrival| {
                taken.push(match arrival {
                    Arrival::Encoded(bytes) => (client, bytes[0]),
                    Arrival::Absent => (client, ABSENT),
                    other => panic!("{other:?}"),
                });
                Ok(())
            };
            for (at, number) in order.iter().enumerate() {
                let from = ClientKey::Id(100 - u64::from(*number));
                let arrival = Arrival::Encoded(vec![at as u8]);
                queue.push(Delivery::now(from, arrival), &mut take).unwrap();
            }
            queue.finish(&mut take).unwrap();
            taken
        };
        assert_eq!(arrive(&[9, 7, 5, 2]), [(2, 3), (5, 2), (7, 1), (9, 0)]);
        assert_eq!(arrive(&[2, 9, 5]), [(2, 0), (5, 2), (7, ABSENT), (9, 1)]);
        // A second answer, before and after its turn; and a stranger.
        let taken = [(2, 2), (5, 0), (5, 1), (2, 3), (7, ABSENT), (9, ABSENT)];
        assert_eq!(arrive(&[5, 5, 2, 2, 11]), taken);
    }
}
