//! Names of clients: each is on one node at a time, and a node has only so many.

use crate::protocol::CLIENTS;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The names of all clients that have ever joined.
pub(crate) struct Names {
    /// The node that each was on last, if it joined since the coordinator was started.
    nodes: BTreeMap<String, Option<String>>,
    /// How many of them were last on each node.
    counts: BTreeMap<String, usize>,
    /// The most of them per node.
    per_node: usize,
}

impl Names {
    pub(crate) fn new(per_node: usize) -> Self {
        Self { nodes: BTreeMap::new(), counts: BTreeMap::new(), per_node }
    }

    /// Names that count although nobody has joined with them yet.
    pub(crate) fn know(&mut self, names: impl Iterator<Item = String>) {
        names.for_each(|name| _ = self.nodes.entry(name).or_default());
    }

    /// The node that a client of this name was on last.
    pub(crate) fn node(&self, name: &str) -> Option<&str> {
        self.nodes.get(name)?.as_deref()
    }

    /// Says why a node cannot have these clients, if it cannot.
    pub(crate) fn check<'a>(
        &self,
        node: &str,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), String> {
        let new = names.clone().filter(|name| !self.nodes.contains_key(*name)).count();
        if self.nodes.len() + new > CLIENTS {
            return Err(format!("with it, more than {CLIENTS} clients would have joined this run"));
        }
        let others = names.filter(|name| self.node(name) != Some(node)).count();
        let all = self.counts.get(node).unwrap_or(&0) + others;
        match all <= self.per_node {
            true => Ok(()),
            false => Err(format!(
                "that would make {all} clients of this node in this run; `fleet.clients_per_node` allows {}",
                self.per_node
            )),
        }
    }

    /// A client of this name is on this node now, and no longer where it was.
    pub(crate) fn put(&mut self, name: &str, node: &str) {
        let before = self.nodes.insert(name.to_owned(), Some(node.to_owned())).flatten();
        if let Some(before) = before
            && let Entry::Occupied(mut count) = self.counts.entry(before)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        *self.counts.entry(node.to_owned()).or_default() += 1;
    }

    /// How many of them were last on each node.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> &BTreeMap<String, usize> {
        &self.counts
    }
}
