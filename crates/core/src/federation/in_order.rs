//! Deliveries in canonical order, by client number: sums do not depend on which client was faster.

use super::fleet::{Arrival, ClientKey, Delivery};
use crate::error::Result;
use std::collections::VecDeque;

/// Brings the deliveries of a round into canonical order.
pub(super) struct InOrder {
    /// Clients whose turn is to come, and what has arrived from each.
    waiting: VecDeque<(u32, ClientKey, Vec<Arrival>)>,
    done: Vec<(u32, ClientKey)>,
}

pub(super) type Take<'a> = dyn FnMut(u32, Arrival) -> Result<()> + 'a;

impl InOrder {
    pub(super) fn new(clients: &[(u32, ClientKey)]) -> Self {
        let waiting = clients.iter().map(|(number, key)| (*number, key.clone(), Vec::new()));
        Self { waiting: waiting.collect(), done: Vec::new() }
    }

    pub(super) fn push(&mut self, delivery: Delivery, take: &mut Take) -> Result<()> {
        let Delivery { from, arrival, .. } = delivery;
        if let Some((number, _)) = self.done.iter().find(|(_, key)| *key == from) {
            return take(*number, arrival); // a further answer
        }
        match self.waiting.iter().position(|(_, key, _)| *key == from) {
            None => tracing::warn!(%from, "a message from a client that was not drawn, ignored"),
            Some(0) => {
                take(self.waiting[0].0, arrival)?;
                self.next();
                // Those who came before their turn and have it now.
                while self.waiting.front().is_some_and(|(_, _, arrived)| !arrived.is_empty()) {
                    let (number, _, arrived) = &mut self.waiting[0];
                    let (number, arrived) = (*number, std::mem::take(arrived));
                    arrived.into_iter().try_for_each(|arrival| take(number, arrival))?;
                    self.next();
                }
            }
            // More than an answer and one that contradicts it tells nothing new.
            Some(at) if self.waiting[at].2.len() >= 2 => {
                tracing::debug!(%from, "a further message, ignored");
            }
            // An answer of this process has views that do not last.
            Some(at) => self.waiting[at].2.push(match arrival {
                Arrival::Answer(answer) => Arrival::Answer(answer.into_owned()?),
                other => other,
            }),
        }
        Ok(())
    }

    fn next(&mut self) {
        if let Some((number, key, _)) = self.waiting.pop_front() {
            self.done.push((number, key));
        }
    }

    /// The round is over: whatever still waits, in order.
    pub(super) fn finish(self, take: &mut Take) -> Result<()> {
        for (number, _, arrived) in self.waiting {
            if arrived.is_empty() {
                take(number, Arrival::Absent)?;
            }
            arrived.into_iter().try_for_each(|arrival| take(number, arrival))?;
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
