//! A fleet whose every message crosses a boundary as bytes: each client decodes its own broadcast, trains
//! alone, and encodes its answer. Answers arrive in reverse order, from clients known by a key.

use fedanchor::Result;
use fedanchor::engine::tensors::{Layout, Params};
use fedanchor::federation::{Arrival, ClientKey, ClientStates, Delivery, Fleet, Member, RoundTask};
use fedanchor::messages::Broadcast;
use fedanchor::simulation::SimulatedFleet;
use tch::Device;

/// Wraps simulated clients, which know nothing of it.
pub struct Loopback<'a> {
    clients: SimulatedFleet<'a>,
    layout: Layout,
    /// How often each answer is delivered.
    copies: usize,
}

impl<'a> Loopback<'a> {
    pub fn new(clients: SimulatedFleet<'a>, copies: usize) -> Self {
        let context = &clients.simulation().federation.context;
        let layout = context.network.layout.clone();
        Self { clients, layout, copies }
    }
}

/// The key by which the transport knows a client: 64 bits that rise with its number, so that the registry
/// gives it the same one.
fn key(number: u32) -> ClientKey {
    ClientKey::Id(0xfed0_0000_0000_0000 + u64::from(number))
}

impl Fleet for Loopback<'_> {
    fn members(&mut self) -> Result<Vec<Member>> {
        let members = (0..).zip(self.clients.members()?);
        Ok(members.map(|(number, member)| Member { key: key(number), ..member }).collect())
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        for (number, from) in task.clients.iter().rev() {
            assert_eq!(*from, key(*number));
            let bytes = task.broadcast.encode(*number)?;
            assert_eq!(bytes.len() as u64, task.broadcast.encoded_len(*number)?);
            let (broadcast, client) = Broadcast::decode(&bytes, &self.layout, Device::Cpu)?;
            assert_eq!(client, *number);
            let answer = self.clients.train_client(client, &broadcast)?.encode()?;
            for _ in 0..self.copies {
                let arrival = Arrival::Encoded(answer.clone());
                take(Delivery::now(from.clone(), arrival))?;
            }
        }
        Ok(())
    }

    fn save_states(&self, round: u32, like: &Params) -> Result<ClientStates> {
        self.clients.save_states(round, like)
    }

    fn restore_states(&mut self, states: &ClientStates, like: &Params) -> Result<()> {
        self.clients.restore_states(states, like)
    }
}
